//! The forward pass with the scalar references: slow, with sums in double precision,
//! and independent of devices.

use worker_orcd_gpu::model::{
    Experts, FeedForward, FileLinear, FileWeights, GatedUnit, Linear, ModelConfig, TensorView,
};
use worker_orcd_ipc::TokenId;
use worker_orcd_kernels::dequantize_row;
use worker_orcd_kernels::reference::attention::{AttentionShape, attention};
use worker_orcd_kernels::reference::glu::glu;
use worker_orcd_kernels::reference::matmul::matmul;
use worker_orcd_kernels::reference::rmsnorm::rmsnorm;
use worker_orcd_kernels::reference::rope::rope;
use worker_orcd_kernels::reference::routing::route;

fn values(tensor: &TensorView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    dequantize_row(tensor.ty, tensor.data, &mut values);
    values
}

fn apply(linear: &FileLinear<'_>, x: &[f32]) -> Vec<f32> {
    let bias = linear.bias.as_ref().map(values);
    matmul(&values(&linear.weight), x, bias.as_deref())
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

type Unit<'a> = GatedUnit<TensorView<'a>, TensorView<'a>>;

fn unit(config: &ModelConfig, unit: &Unit<'_>, x: &[f32]) -> Vec<f32> {
    let [gate, up] = &unit.gate_up;
    let inner = glu(config.activation, &apply(gate, x), &apply(up, x));
    apply(&unit.down, &inner)
}

fn expert_of<'a>(linear: &FileLinear<'a>, index: usize, count: usize) -> FileLinear<'a> {
    let rows = linear.weight.rows / count;
    let weight = linear.weight.row_range(index * rows, rows);
    let bias = linear.bias.map(|bias| bias.row_range(index, 1));
    Linear {
        weight: weight.expect("the rows of an expert"),
        bias: bias.map(|bias| bias.expect("a row for each expert")),
    }
}

fn mixture(
    config: &ModelConfig,
    experts: &Experts<TensorView<'_>, TensorView<'_>>,
    x: &[f32],
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<f32> {
    let mut sum = vec![0.0; config.n_embd];
    let mut add_weighted = |weight: f32, y: Vec<f32>| {
        sum.iter_mut()
            .zip(y)
            .for_each(|(sum, y)| *sum += weight * y);
    };
    let of = experts.config;
    let logits = apply(&experts.router, x);
    routed(&logits);
    for (index, weight) in route(&logits, of.used, of.weighing) {
        let part = |linear| expert_of(linear, index, of.count);
        let expert = GatedUnit {
            gate_up: experts.unit.gate_up.each_ref().map(part),
            down: part(&experts.unit.down),
        };
        add_weighted(weight, unit(config, &expert, x));
    }
    if let Some(shared) = &experts.shared {
        let weight = 1.0 / (1.0 + (-apply(&shared.weigher, x)[0]).exp());
        add_weighted(weight, unit(config, &shared.unit, x));
    }
    sum
}

/// Residual stream after the last layer, at every position.
pub fn forward(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
) -> Vec<Vec<f32>> {
    pass(config, weights, tokens, &mut |_| ())
}

/// Result of [`forward`], and the margin between the last chosen expert and the first that is not chosen: the smallest
/// difference of any row and layer, as a share of its largest logit. Another rounding makes the same choice only if its
/// errors are below this margin.
pub fn forward_with_margin(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
) -> (Vec<Vec<f32>>, f32) {
    let used = config.experts.expect("a mixture of experts").used;
    let mut margin = f32::INFINITY;
    let stream = pass(config, weights, tokens, &mut |logits| {
        let mut sorted = logits.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let largest = sorted.iter().fold(0.0, |max: f32, it| max.max(it.abs()));
        // If all experts are chosen, there is no other choice.
        if let Some(next) = sorted.get(used) {
            margin = margin.min((sorted[used - 1] - next) / largest);
        }
    });
    (stream, margin)
}

/// `routed` receives the logits of every router.
fn pass(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
    routed: &mut dyn FnMut(&[f32]),
) -> Vec<Vec<f32>> {
    let table = values(weights.token_embd());
    let row = |token: &TokenId| {
        let row = &table[token.index() * config.n_embd..][..config.n_embd];
        row.iter().map(|x| x * config.embedding_scale).collect()
    };
    let mut stream: Vec<Vec<f32>> = tokens.iter().map(row).collect();
    for (index, layer) in weights.layers.iter().enumerate() {
        let shape = AttentionShape {
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            window: config.positions.window_of(index),
        };
        let sinks = layer.sinks.as_ref().map(values);
        let (mut keys, mut kept) = (Vec::new(), Vec::new());
        for (position, x) in stream.iter_mut().enumerate() {
            let input = rmsnorm(x, &values(&layer.attn_norm), config.norm_eps);
            let turned = |linear: &FileLinear<'_>, norm: &Option<TensorView<'_>>| {
                let mut rows = apply(linear, &input);
                for head in rows.chunks_exact_mut(config.head_dim) {
                    if let Some(norm) = norm {
                        head.copy_from_slice(&rmsnorm(head, &values(norm), config.norm_eps));
                    }
                    if let Some(place) = config.rope_of(index) {
                        let of_layer = config.ropes().nth(place).expect("a rotation");
                        rope(head, position as u32, of_layer);
                    }
                }
                rows
            };
            let [q, k, v] = &layer.qkv;
            let mut q = turned(q, &layer.q_norm);
            let temperature = config.positions.temperature_at(position as u32);
            // The reference divides by the root of `head_dim`.
            let scale = config.attention_scale * (config.head_dim as f64).sqrt();
            q.iter_mut().for_each(|q| *q *= temperature * scale as f32);
            keys.extend(turned(k, &layer.k_norm));
            kept.extend(apply(v, &input));
            let seen = attention(&q, &keys, &kept, sinks.as_deref(), &shape);
            let normed = |given: Vec<f32>, norm: &Option<TensorView<'_>>| match norm {
                Some(norm) => rmsnorm(&given, &values(norm), config.norm_eps),
                None => given,
            };
            let given = apply(&layer.attn_output, &seen);
            add(x, &normed(given, &layer.attn_post_norm));
            let input = rmsnorm(x, &values(&layer.ffn_norm), config.norm_eps);
            let given = match &layer.feed_forward {
                FeedForward::Dense(part) => unit(config, part, &input),
                FeedForward::Experts(experts) => mixture(config, experts, &input, routed),
            };
            add(x, &normed(given, &layer.ffn_post_norm));
        }
    }
    stream
}
