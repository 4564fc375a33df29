//! The kernels around the matmuls.

use super::kernels::{
    ArgmaxArgs, ArriveArgs, AttentionArgs, EmbedArgs, Kernel, MergeArgs, Module, RopeArgs, RowArgs,
};
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub arrive: Kernel<ArriveArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: Kernel<RowArgs>,
    pub scale_rows: Kernel<RowArgs>,
    pub silu_mul_rows: Kernel<RowArgs>,
    pub rope_kv: Kernel<RopeArgs>,
    pub attention_together: Kernel<AttentionArgs>,
    /// Of a block of it.
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
                arrive: module.kernel("arrive")?,
                embed: module.kernel("embed")?.overlapping(),
                rmsnorm: module.kernel("rmsnorm")?.overlapping(),
                scale_rows: module.kernel("scale_rows")?.overlapping(),
                silu_mul_rows: module.kernel("silu_mul_rows")?.overlapping(),
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

/// Warps of a block that attends to all splits: `ATTENTION` in attention.cu.
pub fn together_warps(head_dim: usize) -> u32 {
    if matches!(head_dim, 32 | 64) { 8 } else { 4 }
}
