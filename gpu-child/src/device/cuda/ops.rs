//! Kernels around the matmuls.

use super::context::Context;
use super::delta_net::DeltaNets;
use super::headers::constant;
use super::kernels::{
    ArgmaxArgs, AttentionArgs, EmbedArgs, GatedRowsArgs, Geometry, Kernel, MergeArgs, Module,
    RopeRowsArgs, RowArgs, ScatterInputsArgs,
};
use super::plan::{SPLIT, SPLIT_PAGES};
use super::weights::units;
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Ops {
    pub scatter_inputs: Kernel<ScatterInputsArgs>,
    pub embed: Kernel<EmbedArgs>,
    pub rmsnorm: Kernel<RowArgs>,
    pub scale_rows: Kernel<RowArgs>,
    pub glu_rows: Kernel<RowArgs>,
    /// Both kernels for outputs of a clamped unit.
    pub scale_bounded_rows: Kernel<RowArgs>,
    pub glu_bounded_rows: Kernel<RowArgs>,
    /// For outputs of attention with gates, and for those of a delta net.
    pub gate_bounded_rows: Kernel<GatedRowsArgs>,
    pub gate_normal_rows: Kernel<GatedRowsArgs>,
    pub add_norm: Kernel<RowArgs>,
    pub rope_kv: Kernel<RopeRowsArgs>,
    /// Kernels of delta nets, if the model has any.
    pub delta_nets: Option<DeltaNets>,
    pub attention_together: Kernel<AttentionArgs>,
    /// Threads of a block of `attention_together`.
    pub together_threads: u32,
    /// Dynamic shared memory of such a block.
    pub together_shared_bytes: u32,
    pub attention_split: Kernel<AttentionArgs>,
    /// Shared memory of a block of `attention_split`.
    pub split_shared_bytes: u32,
    pub attention_merge: Kernel<MergeArgs>,
    /// Kernel for Hopper, for supported head sizes.
    pub attention_wide: Option<Kernel<AttentionArgs>>,
    /// The same for layers with a window, if the model has any.
    pub attention_wide_near: Option<Kernel<AttentionArgs>>,
    /// Shared memory of a block of the kernel for Hopper.
    pub wide_shared_bytes: u32,
    pub argmax: Kernel<ArgmaxArgs>,
}

impl Ops {
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for one.
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
            // Large heads exceed the registers of a warp.
            let together_shared_bytes = match head_dim < LARGE_HEAD {
                true => 0,
                false => split_shared_bytes,
            };
            let attention_together: Kernel<AttentionArgs> = module
                .kernel(&format!("attention_together_{head_dim}"))?
                .overlapping();
            attention_together.allow_shared(together_shared_bytes)?;
            let has_wide = context.has_wgmma() && WIDE_HEAD_DIMS.contains(&head_dim);
            let wide_shared_bytes = wide_shared_bytes(head_dim);
            let wide = |name: String| {
                let kernel: Kernel<AttentionArgs> = module.kernel(&name)?.overlapping();
                kernel.allow_shared(wide_shared_bytes)?;
                Ok::<_, Fault>(kernel)
            };
            let attention_wide = has_wide
                .then(|| wide(format!("attention_wide_{head_dim}")))
                .transpose()?;
            let attention_wide_near = (has_wide && config.positions.window.is_some())
                .then(|| wide(format!("attention_wide_near_{head_dim}")))
                .transpose()?;
            let delta_nets = config.delta_net.as_ref();
            let delta_nets = delta_nets.map(|net| DeltaNets::load(module, net));
            Ok(Self {
                delta_nets: delta_nets.transpose()?,
                scatter_inputs: module.kernel("scatter_inputs")?,
                embed: module.kernel("embed")?.overlapping(),
                rmsnorm: module.kernel("rmsnorm")?.overlapping(),
                scale_rows: module.kernel("scale_rows")?.overlapping(),
                glu_rows: module.kernel("glu_rows")?.overlapping(),
                scale_bounded_rows: module.kernel("scale_bounded_rows")?.overlapping(),
                glu_bounded_rows: module.kernel("glu_bounded_rows")?.overlapping(),
                add_norm: module.kernel("add_norm")?.overlapping(),
                gate_bounded_rows: module.kernel("gate_bounded_rows")?.overlapping(),
                gate_normal_rows: module.kernel("gate_normal_rows")?.overlapping(),
                rope_kv: module.kernel("rope_kv")?.overlapping(),
                attention_together,
                together_shared_bytes,
                together_threads: 32 * together_warps(head_dim),
                attention_split,
                split_shared_bytes,
                attention_merge: module.kernel("attention_merge")?.overlapping(),
                attention_wide,
                attention_wide_near,
                wide_shared_bytes,
                argmax: module.kernel("argmax")?.overlapping(),
            })
        }
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable(&mut self) {
        self.attention_wide = None;
        self.attention_wide_near = None;
    }
}

/// Threads of a block of `attention_wgmma.cu`.
pub const WIDE_THREADS: u32 = constant!("attention_wgmma.cu", WIDE_THREADS) as u32;
/// Supported head sizes of that kernel.
const WIDE_HEAD_DIMS: [usize; 3] = [64, 96, 128];

/// `WideMemory` there: queries, rings of keys and values of splits, and two barriers for each slot.
fn wide_shared_bytes(head_dim: usize) -> u32 {
    const ROWS: usize = constant!("attention_wgmma.cu", WIDE_ROWS);
    const STAGES: usize = constant!("attention_wgmma.cu", WIDE_STAGES);
    const BARRIER_BYTES: usize = constant!("bulk.cuh", BARRIER_BYTES);
    let halves = (ROWS + STAGES * 2 * SPLIT) * head_dim;
    (halves * size_of::<u16>() + STAGES * 4 * BARRIER_BYTES) as u32
}

/// Threads of a block that computes one split.
pub const SPLIT_THREADS: u32 = 32 * SPLIT_PAGES as u32;

/// Head size from which all warps of a block compute the same split.
const LARGE_HEAD: usize = constant!("attention.cu", LARGE_HEAD);

/// `SplitMemory` in attention_split.cuh: keys and values of the split, and the exchange of its warps.
pub fn split_shared_bytes(head_dim: usize) -> u32 {
    const EXCHANGE: usize = constant!("attention_split.cuh", SPLIT_EXCHANGE_BYTES);
    (2 * SPLIT * head_dim * size_of::<u16>() + EXCHANGE) as u32
}

/// Warps of a block that computes all splits: `ATTENTION` in attention.cu.
pub fn together_warps(head_dim: usize) -> u32 {
    if matches!(head_dim, 32 | 64) { 8 } else { 4 }
}

/// Chunks of a row that a warp of the kernels in norm.cu keeps in registers, and the maximum number of warps.
const KEPT_CHUNKS: usize = constant!("norm.cu", KEEP);
const MAX_ROW_WARPS: usize = constant!("norm.cu", MAX_ROW_THREADS) / 32;

/// One block for two rows: a warp for each chunk, or the maximum number of warps.
pub fn row_geometry(rows: usize, cols: usize) -> Geometry {
    let chunks = units(cols);
    let each = chunks.div_ceil(MAX_ROW_WARPS).min(KEPT_CHUNKS);
    let warps = chunks.div_ceil(each).min(MAX_ROW_WARPS);
    Geometry::line(rows.div_ceil(2), 32 * warps as u32)
}
