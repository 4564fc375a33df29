//! Activations of one step, allocated once for the largest batch.

use super::attention::Partials;
use super::linear::Share;
use crate::model::{ModelConfig, Recurrence};
use worker_orcd_kernels::cpu::{Activations, BlockMeta, Choice, Q_BLOCK, RopeRow};

/// Rows of logits computed at a time: enough to read the output matrix once for all sequences of a usual batch, few
/// enough that a large vocabulary takes little memory.
pub const HEAD_ROWS: usize = 16;

#[derive(Debug)]
pub struct Scratch {
    max_tokens: usize,
    /// The residual stream, `[tokens, n_embd]`.
    pub x: Vec<f32>,
    /// Queries, keys and values, `[tokens, qkv_width]`, or everything that another mixer projects.
    pub qkv: Vec<f32>,
    /// Output of a mixer before its last product, `[tokens, width]`.
    pub attn: Vec<f32>,
    /// Output of the gated linear unit, `[tokens, n_ff]`, or of all experts that tokens use.
    pub ff: Vec<f32>,
    /// Normalized rows, `[tokens, n_embd]`.
    pub norm: Vec<f32>,
    /// Per-layer inputs of all layers, `[tokens, layers * width]`; empty without any.
    pub layer_inputs: Vec<f32>,
    pub quantized: Quantized,
    /// Angles of every rotation of the model, consecutive for each token.
    pub rope: Vec<RopeRow>,
    pub partials: Partials,
    pub experts: ExpertRoom,
    /// `[HEAD_ROWS, vocab]`.
    pub logits: Vec<f32>,
}

/// Activations of a mixture of experts; empty without one.
#[derive(Debug)]
pub struct ExpertRoom {
    /// The router's results; after those of each token, the weight of the shared expert.
    pub logits: Vec<f32>,
    /// `[tokens, used]`.
    pub choices: Vec<Choice>,
    /// Index in `rows` of the row of each choice.
    pub places: Vec<usize>,
    pub shares: Vec<Share>,
    /// Rows by expert, `[tokens * used, n_embd]`: inputs, then results.
    pub rows: Vec<f32>,
    /// Rows of the shared expert, or of the dense unit beside the experts, `[tokens, n_embd]`.
    pub shared: Vec<f32>,
}

impl ExpertRoom {
    fn new(sizes: &Sizes, max_tokens: usize) -> Self {
        let choices = max_tokens * sizes.used;
        Self {
            logits: vec![0.0; max_tokens * sizes.router],
            choices: vec![Choice::default(); choices],
            places: vec![0; choices],
            shares: Vec::with_capacity(sizes.router),
            rows: vec![0.0; choices * sizes.n_embd],
            shared: vec![0.0; max_tokens * sizes.shared],
        }
    }

    fn bytes(&self) -> usize {
        let floats = self.logits.len() + self.rows.len() + self.shared.len();
        let of_choices = size_of_val(&*self.choices) + size_of_val(&*self.places);
        4 * floats + of_choices + self.shares.capacity() * size_of::<Share>()
    }

    /// Bytes for each token that [`new`](Self::new) allocates.
    fn bytes_per_token(sizes: &Sizes) -> usize {
        let of_choice = size_of::<Choice>() + size_of::<usize>() + 4 * sizes.n_embd;
        4 * (sizes.router + sizes.shared) + sizes.used * of_choice
    }
}

/// The quantized form of the present matmul input.
#[derive(Debug)]
pub struct Quantized {
    pub q: Vec<i8>,
    pub meta: Vec<BlockMeta>,
}

impl Quantized {
    /// Activations for a matmul. `values`: `[tokens, cols]`. The quantized form is valid only if the weights require
    /// it.
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
            ff: rows(sizes.ff),
            norm: rows(config.n_embd),
            layer_inputs: rows(sizes.layer_inputs),
            quantized: Quantized {
                q: vec![0; max_tokens * sizes.widest],
                meta: vec![BlockMeta::default(); max_tokens * sizes.widest / Q_BLOCK],
            },
            rope: vec![RopeRow::default(); max_tokens * config.ropes().count()],
            partials,
            experts: ExpertRoom::new(&sizes, max_tokens),
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
            layer_inputs,
            quantized,
            rope,
            partials,
            experts,
            logits,
            ..
        } = self;
        let floats = [x, qkv, attn, ff, norm, layer_inputs, logits]
            .iter()
            .map(|v| v.len())
            .sum::<usize>();
        let angles: usize = rope.len() * size_of::<RopeRow>();
        let bytes =
            4 * floats + angles + size_of_val(&*quantized.q) + size_of_val(&*quantized.meta);
        (bytes + partials.bytes() + experts.bytes()) as u64
    }

    /// Bytes that [`new`](Self::new) will allocate.
    #[must_use]
    pub fn bytes_for(config: &ModelConfig, max_tokens: usize) -> u64 {
        let sizes = Sizes::of(config);
        let floats = 2 * config.n_embd + sizes.qkv + sizes.q + sizes.ff + sizes.layer_inputs;
        let quantized = sizes.widest + sizes.widest / Q_BLOCK * size_of::<BlockMeta>();
        let per_token = 4 * floats + quantized + ExpertRoom::bytes_per_token(&sizes);
        (max_tokens * per_token + 4 * HEAD_ROWS * config.vocab_size) as u64
    }
}

/// Values per token.
struct Sizes {
    n_embd: usize,
    q: usize,
    qkv: usize,
    ff: usize,
    /// Width of the per-layer inputs of all layers.
    layer_inputs: usize,
    /// Width of the largest matmul input.
    widest: usize,
    /// Width of the router's results.
    router: usize,
    used: usize,
    /// Width of the results of the shared expert, or of the dense unit beside the experts.
    shared: usize,
}

impl Sizes {
    fn of(config: &ModelConfig) -> Self {
        let n_embd = config.n_embd;
        let recurrent = config.recurrent.as_ref();
        let recurrent = recurrent.map(|it| widths_of(&it.recurrence));
        let (projected, outputs) = recurrent.unwrap_or((0, 0));
        let q = config.heads().map(|heads| heads.width());
        let q = q.max().unwrap_or(0).max(outputs);
        let qkv = config
            .heads()
            .map(|heads| config.queries_width_of(heads.width()) + 2 * heads.kv_width());
        let qkv = qkv.max().unwrap_or(0).max(projected);
        let input = config.layer_input.unwrap_or(0);
        // The input of a layer is multiplied there, too.
        let n_ff = config.n_ff.max(input);
        let dense = Self {
            n_embd,
            q,
            qkv,
            ff: n_ff,
            layer_inputs: config.n_layers * input,
            widest: n_embd.max(q).max(n_ff).next_multiple_of(Q_BLOCK),
            router: 0,
            used: 0,
            shared: 0,
        };
        let Some(experts) = &config.experts else {
            return dense;
        };
        let widths = [experts.shared_n_ff, config.dense_width()];
        let for_all = widths.into_iter().flatten().max().unwrap_or(0);
        let ff = (experts.used * experts.n_ff).max(for_all).max(input);
        let is_added = experts.shared_n_ff.is_some() || experts.beside_dense;
        let widest = (experts.used * n_embd).max(q).max(ff);
        Self {
            ff,
            widest: widest.next_multiple_of(Q_BLOCK),
            router: experts.logits(),
            used: experts.used,
            shared: if is_added { n_embd } else { 0 },
            ..dense
        }
    }
}

/// Widths of everything that a recurrent layer projects, and of the input of its last product.
fn widths_of(recurrence: &Recurrence) -> (usize, usize) {
    match recurrence {
        Recurrence::DeltaNet(net) => (net.projected_width(), net.v_width()),
        Recurrence::ShortConv(conv) => (conv.projected_width(), conv.width),
        Recurrence::Mamba(mamba) => (mamba.projected_width(), mamba.width()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiny_model::{
        tiny_gemma4_e2b, tiny_gemma4_with_experts, tiny_mixtral, tiny_model,
    };
    use crate::model::{Architecture, gguf};

    #[test]
    fn what_is_reckoned_is_what_is_taken_with_experts_and_without() {
        const TOKENS: usize = 9;
        let files = Architecture::ALL.into_iter().map(tiny_model);
        let more = [
            tiny_mixtral(),
            tiny_gemma4_with_experts(),
            tiny_gemma4_e2b(),
        ];
        for file in files.chain(more) {
            let bytes = file.build();
            let header = gguf::parse(&bytes).expect("a model");
            let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
            let partials = Partials::new(&config, 1, 64);
            let angles = TOKENS * config.ropes().count() * size_of::<RopeRow>();
            let apart = partials.bytes() + angles;
            let scratch = Scratch::new(&config, TOKENS, partials);
            // Independent of the number of tokens.
            let shares = scratch.experts.shares.capacity() * size_of::<Share>();
            let reckoned = Scratch::bytes_for(&config, TOKENS);
            assert_eq!(reckoned, scratch.bytes() - (apart + shares) as u64);
        }
    }
}
