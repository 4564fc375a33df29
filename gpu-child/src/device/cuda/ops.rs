//! The kernels around the matmuls.

use super::kernels::{
    ArgmaxArgs, AttentionArgs, EmbedArgs, Kernel, MergeArgs, Module, RopeArgs, RowArgs,
    ScatterInputsArgs,
};
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub scatter_inputs: Kernel<ScatterInputsArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: Kernel<RowArgs>,
    pub scale_rows: Kernel<RowArgs>,
    pub glu_rows: Kernel<RowArgs>,
    pub rope_kv: Kernel<RopeArgs>,
    pub attention_together: Kernel<AttentionArgs>,
    /// Threads of a block of `attention_together`.
    pub together_threads: u32,
    pub attention_split: Kernel<AttentionArgs>,
    pub attention_merge: Kernel<MergeArgs>,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// When a kernel is missing.
    pub fn load(module: &Module, head_dim: usize) -> Result<Self, Fault> {
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            Ok(Self {
                scatter_inputs: module.kernel("scatter_inputs")?,
                embed: module.kernel("embed")?.overlapping(),
                rmsnorm: module.kernel("rmsnorm")?.overlapping(),
                scale_rows: module.kernel("scale_rows")?.overlapping(),
                glu_rows: module.kernel("glu_rows")?.overlapping(),
                rope_kv: module.kernel("rope_kv")?.overlapping(),
                attention_together: module
                    .kernel(&format!("attention_together_{head_dim}"))?
                    .overlapping(),
                together_threads: 32 * together_warps(head_dim),
                attention_split: module
                    .kernel(&format!("attention_split_{head_dim}"))?
                    .overlapping(),
                attention_merge: module.kernel("attention_merge")?.overlapping(),
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }
}

/// Warps of a block that computes all splits: `ATTENTION` in attention.cu.
pub fn together_warps(head_dim: usize) -> u32 {
    if matches!(head_dim, 32 | 64) { 8 } else { 4 }
}
