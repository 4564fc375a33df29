//! The forward pass written with the scalar references: slow, in double precision where it sums,
//! and without an idea of devices.

use worker_orcd_gpu::model::{FileLinear, FileWeights, ModelConfig, TensorView};
use worker_orcd_ipc::TokenId;
use worker_orcd_kernels::dequantize_row;
use worker_orcd_kernels::reference::attention::{AttentionShape, attention};
use worker_orcd_kernels::reference::glu::glu;
use worker_orcd_kernels::reference::matmul::matmul;
use worker_orcd_kernels::reference::rmsnorm::rmsnorm;
use worker_orcd_kernels::reference::rope::rope;

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

/// The residual stream behind the last layer, at every position.
pub fn forward(
    config: &ModelConfig,
    weights: &FileWeights<'_>,
    tokens: &[TokenId],
) -> Vec<Vec<f32>> {
    let table = values(weights.token_embd());
    let row = |token: &TokenId| table[token.index() * config.n_embd..][..config.n_embd].to_vec();
    let mut stream: Vec<Vec<f32>> = tokens.iter().map(row).collect();
    let shape = AttentionShape {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        window: config.sliding_window,
    };
    for layer in &weights.layers {
        let (mut keys, mut kept) = (Vec::new(), Vec::new());
        for (position, x) in stream.iter_mut().enumerate() {
            let input = rmsnorm(x, &values(&layer.attn_norm), config.norm_eps);
            let turned = |linear: &FileLinear<'_>, norm: &Option<TensorView<'_>>| {
                let mut rows = apply(linear, &input);
                for head in rows.chunks_exact_mut(config.head_dim) {
                    if let Some(norm) = norm {
                        head.copy_from_slice(&rmsnorm(head, &values(norm), config.norm_eps));
                    }
                    rope(head, position as u32, &config.rope);
                }
                rows
            };
            let ([q, k, v], [gate, up]) = (&layer.qkv, &layer.gate_up);
            let q = turned(q, &layer.q_norm);
            keys.extend(turned(k, &layer.k_norm));
            kept.extend(apply(v, &input));
            let seen = attention(&q, &keys, &kept, &shape);
            add(x, &apply(&layer.attn_output, &seen));
            let input = rmsnorm(x, &values(&layer.ffn_norm), config.norm_eps);
            let (gate, up) = (apply(gate, &input), apply(up, &input));
            let inner = glu(config.activation, &gate, &up);
            add(x, &apply(&layer.ffn_down, &inner));
        }
    }
    stream
}
