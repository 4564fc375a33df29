//! A layer's attention.
//!
//! ```text
//! norm ─► queries, keys, values ─► head norms, RoPE ─► attention over the pages ─► output, added to x
//!      └► gates ──────────────┐          └► pages           └► times the sigmoid of gates ┘
//! ```
//!
//! [`plan`] divides the rows of a step among blocks, and [`tables`] has what follows from a position alone.

pub mod plan;
pub mod tables;

use self::plan::{AttentionPlan, HeadKind, SPLIT, SPLIT_PAGES, TilePlan};
use super::board::Stage;
use super::buffer_allocator::{BufferAllocator, Input, InputBuffer, StepInput};
use super::context::Context;
use super::headers::{constant, layout};
use super::kernels::{GatedRowsArgs, Geometry, Kernel, Module, Row, RowArgs};
use super::matmul::Output;
use super::memory::DevicePtr;
use super::ops::RowKernel;
use super::plan::Plan;
use super::rank::Rank;
use super::scratch::Largest;
use super::weights::{Layer, Linear, Matrix, MixerBlock, Vector};
use crate::device::Batch;
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::common::layer_groups::{MAX_LAYER_GROUPS, MAX_UNEQUAL_GROUPS, Place};
use crate::model::{self, Heads, KvOrigin, ModelConfig};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::reference::rope::RopePairs;

/// Head sizes of the compiled attention.cu.
pub const HEAD_DIMS: [usize; 7] = [16, 32, 64, 96, 128, 256, 512];
/// Supported head sizes of attention_wgmma.cu.
const WIDE_HEAD_DIMS: [usize; 3] = [64, 96, 128];
/// Head size from which all warps of a block compute the same split.
const LARGE_HEAD: usize = constant!("kv.cuh", LARGE_HEAD);

/// Threads of a block of joint_norm.cu.
const JOINT_NORM_THREADS: u32 = constant!("joint_norm.cu", JOINT_NORM_THREADS) as u32;
/// Threads per block of rope_kv.cu.
const ROPE_THREADS: u32 = constant!("rope_kv.cu", ROPE_THREADS) as u32;
/// Threads of a block of attention_wgmma.cu.
const WIDE_THREADS: u32 = constant!("attention_wgmma.cu", WIDE_THREADS) as u32;
/// Threads of a block that computes one split.
const SPLIT_THREADS: u32 = 32 * SPLIT_PAGES as u32;
/// Threads and warps of a block that merges splits, a warp for each head of a row.
const MERGE_WARPS: usize = 4;
const MERGE_THREADS: u32 = 32 * MERGE_WARPS as u32;

/// Blocks per multiprocessor from which one block computes all splits of a prompt's unit, instead of a block per split.
const ENOUGH_BLOCKS: usize = 2;
/// Bytes of attention results of single splits: if they do not fit, one block computes all
/// splits.
const PARTIAL_BYTES: usize = 64 << 20;

pub type Attention = model::Attention<Matrix, Vector>;

layout! {
    pub struct KvArgs in "kv.cuh" {
        pages: DevicePtr<u16>,
        page_stride: u64,
        layer_offset: u64,
        tables: DevicePtr<i32>,
    }

    pub struct RopeArgs in "rope_kv.cuh" {
        qkv: DevicePtr<f32>,
        rows: DevicePtr<Row>,
        rope_table: DevicePtr<[f32; 2]>,
        q_norm: DevicePtr<f32>,
        k_norm: DevicePtr<f32>,
        temperature: DevicePtr<f32>,
        q: DevicePtr<u16>,
        kv: KvArgs,
        heads: i32,
        kv_heads: i32,
        head_dim: i32,
        dims: i32,
        half_offset: i32,
        eps: f32,
    }

    struct RopeRowsArgs in "rope_kv.cu" {
        rope: RopeArgs,
        per_query: i32,
        clears: i32,
        keys_are_values: i32,
        normalizes_values: i32,
    }

    struct JointNormArgs in "joint_norm.cu" {
        qkv: DevicePtr<f32>,
        q_norm: DevicePtr<f32>,
        k_norm: DevicePtr<f32>,
        stride: i32,
        q_width: i32,
        kv_width: i32,
        eps: f32,
    }

    #[derive(PartialEq, Eq)]
    pub struct Tile in "attention.cuh" {
        pub row0: i32,
        pub first: i32,
        pub count: i32,
        pub position0: i32,
        pub table: i32,
    }

    pub struct AttentionArgs in "attention.cuh" {
        q: DevicePtr<u16>,
        out: DevicePtr<f32>,
        partial: DevicePtr<f32>,
        tiles: DevicePtr<Tile>,
        kv: KvArgs,
        n_tiles: i32,
        heads: i32,
        kv_heads: i32,
        splits: i32,
        scale: f32,
        window: i32,
        sinks: DevicePtr<f32>,
    }

    struct MergeArgs in "attention.cu" {
        attention: AttentionArgs,
        rows: DevicePtr<Row>,
        n_rows: i32,
        head_dim: i32,
    }
}

// SAFETY: five `i32`.
unsafe impl Input for Tile {}

/// Refuses heads that the kernels do not support. `shared_bytes` is the maximum shared memory per block.
///
/// # Errors
/// A message that names them.
pub fn check(config: &ModelConfig, shared_bytes: u32) -> Result<(), String> {
    for Heads { dim, .. } in config.heads() {
        if !HEAD_DIMS.contains(&dim) {
            return Err(format!(
                "heads of {dim} values are not supported on CUDA; {HEAD_DIMS:?} are"
            ));
        }
        let needed = split_shared_bytes(dim);
        if needed > shared_bytes {
            return Err(format!(
                "heads of {dim} values take {needed} bytes of shared memory, and this card has {shared_bytes}"
            ));
        }
    }
    Ok(())
}

/// Kernels of a model's attention.
#[derive(Debug)]
pub struct AttentionKernels {
    joint_norm: Kernel<JointNormArgs>,
    rope_kv: Kernel<RopeRowsArgs>,
    /// Kernels for each kind of heads.
    heads: Vec<HeadKernels>,
    gate_rows: RowKernel<GatedRowsArgs>,
}

/// Kernels for heads of one size.
#[derive(Debug)]
struct HeadKernels {
    heads: Heads,
    together: Kernel<AttentionArgs>,
    /// Threads and dynamic shared memory of a block of `together`.
    together_threads: u32,
    together_shared_bytes: u32,
    split: Kernel<AttentionArgs>,
    /// Shared memory of a block of `split`.
    split_shared_bytes: u32,
    /// Adds the splits of a row.
    merge: Kernel<MergeArgs>,
    /// Kernel for Hopper, for supported head sizes.
    wide: Option<Kernel<AttentionArgs>>,
    /// The same for layers with a window, if the model has any.
    wide_sliding: Option<Kernel<AttentionArgs>>,
    /// Shared memory of a block of the kernels for Hopper.
    wide_shared_bytes: u32,
}

impl AttentionKernels {
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for one.
    pub fn load(context: &Context, module: &Module, config: &ModelConfig) -> Result<Self, Fault> {
        let has_windows = config.positions.window.is_some();
        let of_heads = |heads| HeadKernels::load(context, module, heads, has_windows);
        let heads: Result<Vec<_>, Fault> = config.heads().map(of_heads).collect();
        let has_largest = config.heads().any(|heads| heads.dim > LARGE_HEAD);
        let rope_kv = match has_largest || config.normalizes_values {
            true => "rope_kv_of_values",
            false => "rope_kv",
        };
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            Ok(Self {
                joint_norm: module.kernel("joint_norm")?.overlapping(),
                rope_kv: module.kernel(rope_kv)?.overlapping(),
                heads: heads?,
                gate_rows: RowKernel::load_bounded(module, "gate_bounded_rows")?,
            })
        }
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable(&mut self) {
        for kernels in &mut self.heads {
            kernels.wide = None;
            kernels.wide_sliding = None;
        }
    }

    /// Divides a batch for these kernels.
    ///
    /// # Panics
    /// If the batch violates its contract: a page table too short, or an empty sequence.
    #[must_use]
    pub fn plan(&self, rank: &Rank, batch: &Batch<'_>) -> AttentionPlan {
        let multiprocessors = rank.context.multiprocessors() as usize;
        let kinds = self.heads.iter().map(|kernels| HeadKind {
            heads: kernels.heads,
            wide_on: kernels.wide.is_some().then_some(multiprocessors),
        });
        AttentionPlan::new(batch, kinds, rank.kv.page_groups())
    }
}

impl HeadKernels {
    fn load(
        context: &Context,
        module: &Module,
        heads: Heads,
        has_windows: bool,
    ) -> Result<Self, Fault> {
        let head_dim = heads.dim;
        // SAFETY: each name's kernel takes the argument struct that it is bound to here, and waits
        // for what is in front of it.
        unsafe {
            let split_shared_bytes = split_shared_bytes(head_dim);
            let split: Kernel<AttentionArgs> = module
                .kernel(&format!("attention_split_{head_dim}"))?
                .overlapping();
            split.allow_shared(split_shared_bytes)?;
            // Large heads exceed the registers of a warp.
            let together_shared_bytes = match head_dim < LARGE_HEAD {
                true => 0,
                false => split_shared_bytes,
            };
            let together: Kernel<AttentionArgs> = module
                .kernel(&format!("attention_together_{head_dim}"))?
                .overlapping();
            together.allow_shared(together_shared_bytes)?;
            let merge = match head_dim > LARGE_HEAD {
                true => "attention_merge_largest",
                false => "attention_merge",
            };
            let has_wide = context.has_wgmma() && WIDE_HEAD_DIMS.contains(&head_dim);
            let wide_shared_bytes = wide_shared_bytes(head_dim);
            let wide = |name: String| {
                let kernel: Kernel<AttentionArgs> = module.kernel(&name)?.overlapping();
                kernel.allow_shared(wide_shared_bytes)?;
                Ok::<_, Fault>(kernel)
            };
            let wide_far = has_wide.then(|| wide(format!("attention_wide_{head_dim}")));
            let wide_sliding =
                (has_wide && has_windows).then(|| wide(format!("attention_wide_near_{head_dim}")));
            Ok(Self {
                heads,
                together,
                together_threads: 32 * together_warps(head_dim),
                together_shared_bytes,
                split,
                split_shared_bytes,
                merge: module.kernel(merge)?.overlapping(),
                wide: wide_far.transpose()?,
                wide_sliding: wide_sliding.transpose()?,
                wide_shared_bytes,
            })
        }
    }
}

/// `WideMemory` in attention_wgmma.cu: queries, rings of keys and values of splits, and two barriers for each slot.
fn wide_shared_bytes(head_dim: usize) -> u32 {
    const ROWS: usize = constant!("attention_wgmma.cu", WIDE_ROWS);
    const STAGES: usize = constant!("attention_wgmma.cu", WIDE_STAGES);
    const BARRIER_BYTES: usize = constant!("bulk.cuh", BARRIER_BYTES);
    let halves = (ROWS + STAGES * 2 * SPLIT) * head_dim;
    (halves * size_of::<u16>() + STAGES * 4 * BARRIER_BYTES) as u32
}

/// `SplitMemory` in attention_split.cuh: keys and values of the split, one or both at a time, and the exchange of its warps.
fn split_shared_bytes(head_dim: usize) -> u32 {
    const EXCHANGE: usize = constant!("attention_split.cuh", SPLIT_EXCHANGE_BYTES);
    const WHOLE_PAGES_HEAD: usize = constant!("attention_split.cuh", WHOLE_PAGES_HEAD);
    let halves = if head_dim > WHOLE_PAGES_HEAD { 1 } else { 2 };
    (halves * SPLIT * head_dim * size_of::<u16>() + EXCHANGE) as u32
}

/// Warps of a block that computes all splits: `ATTENTION` in attention.cu.
pub fn together_warps(head_dim: usize) -> u32 {
    if matches!(head_dim, 32 | 64) { 8 } else { 4 }
}

/// Width of projected queries, with their gates, keys and values. Values that are keys have room, too.
fn projected_width_of(config: &ModelConfig, heads: Heads) -> usize {
    config.queries_width_of(heads.width()) + 2 * heads.kv_width()
}

/// The same of the layers where it is largest.
#[must_use]
pub fn projected_width(config: &ModelConfig) -> usize {
    let widths = config.heads().map(|it| projected_width_of(config, it));
    widths.max().unwrap_or(0)
}

/// Width of all heads of queries, in the layers where it is largest.
#[must_use]
pub fn heads_width(config: &ModelConfig) -> usize {
    config.heads().map(|it| it.width()).max().unwrap_or(0)
}

/// Buffers of attention, besides those that all mixers share.
#[derive(Debug, Clone, Copy)]
pub struct AttentionBuffers {
    /// Rotated queries, `[tokens, heads, head_dim]`.
    q: DevicePtr<u16>,
    /// Results of single splits.
    partial: DevicePtr<f32>,
    /// Tiles of few rows, then wide ones, for each kind of heads.
    tiles: [InputBuffer<Tile>; MAX_HEAD_KINDS],
    /// Page tables of each group of layers.
    tables: [InputBuffer<i32>; MAX_GROUPS],
}

/// Kinds of heads: of layers with full attention, and of sliding-window layers.
const MAX_HEAD_KINDS: usize = 2;
const MAX_GROUPS: usize = MAX_UNEQUAL_GROUPS;
const _: () = assert!(MAX_LAYER_GROUPS <= MAX_GROUPS);
/// Inputs that attention adds to those of a step.
pub const INPUTS: usize = MAX_HEAD_KINDS + MAX_GROUPS;

impl AttentionBuffers {
    pub fn place(places: &mut BufferAllocator<'_>, config: &ModelConfig, largest: Largest) -> Self {
        let tokens = largest.tokens;
        let sequences = tokens.min(largest.sequences);
        let table = sequences * largest.sequence_tokens.div_ceil(PAGE_TOKENS);
        let mut kinds = config.heads();
        Self {
            q: places.buffer(tokens * heads_width(config)),
            partial: places.buffer(PARTIAL_BYTES / size_of::<f32>()),
            tiles: std::array::from_fn(|_| match kinds.next() {
                // A sequence of one token takes its own tile for each 16 heads of a group. Wide tiles are fewer.
                Some(heads) => places.input(tokens * heads.group().div_ceil(16) + 1),
                None => InputBuffer::NONE,
            }),
            tables: std::array::from_fn(|group| match group < largest.groups.attention {
                true => places.input(table),
                false => InputBuffer::NONE,
            }),
        }
    }

    /// # Panics
    /// If the batch is larger than announced.
    pub fn inputs<'a>(&self, plan: &'a AttentionPlan) -> impl Iterator<Item = StepInput<'a>> {
        let tiles = self.tiles.into_iter().zip(&plan.heads);
        let tiles = tiles.map(|(buffer, plan)| buffer.filled(&plan.tiles));
        let tables = self.tables.into_iter().zip(&plan.tables);
        tiles.chain(tables.map(|(buffer, table)| buffer.filled(table)))
    }
}

/// Sizes that determine the grids of attention's launches, beside the number of rows: of each kind of heads.
pub type AttentionGrids = [HeadGrids; MAX_HEAD_KINDS];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeadGrids {
    tiles: usize,
    /// Splits of the longest sequence; zero if one block computes all splits of a unit.
    splits: usize,
}

#[must_use]
pub fn grids(rank: &Rank, plan: &AttentionPlan) -> AttentionGrids {
    let mut grids = AttentionGrids::default();
    let kinds = rank.config.heads().zip(&plan.heads);
    for (grids, (heads, plan)) in grids.iter_mut().zip(kinds) {
        *grids = HeadGrids {
            tiles: plan.narrow_tiles,
            splits: match splits_over_blocks(rank, heads, plan) {
                true => plan.splits,
                false => 0,
            },
        };
    }
    grids
}

/// Attention of a layer.
///
/// # Panics
/// If the layer has another mixer.
pub fn attention_of(layer: &Layer) -> &Attention {
    layer.attention().expect("a layer with attention")
}

/// Matrices whose outputs bound those of attention: a mean of values. Values of an earlier layer have norms, which bound them.
#[must_use]
pub fn bounded(attention: &Attention) -> &[Linear] {
    match attention.has_kv() {
        true => &attention.qkv[2..],
        false => &[],
    }
}

/// Bound of values with a norm over each head, and so of attention's outputs.
#[must_use]
pub fn bound_of_normal_values(config: &ModelConfig, index: usize) -> Option<f32> {
    let head_dim = config.heads_of(index).dim as f32;
    config.normalizes_values.then(|| head_dim.sqrt())
}

/// Adds the output of a layer's attention to the residual stream of all rows.
///
/// # Errors
/// If a launch fails.
pub fn run(
    rank: &Rank,
    plan: &Plan<'_>,
    index: usize,
    (block, attention): (&MixerBlock, &Attention),
) -> Result<(), Fault> {
    let (config, shared) = (&rank.config, &rank.scratch.buffers.mixers);
    let (rows, heads) = (plan.rows.len(), config.heads_of(index));
    let width = heads.width();
    let norm = rank.norm_arguments(rows, &block.norm, Stage::Qkv.of(index));
    let projected_width = match attention.has_kv() {
        true => projected_width_of(config, heads),
        false => config.queries_width_of(width),
    };
    let qkv = Output::stored(shared.projected, projected_width);
    let linears = attention.projections();
    rank.make_and_project(&rank.ops.rmsnorm, norm, &[(linears, qkv)])?;
    if config.has_joint_norms {
        normalize_jointly(rank, rows, heads, attention)?;
    }
    rope_and_append_kv(rank, rows, index, attention)?;
    attend(rank, plan, index)?;
    let outputs = RowArgs {
        up: rank.powers.mixer(index).up(),
        ..rank.row_arguments(rows, shared.outputs, width, Stage::Output.of(index))
    };
    let post_norm = block.post_norm.as_ref();
    let (linears, output) = ([attention.output], rank.end_of_block(post_norm));
    if config.gates_attention {
        let kernel = &rank.mixers.attention.gate_rows;
        rank.make_gated_input(kernel, &gated_by_queries(rank, heads, outputs))?;
        rank.project(rows, &linears, width, output)?;
    } else {
        let kernel = &rank.ops.scale_bounded_rows;
        rank.make_and_project(kernel, outputs, &[(&linears, output)])?;
    }
    rank.add_norm(rows, post_norm, 1.0, Stage::GateUp.of(index))
}

/// Arguments for attention's output with the gates that follow the queries of each head.
fn gated_by_queries(rank: &Rank, heads: Heads, rows: RowArgs) -> GatedRowsArgs {
    let head_dim = heads.dim;
    GatedRowsArgs {
        rows,
        gates: rank.scratch.buffers.mixers.projected.add(head_dim),
        stride: projected_width_of(&rank.config, heads) as i32,
        head_dim: head_dim as i32,
        head_stride: 2 * head_dim as i32,
        unused: 0,
    }
}

/// The pages of a layer.
fn kv_arguments(rank: &Rank, index: usize) -> KvArgs {
    let kv = &rank.kv;
    let Place { group, index } = kv.place(index);
    let halves = kv.shape().page();
    KvArgs {
        pages: kv.arena().at(0, kv.pages() as usize * halves),
        page_stride: halves as u64,
        layer_offset: index as u64 * kv.layer_halves(group),
        tables: rank.scratch.buffers.mixers.attention.tables[group].on_device(),
    }
}

/// Normalizes queries and keys over all heads of a row.
fn normalize_jointly(
    rank: &Rank,
    rows: usize,
    heads: Heads,
    attention: &Attention,
) -> Result<(), Fault> {
    let norm = |vector: &Option<Vector>| rank.weights.optional_vector(vector.as_ref());
    let arguments = JointNormArgs {
        qkv: rank.scratch.buffers.mixers.projected,
        q_norm: norm(&attention.q_norm),
        k_norm: norm(&attention.k_norm),
        stride: projected_width_of(&rank.config, heads) as i32,
        q_width: heads.width() as i32,
        kv_width: heads.kv_width() as i32,
        eps: rank.config.norm_eps,
    };
    let geometry = Geometry {
        grid: [rows as u32, 2],
        ..Geometry::line(rows, JOINT_NORM_THREADS)
    };
    let kernel = &rank.mixers.attention.joint_norm;
    // SAFETY: a block for the queries of each projected row, and one for its keys; such layers have both norms.
    unsafe { kernel.launch(&rank.context, geometry, &arguments) }
}

/// Arguments of `rope_kv.cu`, with the optional head norms of a layer. There are only queries if the layer has keys and values of
/// an earlier one.
pub fn rope_arguments(rank: &Rank, index: usize, attention: Option<&Attention>) -> RopeArgs {
    let (config, buffers) = (&rank.config, &rank.scratch.buffers);
    let heads = config.heads_of(index);
    let place = config.rope_of(index);
    // Zero pairs rotate nothing.
    let rope = place.and_then(|place| config.ropes().nth(place));
    let dims = rope.map_or(0, |rope| rope.dims as i32);
    let norm = |vector: Option<&Vector>| match config.has_joint_norms {
        true => DevicePtr::NULL,
        false => rank.weights.optional_vector(vector),
    };
    RopeArgs {
        qkv: buffers.mixers.projected,
        rows: buffers.rows.on_device(),
        rope_table: rank.weights.tables.ropes[place.unwrap_or(0)],
        q_norm: norm(attention.and_then(|it| it.q_norm.as_ref())),
        k_norm: norm(attention.and_then(|it| it.k_norm.as_ref())),
        temperature: rank.weights.tables.temperature,
        q: buffers.mixers.attention.q,
        kv: kv_arguments(rank, index),
        heads: heads.count as i32,
        kv_heads: match attention {
            Some(attention) if !attention.has_kv() => 0,
            _ => heads.kv_count as i32,
        },
        head_dim: heads.dim as i32,
        dims,
        half_offset: i32::from(config.rope.pairs == RopePairs::HalfOffset),
        eps: config.norm_eps,
    }
}

/// Applies head norms and RoPE to queries and keys, and stores keys and values in the cache, if the layer has its own.
fn rope_and_append_kv(
    rank: &Rank,
    rows: usize,
    index: usize,
    attention: &Attention,
) -> Result<(), Fault> {
    let config = &rank.config;
    let arguments = RopeRowsArgs {
        rope: rope_arguments(rank, index, Some(attention)),
        per_query: if config.gates_attention { 2 } else { 1 },
        // A page may have held a state, whose floats are no numbers as halves.
        clears: i32::from(rank.kv.page_groups().states > 0),
        keys_are_values: i32::from(attention.kv == KvOrigin::KeysAreValues),
        normalizes_values: i32::from(config.normalizes_values),
    };
    let of_layer = config.heads_of(index);
    let heads = (arguments.rope.heads + 2 * arguments.rope.kv_heads) as usize;
    let norms = [&attention.q_norm, &attention.k_norm];
    let has_norms = !config.has_joint_norms && norms.iter().any(|it| it.is_some());
    // A warp per head for heads with norms, else a thread per pair of columns.
    let threads = match config.normalizes_values || has_norms {
        true => 32 * heads,
        false => heads * of_layer.dim / 2,
    };
    let geometry = Geometry {
        grid: [rows as u32, (threads as u32).div_ceil(ROPE_THREADS)],
        ..Geometry::line(rows, ROPE_THREADS)
    };
    let kernel = &rank.mixers.attention.rope_kv;
    // SAFETY: positions are inside the RoPE table and their pages inside the arena: the
    // scheduler serves no longer sequences and hands out no other pages.
    unsafe { kernel.launch(&rank.context, geometry, &arguments) }
}

/// Computes attention of all rows.
fn attend(rank: &Rank, step: &Plan<'_>, index: usize) -> Result<(), Fault> {
    let place = rank.config.heads_place(index);
    let kernels = &rank.mixers.attention.heads[place];
    let (heads, plan) = (kernels.heads, &step.mixers.attention.heads[place]);
    wide_attention(rank, kernels, plan, index)?;
    let units = plan.narrow_tiles * heads.kv_count;
    let arguments = attention_arguments(rank, plan, index);
    let launch = |kernel: &Kernel<AttentionArgs>, geometry: Geometry| {
        // SAFETY: a block a unit, or a split of one; tiles name rows of this batch and tables that
        // cover them.
        unsafe { kernel.launch(&rank.context, geometry, &arguments) }
    };
    if !splits_over_blocks(rank, heads, plan) {
        let geometry = Geometry {
            shared_bytes: kernels.together_shared_bytes,
            ..Geometry::line(units, kernels.together_threads)
        };
        return launch(&kernels.together, geometry);
    }
    let geometry = Geometry {
        shared_bytes: kernels.split_shared_bytes,
        ..Geometry::line(units * plan.splits, SPLIT_THREADS)
    };
    launch(&kernels.split, geometry)?;
    if plan.splits == 1 {
        return Ok(());
    }
    let rows = plan.narrow.rows;
    let merge = MergeArgs {
        attention: arguments,
        rows: rank.scratch.buffers.rows.on_device(),
        n_rows: rows as i32,
        head_dim: heads.dim as i32,
    };
    let blocks = (rows * heads.count).div_ceil(MERGE_WARPS);
    let geometry = Geometry::line(blocks, MERGE_THREADS);
    // SAFETY: a warp a head of a row; every split that its position sees was just written.
    unsafe { kernels.merge.launch(&rank.context, geometry, &merge) }
}

/// Computes attention of the sequences in wide tiles.
fn wide_attention(
    rank: &Rank,
    kernels: &HeadKernels,
    plan: &TilePlan,
    index: usize,
) -> Result<(), Fault> {
    let kernel = match rank.config.positions.window_of(index) {
        None => &kernels.wide,
        Some(_) => &kernels.wide_sliding,
    };
    let Some(kernel) = kernel else {
        return Ok(());
    };
    let narrow = attention_arguments(rank, plan, index);
    let arguments = AttentionArgs {
        tiles: narrow.tiles.add(plan.narrow_tiles),
        n_tiles: plan.wide_tiles().len() as i32,
        ..narrow
    };
    let blocks = plan.wide_tiles().len() * kernels.heads.kv_count;
    let geometry = Geometry {
        shared_bytes: kernels.wide_shared_bytes,
        ..Geometry::line(blocks, WIDE_THREADS)
    };
    // SAFETY: a block a unit of tiles that name rows of this batch and tables that cover them.
    unsafe { kernel.launch(&rank.context, geometry, &arguments) }
}

/// Decoding sequences, and a step of little work: one block per split. Results are by row of the batch, so these
/// sequences must come first.
fn splits_over_blocks(rank: &Rank, heads: Heads, plan: &TilePlan) -> bool {
    let narrow = plan.narrow;
    let units = plan.narrow_tiles * heads.kv_count;
    let few = units < ENOUGH_BLOCKS * rank.context.multiprocessors() as usize;
    let results = narrow.rows * heads.count * plan.splits;
    (narrow.decode() || few)
        && narrow.come_first()
        && results * (heads.dim + 2) * size_of::<f32>() <= PARTIAL_BYTES
}

/// Arguments for the tiles of few rows.
pub fn attention_arguments(rank: &Rank, plan: &TilePlan, index: usize) -> AttentionArgs {
    let (config, shared) = (&rank.config, &rank.scratch.buffers.mixers);
    let heads = config.heads_of(index);
    let buffers = &shared.attention;
    let scale = std::f64::consts::LOG2_E * config.attention_scale;
    let window = config.positions.window_of(index);
    let sinks = &attention_of(&rank.weights.tensors.layers[index]).sinks;
    AttentionArgs {
        q: buffers.q,
        out: shared.outputs,
        partial: buffers.partial,
        tiles: buffers.tiles[config.heads_place(index)].on_device(),
        kv: kv_arguments(rank, index),
        n_tiles: plan.narrow_tiles as i32,
        heads: heads.count as i32,
        kv_heads: heads.kv_count as i32,
        splits: plan.splits as i32,
        scale: scale as f32,
        window: window.map_or(i32::MAX, |it| i32::try_from(it).unwrap_or(i32::MAX)),
        sinks: rank.weights.optional_vector(sinks.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiny_model::tiny_model;
    use crate::model::{Architecture, gguf};

    fn config(architecture: Architecture, head_dim: usize) -> ModelConfig {
        let bytes = tiny_model(architecture).build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        ModelConfig { head_dim, ..config }
    }

    #[test]
    fn heads_without_a_kernel_are_refused_by_name() {
        // Shared memory per block of an H200, and of an RTX 4090.
        let [h200, rtx4090] = [227 << 10, 99 << 10];
        let llama = |head_dim| check(&config(Architecture::Llama, head_dim), h200);
        assert_eq!(llama(64), Ok(()));
        let refused = llama(48).expect_err("no kernel");
        let expected = "heads of 48 values are not supported on CUDA";
        assert!(refused.contains(expected), "{refused}");

        let gemma = config(Architecture::Gemma3, 256);
        assert_eq!(check(&gemma, h200), Ok(()));
        let refused = check(&gemma, rtx4090).expect_err("too little");
        assert!(refused.contains("heads of 256"), "{refused}");
    }
}
