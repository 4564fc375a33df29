//! Activations of one step, allocated once for the largest batch.

use super::attention::Partials;
use crate::model::ModelConfig;
use worker_orcd_kernels::cpu::{Activations, BlockMeta, Q_BLOCK, RopeRow};

/// Rows whose logits are computed at a time: enough to read the output matrix once for all
/// sequences of a usual batch, few enough that a large vocabulary takes little memory.
pub const HEAD_ROWS: usize = 16;

#[derive(Debug)]
pub struct Scratch {
    max_tokens: usize,
    /// The residual stream, `[tokens, n_embd]`.
    pub x: Vec<f32>,
    /// Queries, keys and values of a token behind each other.
    pub qkv: Vec<f32>,
    /// Attention's output, `[tokens, n_heads * head_dim]`.
    pub attn: Vec<f32>,
    /// The gated linear unit of gate and up, `[tokens, n_ff]`.
    pub ff: Vec<f32>,
    /// Normalized rows, `[tokens, n_embd]`.
    pub norm: Vec<f32>,
    pub quantized: Quantized,
    pub rope: Vec<RopeRow>,
    pub partials: Partials,
    /// `[HEAD_ROWS, vocab]`.
    pub logits: Vec<f32>,
}

/// The quantized form of the matmul input at hand.
#[derive(Debug)]
pub struct Quantized {
    pub q: Vec<i8>,
    pub meta: Vec<BlockMeta>,
}

impl Quantized {
    /// `values` are `[tokens, cols]`; whether the quantized form was filled in is up to the
    /// weights it meets.
    #[must_use]
    pub fn view<'a>(&'a self, values: &'a [f32], cols: usize) -> Activations<'a> {
        Activations {
            cols,
            values,
            q: &self.q,
            meta: &self.meta,
        }
    }
}

impl Scratch {
    #[must_use]
    pub fn new(config: &ModelConfig, max_tokens: usize, partials: Partials) -> Self {
        let sizes = Sizes::of(config);
        let rows = |width: usize| vec![0.0; max_tokens * width];
        Self {
            max_tokens,
            x: rows(config.n_embd),
            qkv: rows(sizes.qkv),
            attn: rows(sizes.q),
            ff: rows(config.n_ff),
            norm: rows(config.n_embd),
            quantized: Quantized {
                q: vec![0; max_tokens * sizes.widest],
                meta: vec![BlockMeta::default(); max_tokens * sizes.widest / Q_BLOCK],
            },
            rope: vec![RopeRow::default(); max_tokens],
            partials,
            logits: vec![0.0; HEAD_ROWS * config.vocab_size],
        }
    }

    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Self {
            x,
            qkv,
            attn,
            ff,
            norm,
            quantized,
            rope,
            partials,
            logits,
            ..
        } = self;
        let floats = [x, qkv, attn, ff, norm, logits]
            .iter()
            .map(|v| v.len())
            .sum::<usize>();
        let angles: usize = rope.len() * size_of::<RopeRow>();
        let bytes =
            4 * floats + angles + size_of_val(&*quantized.q) + size_of_val(&*quantized.meta);
        (bytes + partials.bytes()) as u64
    }

    /// Bytes that [`new`](Self::new) will take, before it takes them.
    #[must_use]
    pub fn bytes_for(config: &ModelConfig, max_tokens: usize) -> u64 {
        let sizes = Sizes::of(config);
        let floats = 2 * config.n_embd + sizes.qkv + sizes.q + config.n_ff;
        let per_token = 4 * floats + sizes.widest + sizes.widest / Q_BLOCK * size_of::<BlockMeta>();
        (max_tokens * per_token + 4 * HEAD_ROWS * config.vocab_size) as u64
    }
}

struct Sizes {
    q: usize,
    qkv: usize,
    widest: usize,
}

impl Sizes {
    fn of(config: &ModelConfig) -> Self {
        let q = config.n_heads * config.head_dim;
        let qkv = q + 2 * config.n_kv_heads * config.head_dim;
        let widest = config
            .n_embd
            .max(q)
            .max(config.n_ff)
            .next_multiple_of(Q_BLOCK);
        Self { q, qkv, widest }
    }
}
