//! A layer's short convolution in place of attention.
//!
//! ```text
//! norm ─► gates of the input, of the output, and input ─► convolution ─► output, added to x
//! ```
//!
//! States stay in their pages ([`states`](super::states)); `kernels/cuda/short_conv.cu` defines their contents and the order of
//! additions.

use super::board::Stage;
use super::headers::layout;
use super::kernels::{Module, Row, RowArgs};
use super::matmul::Output;
use super::memory::DevicePtr;
use super::ops::RowKernel;
use super::plan::Plan;
use super::rank::Rank;
use super::states::{StatePages, StateRow, state_pages};
use super::weights::{Matrix, MixerBlock, Vector};
use crate::model::{self, ShortConvConfig};
use worker_orcd_ipc::Fault;

pub type ShortConv = model::ShortConv<Matrix, Vector>;

layout! {
    struct ShortConvArgs in "short_conv.cu" {
        rows: RowArgs,
        tokens: DevicePtr<Row>,
        state_rows: DevicePtr<StateRow>,
        conv: DevicePtr<f32>,
        states: StatePages,
        kernel: i32,
        channels: i32,
    }
}

// A lane of the kernel has eight columns, all of one unit.
const _: () = assert!(ShortConvConfig::UNIT.is_multiple_of(8));

/// Kernels of a model's short convolutions.
#[derive(Debug)]
pub struct ShortConvKernels {
    rows: RowKernel<ShortConvArgs>,
}

impl ShortConvKernels {
    /// # Errors
    /// If a kernel is missing.
    pub fn load(module: &Module) -> Result<Self, Fault> {
        Ok(Self {
            // SAFETY: the kernel of short_conv.cu takes ShortConvArgs, and waits.
            rows: unsafe { RowKernel::load(module, "short_conv_rows") }?,
        })
    }
}

/// Adds the output of a layer's short convolution to the residual stream of all rows.
///
/// # Errors
/// If a launch fails.
///
/// # Panics
/// If the model has no short convolutions.
pub fn run(
    rank: &Rank,
    plan: &Plan<'_>,
    index: usize,
    (block, conv): (&MixerBlock, &ShortConv),
) -> Result<(), Fault> {
    let config = rank.config.short_conv().expect("short convolutions");
    let kernels = rank.mixers.short_convs.as_ref();
    let kernels = kernels.expect("kernels of short convolutions");
    let (rows, shared) = (plan.rows.len(), &rank.scratch.buffers.mixers);
    let states = shared.states.expect("buffers of states");
    let stride = config.projected_width();
    let norm = rank.norm_arguments(rows, &block.norm, Stage::Qkv.of(index));
    let projected = Output::stored(shared.projected, stride);
    rank.make_and_project(&rank.ops.rmsnorm, norm, &[(&[conv.input], projected)])?;
    let stage = Stage::Output.of(index);
    let arguments = ShortConvArgs {
        rows: RowArgs {
            in_stride: stride as i32,
            ..rank.row_arguments(rows, shared.projected, config.width, stage)
        },
        tokens: rank.scratch.buffers.rows.on_device(),
        state_rows: states.rows.on_device(),
        conv: rank.weights.vector(&conv.conv),
        states: state_pages(rank, index, states.pages.on_device()),
        kernel: config.kernel as i32,
        channels: ShortConvConfig::UNIT as i32,
    };
    // SAFETY: the plan's rows were copied to the device, and their projections are there; the scheduler hands out no pages
    // outside the arena, and that of a position which is written to one sequence only.
    unsafe {
        let size = (rows, config.width);
        kernels.rows.launch(&rank.context, size, &arguments)?;
    }
    let post_norm = block.post_norm.as_ref();
    let output = rank.end_of_block(post_norm);
    rank.project(rows, &[conv.output], config.width, output)?;
    rank.add_norm(rows, post_norm, 1.0, Stage::GateUp.of(index))
}
