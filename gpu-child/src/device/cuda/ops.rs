//! The kernels around the matmuls.

use super::headers::constant;
use super::kernels::{
    ArgmaxArgs, AttentionArgs, EmbedArgs, Kernel, MergeArgs, Module, RopeArgs, RowArgs,
    ScatterInputsArgs,
};
use super::plan::{SPLIT, SPLIT_PAGES};
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
    /// Shared memory of a block of `attention_split`.
    pub split_shared_bytes: u32,
    pub attention_merge: Kernel<MergeArgs>,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// When a kernel is missing, or the device has too little shared memory for one.
    pub fn load(module: &Module, head_dim: usize) -> Result<Self, Fault> {
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            let split_shared_bytes = split_shared_bytes(head_dim);
            let attention_split: Kernel<AttentionArgs> = module
                .kernel(&format!("attention_split_{head_dim}"))?
                .overlapping();
            attention_split.allow_shared(split_shared_bytes)?;
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
                attention_split,
                split_shared_bytes,
                attention_merge: module.kernel("attention_merge")?.overlapping(),
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }
}

/// Threads of a block that computes one split.
pub const SPLIT_THREADS: u32 = 32 * SPLIT_PAGES as u32;

/// `SplitMemory` in attention_split.cuh: the split's keys and values, and what its warps exchange.
fn split_shared_bytes(head_dim: usize) -> u32 {
    const EXCHANGE: usize = constant!("attention_split.cuh", SPLIT_EXCHANGE_BYTES);
    (2 * SPLIT * head_dim * size_of::<u16>() + EXCHANGE) as u32
}

/// Warps of a block that computes all splits: `ATTENTION` in attention.cu.
pub fn together_warps(head_dim: usize) -> u32 {
    if matches!(head_dim, 32 | 64) { 8 } else { 4 }
}
