//! A layer of state spaces (Mamba-2) in place of attention.
//!
//! ```text
//! norm ─► gates, inputs, lengths of steps ─► convolution ─► recurrence ─► gates, norm of groups ─► output, added to x
//! ```
//!
//! States stay in their pages ([`states`](super::states)); `kernels/cuda/mamba.cu` defines their contents and the order of
//! additions.

use super::board::Stage;
use super::buffer_allocator::BufferAllocator;
use super::context::Context;
use super::headers::{constant, layout};
use super::kernels::{Geometry, Kernel, Module, Row};
use super::matmul::Output;
use super::memory::DevicePtr;
use super::plan::Plan;
use super::rank::Rank;
use super::scratch::Largest;
use super::states::{StatePages, StateRow, StateSequence, state_pages};
use super::weights::{Matrix, MixerBlock, Vector};
use crate::model::{self, MambaConfig};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::delta_net::BLOCK;

/// Sizes of states of the compiled mamba.cu.
pub const STATES: [usize; 4] = [32, 64, 128, 256];
const INPUT_THREADS: u32 = constant!("mamba.cu", MAMBA_INPUT_THREADS) as u32;
const NORM_THREADS: u32 = constant!("mamba.cu", MAMBA_NORM_THREADS) as u32;
/// Columns of a head that a block has, and threads of a column.
const COLUMNS: usize = constant!("mamba.cu", SCAN_COLUMNS);
const LANES: usize = constant!("mamba.cu", SCAN_LANES);

pub type Mamba = model::Mamba<Matrix, Vector>;

layout! {
    struct MambaArgs in "mamba.cu" {
        projected: DevicePtr<f32>,
        rows: DevicePtr<Row>,
        state_rows: DevicePtr<StateRow>,
        sequences: DevicePtr<StateSequence>,
        conv: DevicePtr<f32>,
        conv_bias: DevicePtr<f32>,
        dt: DevicePtr<f32>,
        decay: DevicePtr<f32>,
        direct: DevicePtr<f32>,
        norm: DevicePtr<f32>,
        mixed: DevicePtr<f32>,
        out: DevicePtr<f32>,
        states: StatePages,
        stride: i32,
        state: i32,
        head_dim: i32,
        heads: i32,
        groups: i32,
        kernel: i32,
        unit_heads: i32,
        eps: f32,
    }
}

/// Refuses states without a kernel.
///
/// # Errors
/// A message that names them.
pub fn check(config: &MambaConfig) -> Result<(), String> {
    let state = config.state;
    match STATES.contains(&state) {
        true => Ok(()),
        false => Err(format!(
            "states of {state} values are not supported on CUDA; {STATES:?} are"
        )),
    }
}

/// Kernels of a model's state-space layers.
#[derive(Debug)]
pub struct MambaKernels {
    inputs: Kernel<MambaArgs>,
    scan: Kernel<MambaArgs>,
    norm: Kernel<MambaArgs>,
}

impl MambaKernels {
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for it.
    pub fn load(module: &Module, config: &MambaConfig) -> Result<Self, Fault> {
        let state = config.state;
        // SAFETY: the kernels of mamba.cu take MambaArgs, and wait.
        let kernels = unsafe {
            Self {
                inputs: module.kernel("mamba_inputs")?.overlapping(),
                scan: module.kernel(&format!("mamba_scan_{state}"))?.overlapping(),
                norm: module.kernel("mamba_norm")?.overlapping(),
            }
        };
        kernels.scan.allow_shared(shared_bytes(state))?;
        Ok(kernels)
    }

    /// Computes the rows of a batch in one layer: convolution, recurrence, gates and norms.
    ///
    /// # Errors
    /// If a launch fails.
    ///
    /// # Safety
    /// The arguments are those of `rows` rows of `sequences` sequences. Their pages are in the arena.
    unsafe fn run(
        &self,
        context: &Context,
        (rows, sequences): (usize, usize),
        config: &MambaConfig,
        arguments: &MambaArgs,
    ) -> Result<(), Fault> {
        let of_rows = |blocks: usize, threads: u32| Geometry {
            grid: [rows as u32, blocks as u32],
            ..Geometry::line(rows, threads)
        };
        let parts = config.head_dim.div_ceil(COLUMNS);
        let scan = Geometry {
            shared_bytes: shared_bytes(config.state),
            ..Geometry::line(sequences * config.heads * parts, (COLUMNS * LANES) as u32)
        };
        // SAFETY: a block for each unit of a row, for each part of a head of a sequence, and for each group of a row. The rest
        // is the caller's promise.
        unsafe {
            let inputs = of_rows(config.units(), INPUT_THREADS);
            self.inputs.launch(context, inputs, arguments)?;
            self.scan.launch(context, scan, arguments)?;
            let norm = of_rows(config.groups, NORM_THREADS);
            self.norm.launch(context, norm, arguments)
        }
    }
}

/// `ScanMemory` in mamba.cu.
fn shared_bytes(state: usize) -> u32 {
    const PAD: usize = constant!("mamba.cu", SCAN_PAD);
    const PRODUCT_PAD: usize = constant!("mamba.cu", SCAN_PRODUCT_PAD);
    const LISTS: usize = constant!("mamba.cu", SCAN_LISTS);
    let row = 2 * (state + PAD) + COLUMNS + BLOCK + PRODUCT_PAD + LISTS;
    (BLOCK * row * size_of::<f32>()) as u32
}

/// Floats of a projected row.
pub fn projected_width(config: &MambaConfig) -> usize {
    config.projected_width().next_multiple_of(4)
}

/// Buffers of state-space layers, besides those that all mixers share.
#[derive(Debug, Clone, Copy)]
pub struct MambaBuffers {
    /// Channels behind the convolution.
    mixed: DevicePtr<f32>,
}

impl MambaBuffers {
    pub fn place(places: &mut BufferAllocator<'_>, config: &MambaConfig, largest: Largest) -> Self {
        Self {
            mixed: places.buffer(largest.tokens * config.channels()),
        }
    }
}

/// Adds the output of a state-space layer to the residual stream of all rows.
///
/// # Errors
/// If a launch fails.
///
/// # Panics
/// If the model has no state-space layers.
pub fn run(
    rank: &Rank,
    plan: &Plan<'_>,
    index: usize,
    (block, mamba): (&MixerBlock, &Mamba),
) -> Result<(), Fault> {
    let config = rank.config.mamba().expect("state-space layers");
    let kernels = rank.mixers.mamba.as_ref();
    let kernels = kernels.expect("kernels of state-space layers");
    let (rows, shared) = (plan.rows.len(), &rank.scratch.buffers.mixers);
    let norm = rank.norm_arguments(rows, &block.norm, Stage::Qkv.of(index));
    let projected = Output::stored(shared.projected, projected_width(config));
    rank.make_and_project(&rank.ops.rmsnorm, norm, &[(&[mamba.input], projected)])?;
    let arguments = arguments_of(rank, config, index, mamba);
    // SAFETY: the plan's rows and sequences were copied to the device; the scheduler hands out no pages outside the
    // arena, and that of a position which is written to one sequence only.
    unsafe {
        let counts = (rows, plan.mixers.states.sequences.len());
        kernels.run(&rank.context, counts, config, &arguments)?;
    }
    let stage = Stage::Output.of(index);
    let outputs = rank.row_arguments(rows, shared.outputs, config.width(), stage);
    rank.make_input(&rank.ops.scale_rows, &outputs)?;
    let post_norm = block.post_norm.as_ref();
    let output = rank.end_of_block(post_norm);
    rank.project(rows, &[mamba.output], config.width(), output)?;
    rank.add_norm(rows, post_norm, 1.0, Stage::GateUp.of(index))
}

fn arguments_of(rank: &Rank, config: &MambaConfig, index: usize, mamba: &Mamba) -> MambaArgs {
    let shared = &rank.scratch.buffers.mixers;
    let buffers = shared.mamba.expect("buffers of state-space layers");
    let states = shared.states.expect("buffers of states");
    let vector = |vector: &Vector| rank.weights.vector(vector);
    MambaArgs {
        projected: shared.projected,
        rows: rank.scratch.buffers.rows.on_device(),
        state_rows: states.rows.on_device(),
        sequences: states.sequences.on_device(),
        conv: vector(&mamba.conv),
        conv_bias: mamba.conv_bias.as_ref().map_or(DevicePtr::NULL, vector),
        dt: vector(&mamba.dt),
        decay: vector(&mamba.decay),
        direct: vector(&mamba.direct),
        norm: vector(&mamba.norm),
        mixed: buffers.mixed,
        out: shared.outputs,
        states: state_pages(rank, index, states.pages.on_device()),
        stride: projected_width(config) as i32,
        state: config.state as i32,
        head_dim: config.head_dim as i32,
        heads: config.heads as i32,
        groups: config.groups as i32,
        kernel: config.kernel as i32,
        unit_heads: config.unit_heads() as i32,
        eps: config.eps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_without_a_kernel_are_refused_by_name() {
        let config = |state| MambaConfig {
            kernel: 4,
            state,
            head_dim: 64,
            heads: 8,
            groups: 1,
            eps: 1e-5,
        };
        assert_eq!(check(&config(128)), Ok(()));
        let refused = check(&config(96)).expect_err("no kernel");
        let expected = "states of 96 values are not supported on CUDA";
        assert!(refused.contains(expected), "{refused}");
    }
}
