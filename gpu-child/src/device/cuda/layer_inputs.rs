//! Per-layer inputs ([`LayerInputs`](crate::model::LayerInputs)): made once for a step, and added by each layer
//! behind its feed-forward part ([`LayerInput`](crate::model::LayerInput)).
//!
//! ```text
//! rows of the table ──────────────────────┐
//! embedding ─► projection ─► ff ─► norm ──┴─► layer_inputs
//! x ─► gate ─► ff ─► times a layer's part of layer_inputs ─► output ─► ff ─► norm, added to x
//! ```

use super::board::Stage;
use super::kernels::{GatedRowsArgs, RowArgs};
use super::matmul::Output;
use super::plan::Plan;
use super::rank::Rank;
use super::weights::{LayerInput, Matrix, Vector};
use crate::model::LayerInputs;
use std::f32::consts::FRAC_1_SQRT_2;
use worker_orcd_ipc::Fault;

/// Makes the inputs of all layers from the tokens' embeddings.
pub fn make(
    rank: &Rank,
    plan: &Plan<'_>,
    inputs: &LayerInputs<Matrix, Vector>,
) -> Result<(), Fault> {
    let (rows, n_embd) = (plan.rows.len(), rank.config.n_embd);
    let (width, all) = (inputs.norm.len, inputs.table.cols);
    let buffers = &rank.scratch.buffers;
    let scale = (width as f32).sqrt();
    let table = rank.table_arguments(&inputs.table, buffers.layer_inputs, scale);
    rank.look_up(plan, &table)?;
    let stage = Stage::Qkv.of(0);
    let x = rank.row_arguments(rows, buffers.x, n_embd, stage);
    rank.make_input(&rank.ops.scale_rows, &x)?;
    let projected = Output::stored(buffers.ff, all);
    rank.project(rows, &[inputs.projection], n_embd, projected)?;
    // A row for each layer. The norm of values divided by the root of `n_embd` is that of the values with such an epsilon.
    let layers = rows * (all / width);
    let norm = RowArgs {
        weight: rank.weights.vector(&inputs.norm),
        plain: buffers.layer_inputs,
        eps: rank.config.norm_eps * n_embd as f32,
        factor: FRAC_1_SQRT_2,
        ..rank.row_arguments(layers, buffers.ff, width, stage)
    };
    rank.make_input(&rank.ops.add_norm, &norm)
}

/// Adds what a layer makes of its input to the residual stream, and multiplies the stream by the layer's factor.
pub fn add(rank: &Rank, rows: usize, index: usize, input: &LayerInput) -> Result<(), Fault> {
    let (n_embd, buffers) = (rank.config.n_embd, &rank.scratch.buffers);
    let width = input.gate.weight.rows;
    let stage = Stage::Down.of(index);
    let x = rank.row_arguments(rows, buffers.x, n_embd, stage);
    rank.make_input(&rank.ops.scale_rows, &x)?;
    let gate = Output::stored(buffers.ff, width);
    rank.project(rows, &[input.gate], n_embd, gate)?;
    let gated = GatedRowsArgs {
        rows: rank.row_arguments(rows, buffers.ff, width, stage),
        gates: buffers.layer_inputs.add(index * width),
        stride: (rank.config.n_layers * width) as i32,
        head_dim: width as i32,
        head_stride: width as i32,
        unused: 0,
    };
    rank.make_gated_input(&rank.ops.glu_apart_rows, &gated)?;
    let output = Output::stored(buffers.ff, n_embd);
    rank.project(rows, &[input.output], width, output)?;
    let factor = rank.output_scales[index];
    let next = Stage::Qkv.of(index + 1);
    rank.add_norm(rows, Some(&input.post_norm), factor, next)
}
