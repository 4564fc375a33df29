//! A layer's gated delta net in place of attention.
//!
//! ```text
//! norm ─► queries, keys, values ─► convolution ─► recurrence ─► norm of heads, gates ─► output, added to x
//!      └► gates, strengths, decays ────────────────┘              ┘
//! ```
//!
//! States stay in their pages ([`states`](super::states)); `kernels/cuda/delta_net.cuh` defines their contents and the order
//! of additions. Long prompts have kernels of their own (`delta_prompt.cu`), with the same bits.

use super::board::Stage;
use super::buffer_allocator::BufferAllocator;
use super::context::Context;
use super::headers::{constant, layout};
use super::kernels::{GatedRowsArgs, Geometry, Kernel, Module, Row, RowArgs};
use super::matmul::Output;
use super::memory::DevicePtr;
use super::ops::RowKernel;
use super::plan::Plan;
use super::rank::Rank;
use super::scratch::Largest;
use super::states::{StatePages, StateRow, StateSequence, state_pages};
use super::weights::{Matrix, MixerBlock, Vector};
use crate::device::common::kv::PAGE_TOKENS;
use crate::model::{self, DeltaNetConfig};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::reference::delta_net::HeadOrder;

/// Head sizes of the compiled delta_net.cu and delta_prompt.cu.
pub const HEAD_DIMS: [usize; 4] = [16, 32, 64, 128];
/// Heads of which a block computes the convolution.
const INPUT_WARPS: usize = constant!("delta_net.cu", DELTA_INPUT_WARPS);
/// Maximum number of columns of a block, and threads per column.
const COLUMNS: usize = constant!("delta_net.cu", DELTA_COLUMNS);
const LANES: usize = constant!("delta_net.cuh", DELTA_LANES);
/// The same of a long prompt, and columns of a thread.
const PROMPT_COLUMNS: usize = constant!("delta_prompt.cu", PROMPT_COLUMNS);
const PROMPT_EACH: usize = constant!("delta_prompt.cu", PROMPT_EACH);
/// Rows that a warp of the products of a long prompt multiplies.
const PRODUCT_SLOTS: usize = constant!("delta_prompt.cu", PRODUCT_SLOTS);

// A page holds a block of positions.
const _: () = assert!(PAGE_TOKENS == BLOCK);

pub type DeltaNet = model::DeltaNet<Matrix, Vector>;

layout! {
    struct DeltaArgs in "delta_net.cuh" {
        projected: DevicePtr<f32>,
        rows: DevicePtr<Row>,
        state_rows: DevicePtr<StateRow>,
        sequences: DevicePtr<StateSequence>,
        conv: DevicePtr<f32>,
        dt: DevicePtr<f32>,
        decay: DevicePtr<f32>,
        mixed: DevicePtr<f32>,
        products: DevicePtr<f32>,
        out: DevicePtr<f32>,
        states: StatePages,
        stride: i32,
        head_dim: i32,
        k_heads: i32,
        v_heads: i32,
        kernel: i32,
        grouped: i32,
        eps: f32,
        pieces: i32,
    }
}

/// Refuses heads without a kernel.
///
/// # Errors
/// A message that names them.
pub fn check(config: &DeltaNetConfig) -> Result<(), String> {
    let head_dim = config.head_dim;
    match HEAD_DIMS.contains(&head_dim) {
        true => Ok(()),
        false => Err(format!(
            "delta nets with heads of {head_dim} values are not supported on CUDA; {HEAD_DIMS:?} are"
        )),
    }
}

/// Kernels of a model's delta nets.
#[derive(Debug)]
pub struct DeltaNetKernels {
    inputs: Kernel<DeltaArgs>,
    net: Kernel<DeltaArgs>,
    /// Kernels of long prompts: products of keys and queries, and the rest.
    products: Kernel<DeltaArgs>,
    prompt: Kernel<DeltaArgs>,
    gate_rows: RowKernel<GatedRowsArgs>,
}

impl DeltaNetKernels {
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for it.
    pub fn load(module: &Module, config: &DeltaNetConfig) -> Result<Self, Fault> {
        let head_dim = config.head_dim;
        // SAFETY: the kernels of delta_net.cu and delta_prompt.cu take DeltaArgs, that of gated_rows.cu takes GatedRowsArgs,
        // and all wait.
        let kernels = unsafe {
            Self {
                inputs: module.kernel("delta_inputs")?.overlapping(),
                net: module
                    .kernel(&format!("delta_net_{head_dim}"))?
                    .overlapping(),
                products: module
                    .kernel(&format!("delta_products_{head_dim}"))?
                    .overlapping(),
                prompt: module
                    .kernel(&format!("delta_prompt_{head_dim}"))?
                    .overlapping(),
                gate_rows: RowKernel::load(module, "gate_normal_rows")?,
            }
        };
        kernels.net.allow_shared(shared_bytes(head_dim))?;
        kernels.prompt.allow_shared(prompt_shared_bytes(head_dim))?;
        Ok(kernels)
    }

    /// Computes the rows of a batch in one layer: convolution, recurrence, and outputs before their norm.
    ///
    /// # Errors
    /// If a launch fails.
    ///
    /// # Safety
    /// The arguments are those of `rows` rows of `sequences` sequences, whose pages are in the arena.
    unsafe fn run(
        &self,
        context: &Context,
        (rows, sequences): (usize, usize),
        arguments: &DeltaArgs,
    ) -> Result<(), Fault> {
        let (k_heads, v_heads) = (arguments.k_heads as usize, arguments.v_heads as usize);
        let head_dim = arguments.head_dim as usize;
        let heads = 2 * k_heads + v_heads;
        let inputs = Geometry {
            grid: [rows as u32, heads.div_ceil(INPUT_WARPS) as u32],
            ..Geometry::line(rows, 32 * INPUT_WARPS as u32)
        };
        let of_columns = |columns: usize, threads: usize, shared_bytes: u32| Geometry {
            shared_bytes,
            ..Geometry::line(
                sequences * v_heads * (head_dim / columns),
                (columns * threads) as u32,
            )
        };
        let columns = head_dim.min(COLUMNS);
        let net = of_columns(columns, LANES, shared_bytes(head_dim));
        let pieces = arguments.pieces as usize;
        let products = Geometry {
            grid: [(sequences * pieces) as u32, k_heads as u32],
            shared_bytes: products_shared_bytes(head_dim),
            ..Geometry::line(1, (32 * BLOCK / PRODUCT_SLOTS) as u32)
        };
        let columns = head_dim.min(PROMPT_COLUMNS);
        let shared_bytes = prompt_shared_bytes(head_dim);
        let prompt = of_columns(columns, LANES / PROMPT_EACH, shared_bytes);
        // SAFETY: a warp for each head of a row; then a block for each part of a head of a sequence, in a long prompt behind
        // one for each head of keys of a block of positions. The rest is the caller's promise.
        unsafe {
            self.inputs.launch(context, inputs, arguments)?;
            if pieces == 0 {
                return self.net.launch(context, net, arguments);
            }
            self.products.launch(context, products, arguments)?;
            self.prompt.launch(context, prompt, arguments)
        }
    }
}

const KEY_PAD: usize = constant!("delta_net.cuh", KEY_PAD);

/// `DeltaMemory` in delta_net.cu.
fn shared_bytes(head_dim: usize) -> u32 {
    const UPDATE_PAD: usize = constant!("delta_net.cu", UPDATE_PAD);
    const PRODUCT_PAD: usize = constant!("delta_net.cu", PRODUCT_PAD);
    const LISTS: usize = constant!("delta_net.cu", DELTA_LISTS);
    let keys_and_queries = 2 * (head_dim + KEY_PAD);
    let updates = head_dim.min(COLUMNS) + UPDATE_PAD;
    let products = 2 * (BLOCK + PRODUCT_PAD);
    (BLOCK * (keys_and_queries + updates + products + LISTS) * size_of::<f32>()) as u32
}

/// `ProductsMemory` in delta_prompt.cu.
fn products_shared_bytes(head_dim: usize) -> u32 {
    (BLOCK * 2 * (head_dim + KEY_PAD) * size_of::<f32>()) as u32
}

/// `PromptMemory` in delta_prompt.cu, for each stage.
fn prompt_shared_bytes(head_dim: usize) -> u32 {
    const VALUE_PAD: usize = constant!("delta_prompt.cu", VALUE_PAD);
    const PRODUCTS_PAD: usize = constant!("delta_prompt.cu", PRODUCTS_PAD);
    const STAGES: usize = constant!("delta_prompt.cu", PROMPT_STAGES);
    let keys_and_queries = 2 * (head_dim + KEY_PAD);
    let values = head_dim.min(PROMPT_COLUMNS) + VALUE_PAD;
    let products = 2 * (BLOCK + PRODUCTS_PAD);
    (STAGES * BLOCK * (keys_and_queries + values + products) * size_of::<f32>()) as u32
}

/// Floats of a projected row: whole groups of four, as `gated_rows.cu` reads its gates.
pub fn projected_width(config: &DeltaNetConfig) -> usize {
    config.projected_width().next_multiple_of(4)
}

/// Buffers of delta nets, besides those that all mixers share.
#[derive(Debug, Clone, Copy)]
pub struct DeltaNetBuffers {
    /// Queries, keys and values behind the convolution.
    mixed: DevicePtr<f32>,
    /// Products of the keys and queries of long prompts.
    products: DevicePtr<f32>,
}

impl DeltaNetBuffers {
    pub fn place(
        places: &mut BufferAllocator<'_>,
        config: &DeltaNetConfig,
        largest: Largest,
    ) -> Self {
        let tokens = largest.tokens;
        Self {
            mixed: places.buffer(tokens * config.channels()),
            products: places.buffer(tokens * config.v_heads * 2 * BLOCK),
        }
    }
}

/// Adds the output of a layer's delta net to the residual stream of all rows.
///
/// # Errors
/// If a launch fails.
///
/// # Panics
/// If the model has no delta nets.
pub fn run(
    rank: &Rank,
    plan: &Plan<'_>,
    index: usize,
    (block, net): (&MixerBlock, &DeltaNet),
) -> Result<(), Fault> {
    let config = rank.config.delta_net().expect("delta nets");
    let kernels = rank.mixers.delta_nets.as_ref();
    let kernels = kernels.expect("kernels of delta nets");
    let (rows, shared) = (plan.rows.len(), &rank.scratch.buffers.mixers);
    let pieces = plan.mixers.states.pieces();
    let arguments = arguments_of(rank, config, index, net, pieces);

    let stride = arguments.stride as usize;
    let behind_gates = config.channels() + config.v_width();
    let [channels, rest] =
        [0, behind_gates].map(|at| Output::stored(shared.projected.add(at), stride));
    let strengths: Vec<_> = std::iter::once(net.beta).chain(net.alpha).collect();
    let norm = rank.norm_arguments(rows, &block.norm, Stage::Qkv.of(index));
    rank.make_and_project(
        &rank.ops.rmsnorm,
        norm,
        &[(&[net.qkv, net.gate], channels), (&strengths, rest)],
    )?;
    // SAFETY: the plan's rows and sequences were copied to the device; the scheduler hands out no pages outside the
    // arena, and that of a position which is written to one sequence only.
    unsafe {
        let counts = (rows, plan.mixers.states.sequences.len());
        kernels.run(&rank.context, counts, &arguments)?;
    }
    let v_width = config.v_width();
    let gated = GatedRowsArgs {
        rows: RowArgs {
            weight: rank.weights.vector(&net.norm),
            ..rank.row_arguments(rows, shared.outputs, v_width, Stage::Output.of(index))
        },
        gates: shared.projected.add(config.channels()),
        stride: arguments.stride,
        head_dim: arguments.head_dim,
        head_stride: arguments.head_dim,
        unused: 0,
    };
    rank.make_gated_input(&kernels.gate_rows, &gated)?;
    let post_norm = block.post_norm.as_ref();
    let output = rank.end_of_block(post_norm);
    rank.project(rows, &[net.output], v_width, output)?;
    rank.add_norm(rows, post_norm, 1.0, Stage::GateUp.of(index))
}

fn arguments_of(
    rank: &Rank,
    config: &DeltaNetConfig,
    index: usize,
    net: &DeltaNet,
    pieces: usize,
) -> DeltaArgs {
    let shared = &rank.scratch.buffers.mixers;
    let buffers = shared.delta_nets.expect("buffers of delta nets");
    let states = shared.states.expect("buffers of states");
    DeltaArgs {
        projected: shared.projected,
        rows: rank.scratch.buffers.rows.on_device(),
        state_rows: states.rows.on_device(),
        sequences: states.sequences.on_device(),
        conv: rank.weights.vector(&net.conv),
        dt: rank.weights.vector(&net.dt),
        decay: rank.weights.vector(&net.decay),
        mixed: buffers.mixed,
        products: buffers.products,
        out: shared.outputs,
        states: state_pages(rank, index, states.pages.on_device()),
        stride: projected_width(config) as i32,
        head_dim: config.head_dim as i32,
        k_heads: config.k_heads as i32,
        v_heads: config.v_heads as i32,
        kernel: config.kernel as i32,
        grouped: match config.order {
            HeadOrder::Tiled => 0,
            HeadOrder::Grouped => (config.v_heads / config.k_heads) as i32,
        },
        eps: rank.config.norm_eps,
        pieces: pieces as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiny_model::tiny_model;
    use crate::model::{Architecture, ModelConfig, gguf};

    #[test]
    fn heads_without_a_kernel_are_refused_by_name() {
        for architecture in [
            Architecture::Qwen35,
            Architecture::Qwen35Moe,
            Architecture::Qwen3Next,
        ] {
            let bytes = tiny_model(architecture).build();
            let header = gguf::parse(&bytes).expect("a model");
            let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
            let net = *config.delta_net().expect("delta nets");
            assert_eq!(check(&net), Ok(()));
            let refused = check(&DeltaNetConfig {
                head_dim: 48,
                ..net
            });
            let refused = refused.expect_err("no kernel");
            let expected = "delta nets with heads of 48 values are not supported on CUDA";
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
