//! The kernels around the matmuls.

use super::context::Context;
use super::headers::constant;
use super::kernels::{
    ArgmaxArgs, AttentionArgs, EmbedArgs, Kernel, MergeArgs, Module, RopeArgs, RowArgs,
    ScatterInputsArgs,
};
use super::plan::{SPLIT, SPLIT_PAGES};
use crate::model::ModelConfig;
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
    /// Hopper's, for heads that it was made for and layers that see all.
    pub attention_wide: Option<Kernel<AttentionArgs>>,
    /// Shared memory of a block of it.
    pub wide_shared_bytes: u32,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// When a kernel is missing, or the device has too little shared memory for one.
    pub fn load(context: &Context, module: &Module, config: &ModelConfig) -> Result<Self, Fault> {
        let head_dim = config.head_dim;
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            let split_shared_bytes = split_shared_bytes(head_dim);
            let attention_split: Kernel<AttentionArgs> = module
                .kernel(&format!("attention_split_{head_dim}"))?
                .overlapping();
            attention_split.allow_shared(split_shared_bytes)?;
            let has_wide = context.has_wgmma()
                && WIDE_HEAD_DIMS.contains(&head_dim)
                && config.positions.window.is_none();
            let wide_shared_bytes = wide_shared_bytes(head_dim);
            let attention_wide: Option<Kernel<AttentionArgs>> = has_wide
                .then(|| module.kernel(&format!("attention_wide_{head_dim}")))
                .transpose()?
                .map(|kernel| kernel.overlapping());
            if let Some(kernel) = &attention_wide {
                kernel.allow_shared(wide_shared_bytes)?;
            }
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
                attention_wide,
                wide_shared_bytes,
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }

    /// Gives up the kernels that only some architectures have.
    pub fn use_portable(&mut self) {
        self.attention_wide = None;
    }
}

/// Threads of a block of `attention_wgmma.cu`.
pub const WIDE_THREADS: u32 = constant!("attention_wgmma.cu", WIDE_THREADS) as u32;
/// Heads that it has kernels for.
const WIDE_HEAD_DIMS: [usize; 3] = [64, 96, 128];

/// `WideMemory` there: queries, rings of splits' keys and values, and two barriers for a place of each.
fn wide_shared_bytes(head_dim: usize) -> u32 {
    const ROWS: usize = constant!("attention_wgmma.cu", WIDE_ROWS);
    const STAGES: usize = constant!("attention_wgmma.cu", WIDE_STAGES);
    const BARRIER_BYTES: usize = constant!("bulk.cuh", BARRIER_BYTES);
    let halves = (ROWS + STAGES * 2 * SPLIT) * head_dim;
    (halves * size_of::<u16>() + STAGES * 4 * BARRIER_BYTES) as u32
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
