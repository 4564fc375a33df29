//! Per-layer inputs ([`LayerInputs`](crate::model::LayerInputs)): made once for a step, and added by each layer
//! behind its feed-forward part ([`LayerInput`](crate::model::LayerInput)).

use super::forward::{FEW_TOKENS, Forward};
use super::linear::{Epilogue, FEW_ROWS, Share};
use super::plan::Plan;
use super::pool::Disjoint;
use super::scratch::Scratch;
use super::weights::{LayerInput, LayerInputs};
use std::f32::consts::FRAC_1_SQRT_2;
use worker_orcd_kernels::cpu::{ROWS, glu, rmsnorm};

/// Makes the inputs of all layers. `scratch.x` has the tokens' embeddings.
pub fn make(forward: &Forward<'_>, plan: &Plan<'_>, inputs: &LayerInputs, scratch: &mut Scratch) {
    let (n_embd, tokens) = (forward.config.n_embd, plan.rows.len());
    let width = inputs.norm.len;
    let x = &scratch.x[..tokens * n_embd];
    let projection = [forward.projection(&inputs.projection, 0)];
    let all = projection[0].rows;
    let out = &mut scratch.layer_inputs[..tokens * all];
    let device = forward.device;
    device.quantize(x, n_embd, &[projection[0].weight], &mut scratch.quantized);
    let input = scratch.quantized.view(x, n_embd);
    let rows = Share::all(tokens);
    device.project(&input, &rows, &projection, out, Epilogue::Store);

    let table = forward.weights.matrix(&inputs.table);
    let weight = forward.weights.vector(&inputs.norm);
    let (isa, eps) = (device.isa, forward.config.norm_eps);
    let of_projection = 1.0 / (n_embd as f32).sqrt();
    let of_table = (width as f32).sqrt();
    let out = Disjoint::new(out);
    device.for_tokens(tokens, FEW_TOKENS, &|t| {
        // SAFETY: token t's own row.
        let out = unsafe { out.part(t * all, all) };
        let mut of_token = vec![0.0; all];
        table.dequantize_row(plan.rows[t].token, &mut of_token);
        out.iter_mut().for_each(|value| *value *= of_projection);
        let mut normalized = vec![0.0; width];
        let layers = out.chunks_exact_mut(width);
        for (out, of_token) in layers.zip(of_token.chunks_exact(width)) {
            rmsnorm(isa, out, weight, eps, &mut normalized);
            for ((out, normal), of_token) in out.iter_mut().zip(&normalized).zip(of_token) {
                *out = (normal + of_token * of_table) * FRAC_1_SQRT_2;
            }
        }
    });
}

/// Adds what a layer makes of its input to the residual stream.
pub fn add(
    forward: &Forward<'_>,
    tokens: usize,
    (index, layer): (usize, &LayerInput),
    scratch: &mut Scratch,
) {
    let n_embd = forward.config.n_embd;
    let Scratch {
        x,
        ff,
        norm,
        layer_inputs,
        quantized,
        ..
    } = scratch;
    let (x, norm) = (&mut x[..tokens * n_embd], &mut norm[..tokens * n_embd]);
    let gate = [forward.projection(&layer.gate, 0)];
    let width = gate[0].rows;
    let ff = &mut ff[..tokens * width];
    let device = forward.device;
    device.quantize(x, n_embd, &[gate[0].weight], quantized);
    let input = quantized.view(x, n_embd);
    device.project(&input, &Share::all(tokens), &gate, ff, Epilogue::Store);

    let all = forward.config.n_layers * width;
    let (isa, activation) = (device.isa, forward.config.activation);
    let layer_inputs = &*layer_inputs;
    let of_all = Disjoint::new(ff);
    device.for_tokens(tokens, FEW_ROWS, &|t| {
        // SAFETY: token t's own row.
        let gate = unsafe { of_all.part(t * width, width) };
        let up = &layer_inputs[t * all + index * width..][..width];
        let (gate, up) = (gate.as_chunks_mut::<ROWS>().0, up.as_chunks::<ROWS>().0);
        glu(activation, isa, gate, up);
    });
    let output = [forward.projection(&layer.output, 0)];
    device.quantize(ff, width, &[output[0].weight], quantized);
    let input = quantized.view(ff, width);
    forward.add_to_stream(&input, &output, Some(&layer.post_norm), norm, x);
}
