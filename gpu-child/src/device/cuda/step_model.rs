//! Which models the step in one launch supports ([`decode_step`](super::decode_step)), by which kernel, and the widths of
//! what its blocks publish.

use super::attention::attention_of;
use super::bounds::Powers;
use super::context::Context;
use super::headers::constant;
use super::mixers;
use super::shared_plan::{SUMS_BYTES, SharedPlan, UnitBytes};
use super::weights::{
    Experts, FeedForwardBlock, GatedUnit, Layer, Linear, MixerBlock, TILE_ROWS, UNIT, Weights,
    multiplied_as, segments, unit_bytes, units,
};
use crate::model::{FeedForward, ModelConfig, ModelWeights};
use worker_orcd_kernels::{Activation, TensorType, Weighing};

/// Maximum number of sequences in one step: with more, many launches are faster (`bench/results/cuda.md`).
pub const MAX_ROWS: usize = constant!("step_plan.cuh", STEP_ROWS);
/// Maximum number of columns of normalized rows.
const MAX_EMBD: usize = constant!("step_plan.cuh", MAX_UNITS) * UNIT;
/// Maximum number of experts, of experts of a row, and of units of an input: of what these make of a row together, and
/// of attention's output.
const MAX_EXPERTS: usize = 32 * constant!("step_experts.cuh", LANE_EXPERTS);
const MAX_USED: usize = constant!("step_experts.cuh", MAX_USED);
const MAX_INPUT_UNITS: usize = constant!("step_experts.cuh", MAX_INPUT_UNITS);

/// Name of the kernel for a model on a device, and bytes per unit of the model's matrices; `None` without a kernel.
pub fn kernel_of(
    context: &Context,
    config: &ModelConfig,
    weights: &Weights,
    powers: &Powers,
) -> Option<(String, UnitBytes)> {
    if !has_shape(config) {
        return None;
    }
    let ModelWeights { layers, output, .. } = &weights.tensors;
    let linears = || layers.iter().flat_map(Layer::linears).chain([output]);
    let types: Vec<TensorType> = linears()
        .map(|linear| multiplied_as(linear.weight.ty))
        .collect();
    let unit_bytes = unit_bytes_of(layers.iter().flat_map(streamed).chain([output]));
    let fits = || SharedPlan::of(config, 1, unit_bytes, context.shared_bytes() as usize).is_some();
    let table = multiplied_as(weights.tensors.token_embd().ty);
    let are_known = types.iter().chain([&table]).all(is_known);
    let has_powers =
        config.experts.is_some() || (0..layers.len()).all(|index| powers.unit(index).is_some());
    // With weights of F16 a mixture's chain of launches is faster behind long contexts (`bench/results/cuda.md`).
    let gains = config.experts.is_none() || !types.contains(&TensorType::F16);
    let is_taken = are_known && has_powers && gains && is_plain(config, layers);
    let has_kernel = context.has_bulk_copies() && is_taken && config.n_embd <= MAX_EMBD && fits();
    has_kernel.then(|| {
        let variant = variant(config, &types);
        let name = format!("decode_step_{}_{variant}", config.head_dim);
        (name, unit_bytes)
    })
}

/// There is a kernel for the shape of the model.
pub fn has_shape(config: &ModelConfig) -> bool {
    if !mixers::are_plain(config) || config.feed_forward_layers.is_some() {
        return false;
    }
    let Some(experts) = &config.experts else {
        return [32, 64, 96, 128].contains(&config.head_dim);
    };
    let of_unit = units(experts.n_ff);
    let is_by_sigmoid = matches!(
        experts.weighing,
        Weighing::Sigmoid | Weighing::RenormalizedSigmoid
    );
    [64, 128].contains(&config.head_dim)
        && experts.count <= MAX_EXPERTS
        && experts.used <= MAX_USED
        && experts.used * of_unit <= MAX_INPUT_UNITS
        && units(config.n_heads * config.head_dim) <= MAX_INPUT_UNITS
        && experts.shared_n_ff.is_none()
        && !experts.has_biases
        && !experts.has_choice_bias
        && experts.scale == 1.0
        && experts.first_layer == 0
        && !is_by_sigmoid
        // All of a pair of tiles of down.
        && experts.used * 2 * segments(of_unit) * TILE_ROWS * size_of::<f32>() <= SUMS_BYTES
}

/// Rows for which blocks have room to publish vectors.
pub fn published_rows(config: &ModelConfig) -> usize {
    match config.experts {
        None => MAX_ROWS,
        Some(_) => 1,
    }
}

/// Maximum number of sequences for a model. Single launches compute more rows as fast, and rows of wide models from fewer on:
/// from two where units of weights are smaller than those of Q8_0 on average (bench/results/cuda.md).
pub fn rows_of(config: &ModelConfig, of_units: UnitBytes) -> usize {
    const WIDE: usize = 2048;
    let is_small = of_units.mean < unit_bytes(TensorType::Q8_0);
    match config.experts {
        None if config.n_embd < WIDE => MAX_ROWS,
        None if is_small => 1,
        None => 2,
        Some(_) => 1,
    }
}

/// Columns of the gated unit's outputs: of one expert's, if there are experts.
pub fn unit_columns(config: &ModelConfig) -> usize {
    config.experts.as_ref().map_or(config.n_ff, |it| it.n_ff)
}

pub fn experts_of(layer: &Layer) -> Option<&Experts> {
    match &layer.feed_forward.as_ref()?.part {
        FeedForward::Dense(_) => None,
        FeedForward::Experts(experts) => Some(experts),
    }
}

/// The mixer and the feed-forward part of a layer.
///
/// # Panics
/// If it has one of them only.
pub fn blocks_of(layer: &Layer) -> (&MixerBlock, &FeedForwardBlock) {
    let blocks = layer.mixer.as_ref().zip(layer.feed_forward.as_ref());
    blocks.expect("a layer with a mixer and a feed-forward part")
}

/// The gated unit, or that of all experts.
pub fn unit_of(layer: &Layer) -> &GatedUnit {
    match &blocks_of(layer).1.part {
        FeedForward::Dense(unit) => unit,
        FeedForward::Experts(experts) => &experts.unit,
    }
}

/// Matrices whose units are equal in size: all but the router.
fn streamed(layer: &Layer) -> impl Iterator<Item = &Linear> {
    let unit = unit_of(layer);
    let attention = attention_of(layer);
    let of_attention = attention.qkv.iter().chain([&attention.output]);
    of_attention.chain(&unit.gate_up).chain([&unit.down])
}

/// The kernel supports everything that the model needs.
fn is_plain(config: &ModelConfig, layers: &[Layer]) -> bool {
    let has_post_norms = |layer: &Layer| {
        let (mixer, feed_forward) = blocks_of(layer);
        let norms = [&mixer.post_norm, &feed_forward.post_norm];
        norms.iter().any(|norm| norm.is_some())
    };
    config.positions.window.is_none()
        && !config.has_sinks
        && config.activation == Activation::Silu
        && config.embedding_scale == 1.0
        && !layers.iter().any(has_post_norms)
        && layers.iter().all(|layer| is_plain_unit(config, layer))
}

/// All layers have experts, or none has. A pair of tiles of gate and up is of one type, and the router is F32.
fn is_plain_unit(config: &ModelConfig, layer: &Layer) -> bool {
    let Some(experts) = experts_of(layer) else {
        return config.experts.is_none();
    };
    let [gate, up] = experts.unit.gate_up.each_ref().map(|it| it.weight.ty);
    config.experts.is_some()
        && multiplied_as(gate) == multiplied_as(up)
        && experts.router.weight.ty == TensorType::F32
}

/// The kernel supports the type, in products and in the embedding. These four would cost registers for all others.
fn is_known(ty: &TensorType) -> bool {
    use TensorType::{IQ4_NL, IQ4_XS, MXFP4, Q2_K};
    ![Q2_K, IQ4_NL, IQ4_XS, MXFP4].contains(ty)
}

/// Variant of the kernel: some types have smaller kernels of their own, for models with only
/// these types.
fn variant(config: &ModelConfig, types: &[TensorType]) -> &'static str {
    use TensorType::{F16, F32, Q4_1, Q5_1, Q6_K, Q8_0};
    let are_of = |known: &[TensorType]| types.iter().all(|ty| known.contains(ty));
    if config.experts.is_some() {
        return match () {
            () if are_of(&[F32, Q4_1, Q6_K]) => "experts_K",
            () if are_of(&[F32, Q8_0]) => "experts_Q8_0",
            () => "experts_any",
        };
    }
    let common = [64, 128].contains(&config.head_dim);
    let all_of = |known: &[TensorType]| common && are_of(known);
    match () {
        () if all_of(&[F16]) => "F16",
        () if all_of(&[Q8_0]) => "Q8_0",
        () if all_of(&[Q4_1, Q5_1, Q6_K]) => "K",
        () => "any",
    }
}

fn unit_bytes_of<'a>(linears: impl Iterator<Item = &'a Linear>) -> UnitBytes {
    let (mut largest, mut bytes, mut all) = (0, 0, 0);
    for matrix in linears.map(|linear| linear.weight) {
        let (unit, count) = (unit_bytes(matrix.ty), matrix.tiles() * units(matrix.cols));
        largest = largest.max(unit);
        bytes += count * unit;
        all += count;
    }
    let mean = bytes / all.max(1);
    UnitBytes { largest, mean }
}

/// Words per row of each published vector: x, queries with keys and values, attention's output,
/// ff, the router's logits, each in whole units.
pub fn widths(config: &ModelConfig) -> [usize; 5] {
    let q_width = config.n_heads * config.head_dim;
    let kv_width = config.n_kv_heads * config.head_dim;
    let (used, logits) = config
        .experts
        .as_ref()
        .map_or((1, 0), |it| (it.used, it.count));
    let columns = [config.n_embd, q_width + 2 * kv_width, q_width];
    let [x, qkv, attn] = columns.map(|cols| units(cols) * UNIT);
    let ff = used * units(unit_columns(config)) * UNIT;
    [x, qkv, attn, ff, units(logits) * UNIT]
}
