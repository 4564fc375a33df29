//! Hyperparameters, read from `{arch}.*` keys and checked before anything is uploaded.

/// `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Phi3,
}

/// Which pairs of a head's values RoPE rotates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(0, 1), (2, 3), …`: llama as GGUF stores it (its Q and K rows are permuted for this).
    Adjacent,
    /// `(0, d/2), (1, d/2 + 1), …` (NeoX): qwen2, qwen3, phi3.
    HalfOffset,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub n_layers: usize,
    pub n_embd: usize,
    pub n_ff: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab_size: usize,
    pub context_length: usize,
    pub norm_eps: f32,
    pub rope_style: RopeStyle,
    pub rope_base: f32,
    /// How many values at the front of a head are rotated; the rest pass through.
    pub rope_dims: usize,
    /// Divides every frequency (linear scaling); 1 when there is none.
    pub rope_scale: f32,
    /// Per-pair divisors (llama 3, phi3 long context), `[rope_dims / 2]`; from `rope_freqs.weight`
    /// or `rope_factors_{short,long}.weight`.
    pub rope_factors: Option<Vec<f32>>,
    /// Multiplies cos and sin (phi3 long context, `rope.scaling.attn_factor`); 1 when there is none.
    pub rope_attn_factor: f32,
    /// Phi-3: a query sees at most this many positions, itself included; `None` sees all.
    pub sliding_window: Option<usize>,
}
