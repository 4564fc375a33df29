//! Tensors by role, as views into the mapped file.

use super::gguf::TensorView;

/// `y = W x + b`; `weight` is `[n_out, n_in]` row-major with `n_in` contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    pub weight: TensorView<'a>,
    /// `[n_out]` F32.
    pub bias: Option<TensorView<'a>>,
}

#[derive(Debug, Clone)]
pub struct LayerWeights<'a> {
    pub attn_norm: TensorView<'a>,
    /// Phi-3 keeps Q, K and V in one tensor: then each of these is a row range of it.
    pub q: Linear<'a>,
    pub k: Linear<'a>,
    pub v: Linear<'a>,
    /// Qwen3: RMS norm over each head before RoPE, `[head_dim]`.
    pub q_norm: Option<TensorView<'a>>,
    pub k_norm: Option<TensorView<'a>>,
    pub attn_output: Linear<'a>,
    pub ffn_norm: TensorView<'a>,
    /// Phi-3 keeps gate and up in one tensor: then each of these is a row range of it.
    pub ffn_gate: Linear<'a>,
    pub ffn_up: Linear<'a>,
    pub ffn_down: Linear<'a>,
}

#[derive(Debug, Clone)]
pub struct ModelWeights<'a> {
    /// `[vocab, n_embd]`.
    pub token_embd: TensorView<'a>,
    pub layers: Vec<LayerWeights<'a>>,
    pub output_norm: TensorView<'a>,
    /// `[vocab, n_embd]`; the embedding itself when the file ties them.
    pub output: Linear<'a>,
}
