//! Complete GGUF files with two small layers of pseudo-random weights, one for each architecture: for tests and tools
//! that need a model but no meaningful output.

use super::architecture::{Architecture, QkNorms, Recurrence};
use super::gguf_builder::{GgufBuilder, Meta};

/// Number of layers in most architectures.
pub const N_LAYERS: u32 = 2;
pub const N_EMBD: u64 = 64;
pub const N_FF: u64 = 96;
pub const N_HEADS: u64 = 4;
pub const N_KV_HEADS: u64 = 2;
pub const HEAD_DIM: u64 = 16;
/// Number of experts, and of those that a token uses.
pub const EXPERTS: u64 = 6;
pub const EXPERTS_USED: u64 = 2;
/// Width of an expert, except in the files of Mixtral and MiniMax-M2: there it is [`N_FF`].
pub const EXPERT_FF: u64 = 32;
pub const SHARED_FF: u64 = 48;
/// Number of GLM's shared experts, which are one of their width together.
pub const SHARED_EXPERTS: u64 = 2;
/// Factor of the weights of GLM's experts, and of Nemotron's.
pub const EXPERTS_SCALE: f32 = 2.5;
pub const CONTEXT_LENGTH: u32 = 256;
/// Heads of keys and of values of a delta net, their size, and the positions that its convolution sees.
pub const DELTA_K_HEADS: u64 = 2;
pub const DELTA_V_HEADS: u64 = 4;
pub const DELTA_DIM: u64 = 16;
pub const DELTA_KERNEL: u64 = 4;
/// The last of this many layers of such a model has attention.
pub const ATTENTION_EVERY: u32 = 2;
/// Positions that a short convolution sees. All layers have one but the third of four.
pub const CONV_KERNEL: u64 = 3;
pub const CONV_LAYERS: [bool; 4] = [true, true, false, true];
/// Of a state-space layer: heads in groups, their size, that of their state, and the positions that its convolution sees. The
/// layers are those with a short convolution in other models.
pub const MAMBA_HEADS: u64 = 8;
pub const MAMBA_GROUPS: u64 = 2;
pub const MAMBA_DIM: u64 = 16;
pub const MAMBA_STATE: u64 = 32;
pub const MAMBA_KERNEL: u64 = 4;
/// Layers of Nemotron-H, each of one block.
pub const NEMOTRON_LAYERS: [OneBlock; 5] = [
    OneBlock::Mamba,
    OneBlock::FeedForward,
    OneBlock::Attention,
    OneBlock::FeedForward,
    OneBlock::Mamba,
];
/// Factors of Granite: of embeddings, of outputs of blocks, of attention scores, and divisor of logits.
pub const GRANITE_SCALES: [(&str, f32); 4] = [
    ("embedding_scale", 12.0),
    ("residual_scale", 0.25),
    ("attention.scale", 0.0625),
    ("logit_scale", 3.0),
];
/// Heads of keys and values in layers of Gemma 4 with full attention, and their size. Those with a window have as many as
/// there are heads of queries.
pub const WHOLE_KV_HEADS: u64 = 1;
pub const WHOLE_HEAD_DIM: u64 = 32;
/// The last of this many layers of Gemma 4 has full attention.
pub const WHOLE_EVERY: u32 = 3;
/// Of a file like Gemma 4 E2B: last layers, without keys and values of their own and with wider feed-forward parts; the width of
/// these, and of each per-layer input.
pub const SHARED_KV_LAYERS: u32 = 3;
pub const WIDE_FF: u64 = 2 * N_FF;
pub const LAYER_INPUT: u64 = 24;
/// Soft cap of the logits.
pub const LOGIT_CAP: f32 = 30.0;
/// Positions that a query sees in sliding-window layers.
pub const WINDOW: u32 = 40;
/// Size of the vocabulary: one token per byte, then the special ones.
pub const VOCAB: u64 = 256 + SPECIALS.len() as u64;
pub const EOS: u32 = 257;

/// The block of a layer that has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OneBlock {
    Mamba,
    Attention,
    FeedForward,
}

const SPECIALS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<unk>"];

/// A file of F32 tensors. The vocabulary has a token for each byte and no merges.
#[must_use]
pub fn tiny_model(architecture: Architecture) -> GgufBuilder {
    let experts = match architecture {
        Architecture::Qwen2Moe
        | Architecture::Qwen3Moe
        | Architecture::Qwen3VlMoe
        | Architecture::GptOss
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next
        | Architecture::Ernie45Moe
        | Architecture::Glm4Moe
        | Architecture::Lfm2Moe
        | Architecture::NemotronHMoe => Some(EXPERT_FF),
        Architecture::MiniMaxM2 => Some(N_FF),
        _ => None,
    };
    model(architecture, experts)
}

/// Variant of [`tiny_model`] for the architecture `llama`, with experts.
#[must_use]
pub fn tiny_mixtral() -> GgufBuilder {
    model(Architecture::Llama, Some(N_FF))
}

/// Variant of [`tiny_model`] for the architecture `gemma4`, with experts beside the dense part.
#[must_use]
pub fn tiny_gemma4_with_experts() -> GgufBuilder {
    model(Architecture::Gemma4, Some(EXPERT_FF))
}

/// Variant of [`tiny_model`] for the architecture `gemma4`, with the features of E2B.
#[must_use]
pub fn tiny_gemma4_e2b() -> GgufBuilder {
    let mut random = Random(0xe2b);
    let layers = n_layers(Architecture::Gemma4);
    let own = layers - SHARED_KV_LAYERS;
    let shares = |layer: u32| layer >= own;
    let n_ff = |layer| if shares(layer) { WIDE_FF } else { N_FF };
    let widths = (0..layers).map(|layer| n_ff(layer) as i32).collect();
    let all = u64::from(layers) * LAYER_INPUT;
    let mut file = tiny_model(Architecture::Gemma4)
        .meta("gemma4.attention.shared_kv_layers", SHARED_KV_LAYERS)
        .meta("gemma4.feed_forward_length", Meta::I32s(widths))
        .meta(
            "gemma4.embedding_length_per_layer_input",
            LAYER_INPUT as u32,
        );
    file = random.matrix(file, "per_layer_token_embd.weight", VOCAB, all);
    file = random.matrix(file, "per_layer_model_proj.weight", all, N_EMBD);
    file = random.norm(file, "per_layer_proj_norm.weight", LAYER_INPUT);
    for layer in 0..layers {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        for (tensor, rows, cols) in [
            ("inp_gate.weight", LAYER_INPUT, N_EMBD),
            ("proj.weight", N_EMBD, LAYER_INPUT),
        ] {
            file = random.matrix(file, &name(tensor), rows, cols);
        }
        file = random.norm(file, &name("post_norm.weight"), N_EMBD);
        if !shares(layer) {
            continue;
        }
        for tensor in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            file = file.without_tensor(&name(tensor));
        }
        for (tensor, rows, cols) in [
            ("ffn_gate.weight", WIDE_FF, N_EMBD),
            ("ffn_up.weight", WIDE_FF, N_EMBD),
            ("ffn_down.weight", N_EMBD, WIDE_FF),
        ] {
            file = random.matrix(file, &name(tensor), rows, cols);
        }
    }
    file
}

/// Variant of [`tiny_model`] for the architecture `granitehybrid`, with experts and one that is shared.
#[must_use]
pub fn tiny_granite_with_experts() -> GgufBuilder {
    model(Architecture::GraniteHybrid, Some(N_FF))
}

/// Enough layers to include every kind of layer.
fn n_layers(architecture: Architecture) -> u32 {
    match architecture {
        Architecture::SmolLm3
        | Architecture::Qwen35
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next => 4,
        Architecture::Lfm2 | Architecture::Lfm2Moe | Architecture::GraniteHybrid => {
            CONV_LAYERS.len() as u32
        }
        Architecture::NemotronH | Architecture::NemotronHMoe => NEMOTRON_LAYERS.len() as u32,
        Architecture::Gemma3 => 7,
        Architecture::Gemma4 => 2 * WHOLE_EVERY,
        _ => N_LAYERS,
    }
}

fn model(architecture: Architecture, experts: Option<u64>) -> GgufBuilder {
    use Architecture::{
        Ernie45Moe, Gemma3, Gemma4, Glm4Moe, GptOss, Lfm2Moe, Phi3, Qwen2, Qwen2Moe, SeedOss,
    };
    let mut random = Random(0x5eed);
    let mut file = metadata(architecture);
    if architecture == Gemma3 {
        file = file.meta("gemma3.attention.sliding_window", WINDOW);
    }
    if architecture == Gemma4 {
        file = gemma4_metadata(file);
    }
    file = recurrent_metadata(file, architecture);
    if let Some(n_ff) = experts {
        file = expert_metadata(file, architecture, n_ff);
    }
    file = random.matrix(file, "token_embd.weight", VOCAB, N_EMBD);
    let output_norm = architecture.conventions().output_norm;
    file = random.norm(file, output_norm, N_EMBD);
    for layer in 0..n_layers(architecture) {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let heads = Heads::of(architecture, layer);
        if architecture.conventions().has_layers_of_one_block {
            file = random.one_block(file, &name, architecture, layer);
            continue;
        }
        let begins_dense = matches!(architecture, Ernie45Moe | Glm4Moe | Lfm2Moe);
        let experts = experts.filter(|_| !begins_dense || layer > 0);
        file = random.norm(file, &name("attn_norm.weight"), N_EMBD);
        let is_recurrent = is_recurrent(architecture, layer);
        if is_recurrent {
            file = random.recurrent(file, &name, architecture);
        } else {
            file = random.projections(file, &name, architecture, heads);
        }
        if (experts.is_none() || architecture == Gemma4) && architecture != Phi3 {
            file = random.matrix(file, &name("ffn_gate.weight"), N_FF, N_EMBD);
            file = random.matrix(file, &name("ffn_up.weight"), N_FF, N_EMBD);
        }
        if matches!(architecture, Qwen2 | Qwen2Moe | GptOss | SeedOss | Glm4Moe) {
            file = random.vector(file, &name("attn_q.bias"), heads.queries);
            file = random.vector(file, &name("attn_k.bias"), heads.keys);
            file = random.vector(file, &name("attn_v.bias"), heads.keys);
        }
        if !is_recurrent {
            file = random.qk_norms(file, &name, architecture, heads);
            file = random.matrix(file, &name("attn_output.weight"), N_EMBD, heads.queries);
        }
        if matches!(architecture, Gemma3 | Gemma4) {
            file = random.norm(file, &name("post_attention_norm.weight"), N_EMBD);
            file = random.norm(file, &name("post_ffw_norm.weight"), N_EMBD);
        }
        if architecture == Gemma4 {
            file = random.norm(file, &name("layer_output_scale.weight"), 1);
        }
        if architecture == GptOss {
            file = random.vector(file, &name("attn_output.bias"), N_EMBD);
            file = random.vector(file, &name("attn_sinks.weight"), N_HEADS);
            file = random.expert_biases(file, &name);
        }
        let ffn_norm = architecture.conventions().ffn_norm;
        file = random.norm(file, &name(ffn_norm), N_EMBD);
        file = match experts {
            None => random.matrix(file, &name("ffn_down.weight"), N_EMBD, N_FF),
            Some(n_ff) if architecture == Gemma4 => random.experts_beside(file, &name, n_ff),
            Some(n_ff) => random.mixture(file, &name, architecture, n_ff),
        };
    }
    file
}

/// Widths of a layer's attention.
#[derive(Clone, Copy)]
struct Heads {
    queries: u64,
    keys: u64,
    dim: u64,
    /// Values have a projection of their own.
    has_values: bool,
}

impl Heads {
    fn of(architecture: Architecture, layer: u32) -> Self {
        let has_values = architecture != Architecture::Gemma4 || !is_whole(layer);
        let (kv_heads, dim) = match architecture {
            Architecture::Gemma4 if has_values => (N_HEADS, HEAD_DIM),
            Architecture::Gemma4 => (WHOLE_KV_HEADS, WHOLE_HEAD_DIM),
            _ => (N_KV_HEADS, HEAD_DIM),
        };
        Self {
            queries: N_HEADS * dim,
            keys: kv_heads * dim,
            dim,
            has_values,
        }
    }
}

fn is_whole(layer: u32) -> bool {
    (layer + 1).is_multiple_of(WHOLE_EVERY)
}

fn gemma4_metadata(file: GgufBuilder) -> GgufBuilder {
    let key = |name: &str| format!("gemma4.{name}");
    let layers = 0..n_layers(Architecture::Gemma4);
    let kv_heads = |layer| {
        if is_whole(layer) {
            WHOLE_KV_HEADS
        } else {
            N_HEADS
        }
    };
    let windows = layers.clone().map(|layer| i32::from(!is_whole(layer)));
    let of_heads = layers.map(|layer| kv_heads(layer) as i32);
    let pairs = WHOLE_HEAD_DIM / 2;
    // As the converter writes them: a quarter of the pairs turns.
    let factor = |pair| if pair < pairs / 4 { 1.0 } else { 1e30 };
    let factors: Vec<f32> = (0..pairs).map(factor).collect();
    file.meta(&key("attention.sliding_window"), WINDOW)
        .meta(
            &key("attention.sliding_window_pattern"),
            Meta::I32s(windows.collect()),
        )
        .meta(
            &key("attention.head_count_kv"),
            Meta::I32s(of_heads.collect()),
        )
        .meta(&key("attention.key_length"), WHOLE_HEAD_DIM as u32)
        .meta(&key("attention.value_length"), WHOLE_HEAD_DIM as u32)
        .meta(&key("attention.key_length_swa"), HEAD_DIM as u32)
        .meta(&key("attention.value_length_swa"), HEAD_DIM as u32)
        .meta(&key("rope.freq_base"), 1e6)
        .meta(&key("rope.dimension_count"), WHOLE_HEAD_DIM as u32)
        .meta(&key("rope.dimension_count_swa"), HEAD_DIM as u32)
        .meta(&key("attention.shared_kv_layers"), 0_u32)
        .meta(&key("embedding_length_per_layer_input"), 0_u32)
        .meta(&key("final_logit_softcapping"), LOGIT_CAP)
        .tensor_f32("rope_freqs.weight", &[pairs], &factors)
}

/// The layer has a recurrent state in place of attention.
fn is_recurrent(architecture: Architecture, layer: u32) -> bool {
    match architecture.conventions().recurrence {
        Recurrence::None => false,
        Recurrence::DeltaNet(_) => !(layer + 1).is_multiple_of(ATTENTION_EVERY),
        Recurrence::ShortConv | Recurrence::Mamba => CONV_LAYERS[layer as usize],
    }
}

fn recurrent_metadata(file: GgufBuilder, architecture: Architecture) -> GgufBuilder {
    match architecture.conventions().recurrence {
        Recurrence::None => file,
        Recurrence::DeltaNet(_) => delta_net_metadata(file, architecture),
        Recurrence::ShortConv => short_conv_metadata(file, architecture),
        Recurrence::Mamba if architecture == Architecture::GraniteHybrid => granite_metadata(file),
        Recurrence::Mamba => nemotron_metadata(file, architecture),
    }
}

fn delta_net_metadata(file: GgufBuilder, architecture: Architecture) -> GgufBuilder {
    let key = |name: &str| format!("{}.{name}", architecture.name());
    file.meta(&key("full_attention_interval"), ATTENTION_EVERY)
        .meta(&key("ssm.conv_kernel"), DELTA_KERNEL as u32)
        .meta(&key("ssm.state_size"), DELTA_DIM as u32)
        .meta(&key("ssm.group_count"), DELTA_K_HEADS as u32)
        .meta(&key("ssm.time_step_rank"), DELTA_V_HEADS as u32)
        .meta(&key("ssm.inner_size"), (DELTA_V_HEADS * DELTA_DIM) as u32)
}

fn short_conv_metadata(file: GgufBuilder, architecture: Architecture) -> GgufBuilder {
    let key = |name: &str| format!("{}.{name}", architecture.name());
    file.meta(&key("shortconv.l_cache"), CONV_KERNEL as u32)
        .meta(&key("attention.head_count_kv"), kv_heads_but_in_convs())
}

/// Heads of keys and values of layers, of which most have none.
fn kv_heads_but_in_convs() -> Meta {
    let kv_heads = CONV_LAYERS.map(|is_conv| if is_conv { 0 } else { N_KV_HEADS as i32 });
    Meta::I32s(kv_heads.to_vec())
}

fn granite_metadata(mut file: GgufBuilder) -> GgufBuilder {
    let key = |name: &str| format!("granitehybrid.{name}");
    for (name, scale) in GRANITE_SCALES {
        file = file.meta(&key(name), scale);
    }
    mamba_metadata(file, Architecture::GraniteHybrid)
        .meta(&key("rope.scaling.finetuned"), false)
        .meta(&key("attention.head_count_kv"), kv_heads_but_in_convs())
}

/// As the converter writes them: numbers of heads and widths by layer.
fn nemotron_metadata(file: GgufBuilder, architecture: Architecture) -> GgufBuilder {
    let key = |name: &str| format!("{}.{name}", architecture.name());
    let of = |block: OneBlock, value: u64| {
        let value_of = |layer| if layer == block { value as i32 } else { 0 };
        Meta::I32s(NEMOTRON_LAYERS.map(value_of).to_vec())
    };
    let n_ff = match architecture {
        Architecture::NemotronH => N_FF,
        _ => EXPERT_FF,
    };
    mamba_metadata(file, architecture)
        .meta(
            &key("attention.head_count_kv"),
            of(OneBlock::Attention, N_KV_HEADS),
        )
        .meta(&key("feed_forward_length"), of(OneBlock::FeedForward, n_ff))
        .meta(&key("attention.layer_norm_epsilon"), 1e-5)
}

fn mamba_metadata(mut file: GgufBuilder, architecture: Architecture) -> GgufBuilder {
    for (name, value) in [
        ("ssm.conv_kernel", MAMBA_KERNEL),
        ("ssm.inner_size", MAMBA_HEADS * MAMBA_DIM),
        ("ssm.state_size", MAMBA_STATE),
        ("ssm.time_step_rank", MAMBA_HEADS),
        ("ssm.group_count", MAMBA_GROUPS),
    ] {
        file = file.meta(&format!("{}.{name}", architecture.name()), value as u32);
    }
    file
}

fn expert_metadata(file: GgufBuilder, architecture: Architecture, n_ff: u64) -> GgufBuilder {
    let key = |name: &str| format!("{}.{name}", architecture.name());
    let file = file
        .meta(&key("expert_count"), EXPERTS as u32)
        .meta(&key("expert_used_count"), EXPERTS_USED as u32);
    let length = key("expert_feed_forward_length");
    let shared = key("expert_shared_feed_forward_length");
    match architecture {
        Architecture::Qwen2Moe | Architecture::Qwen35Moe | Architecture::Qwen3Next => file
            .meta(&length, n_ff as u32)
            .meta(&shared, SHARED_FF as u32),
        Architecture::Qwen3Moe
        | Architecture::Qwen3VlMoe
        | Architecture::Gemma4
        | Architecture::MiniMaxM2 => file.meta(&length, n_ff as u32),
        Architecture::Ernie45Moe => file
            .meta(&length, n_ff as u32)
            .meta(&shared, SHARED_FF as u32)
            .meta(&key("leading_dense_block_count"), 1_u32)
            .meta(&key("interleave_moe_layer_step"), 1_u32),
        Architecture::Glm4Moe => file
            .meta(&length, n_ff as u32)
            .meta(&key("expert_shared_count"), SHARED_EXPERTS as u32)
            .meta(&key("expert_gating_func"), 2_u32)
            .meta(&key("expert_weights_norm"), true)
            .meta(&key("expert_weights_scale"), EXPERTS_SCALE)
            .meta(&key("leading_dense_block_count"), 1_u32),
        Architecture::NemotronHMoe => file
            .meta(&length, n_ff as u32)
            .meta(&shared, SHARED_FF as u32)
            .meta(&key("expert_shared_count"), 1_u32)
            .meta(&key("expert_group_count"), 1_u32)
            .meta(&key("expert_weights_norm"), true)
            .meta(&key("expert_weights_scale"), EXPERTS_SCALE),
        Architecture::Lfm2Moe => file
            .meta(&length, n_ff as u32)
            .meta(&key("expert_gating_func"), 2_u32)
            .meta(&key("leading_dense_block_count"), 1_u32),
        Architecture::GraniteHybrid => file.meta(&shared, SHARED_FF as u32),
        Architecture::GptOss => file
            .meta(&length, n_ff as u32)
            .meta(&key("attention.sliding_window"), WINDOW),
        _ => file,
    }
}

fn metadata(architecture: Architecture) -> GgufBuilder {
    let arch = architecture.name();
    let key = |name: &str| format!("{arch}.{name}");
    let mut tokens: Vec<String> = (0..=255).map(byte_token).collect();
    tokens.extend(SPECIALS.map(str::to_owned));
    let mut kinds = vec![1; 256];
    kinds.extend([3, 3, 2]);
    GgufBuilder::new()
        .meta("general.architecture", arch)
        .meta("general.name", "tiny")
        .meta(&key("block_count"), n_layers(architecture))
        .meta(&key("embedding_length"), N_EMBD as u32)
        .meta(&key("feed_forward_length"), N_FF as u32)
        .meta(&key("attention.head_count"), N_HEADS as u32)
        .meta(&key("attention.head_count_kv"), N_KV_HEADS as u32)
        .meta(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .meta(&key("context_length"), CONTEXT_LENGTH)
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", "smollm")
        .meta("tokenizer.ggml.tokens", Meta::Strings(tokens))
        .meta("tokenizer.ggml.token_type", Meta::I32s(kinds))
        .meta("tokenizer.ggml.merges", Meta::Strings(Vec::new()))
        .meta("tokenizer.ggml.eos_token_id", EOS)
        .meta("tokenizer.chat_template", CHAT_TEMPLATE)
}

const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
     {{ message['content'] }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// GPT-2's printable replacement of a byte.
fn byte_token(byte: u8) -> String {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(&byte) {
        return char::from(byte).to_string();
    }
    let index = (0..byte).filter(|byte| !is_printable(byte)).count() as u32;
    char::from_u32(0x100 + index)
        .map(String::from)
        .unwrap_or_default()
}

/// xorshift: the same weights on every machine.
struct Random(u64);

impl Random {
    /// A number in `-scale .. scale`.
    fn next(&mut self, scale: f32) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    }

    fn values(&mut self, count: u64, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.next(scale)).collect()
    }

    fn matrix(&mut self, file: GgufBuilder, name: &str, rows: u64, cols: u64) -> GgufBuilder {
        file.tensor_f32(name, &[cols, rows], &self.values(rows * cols, 0.4))
    }

    /// Queries, keys and values. Phi-3's gate and up, which are one tensor, follow them.
    fn projections(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
        heads: Heads,
    ) -> GgufBuilder {
        let gated = match architecture {
            Architecture::Phi3 => {
                let width = heads.queries + 2 * heads.keys;
                file = self.matrix(file, &name("attn_qkv.weight"), width, N_EMBD);
                return self.matrix(file, &name("ffn_up.weight"), 2 * N_FF, N_EMBD);
            }
            Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => 2,
            _ => 1,
        };
        file = self.matrix(file, &name("attn_q.weight"), gated * heads.queries, N_EMBD);
        file = self.matrix(file, &name("attn_k.weight"), heads.keys, N_EMBD);
        if heads.has_values {
            file = self.matrix(file, &name("attn_v.weight"), heads.keys, N_EMBD);
        }
        file
    }

    /// A layer with a recurrent state.
    fn recurrent(
        &mut self,
        file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
    ) -> GgufBuilder {
        match architecture.conventions().recurrence {
            Recurrence::None => file,
            Recurrence::DeltaNet(_) => self.delta_net(file, name, architecture),
            Recurrence::ShortConv => self.short_conv(file, name),
            Recurrence::Mamba => self.mamba(file, name),
        }
    }

    fn delta_net(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
    ) -> GgufBuilder {
        let v_width = DELTA_V_HEADS * DELTA_DIM;
        let channels = 2 * DELTA_K_HEADS * DELTA_DIM + v_width;
        let strengths: &[_] = match architecture {
            Architecture::Qwen3Next => &[("ssm_ba.weight", 2 * DELTA_V_HEADS, N_EMBD)],
            _ => &[
                ("ssm_beta.weight", DELTA_V_HEADS, N_EMBD),
                ("ssm_alpha.weight", DELTA_V_HEADS, N_EMBD),
            ],
        };
        let before = [
            ("attn_qkv.weight", channels, N_EMBD),
            ("attn_gate.weight", v_width, N_EMBD),
        ];
        let behind = [
            ("ssm_out.weight", N_EMBD, v_width),
            ("ssm_conv1d.weight", channels, DELTA_KERNEL),
        ];
        for (tensor, rows, cols) in before.iter().chain(strengths).chain(&behind) {
            file = self.matrix(file, &name(tensor), *rows, *cols);
        }
        file = self.vector(file, &name("ssm_dt.bias"), DELTA_V_HEADS);
        let decay: Vec<f32> = self
            .values(DELTA_V_HEADS, 2.0)
            .iter()
            .map(|value| -value.abs())
            .collect();
        file = file.tensor_f32(&name("ssm_a"), &[DELTA_V_HEADS], &decay);
        self.norm(file, &name("ssm_norm.weight"), DELTA_DIM)
    }

    fn short_conv(&mut self, mut file: GgufBuilder, name: &dyn Fn(&str) -> String) -> GgufBuilder {
        for (tensor, rows, cols) in [
            ("shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD),
            ("shortconv.conv.weight", N_EMBD, CONV_KERNEL),
            ("shortconv.out_proj.weight", N_EMBD, N_EMBD),
        ] {
            file = self.matrix(file, &name(tensor), rows, cols);
        }
        file
    }

    fn mamba(&mut self, mut file: GgufBuilder, name: &dyn Fn(&str) -> String) -> GgufBuilder {
        let width = MAMBA_HEADS * MAMBA_DIM;
        let channels = width + 2 * MAMBA_GROUPS * MAMBA_STATE;
        for (tensor, rows, cols) in [
            ("ssm_in.weight", width + channels + MAMBA_HEADS, N_EMBD),
            ("ssm_out.weight", N_EMBD, width),
            ("ssm_conv1d.weight", channels, MAMBA_KERNEL),
            ("ssm_d", MAMBA_HEADS, 1),
        ] {
            file = self.matrix(file, &name(tensor), rows, cols);
        }
        file = self.vector(file, &name("ssm_conv1d.bias"), channels);
        file = self.vector(file, &name("ssm_dt.bias"), MAMBA_HEADS);
        let decay = self.values(MAMBA_HEADS, 2.0).into_iter();
        let decay: Vec<f32> = decay.map(|value| -value.abs()).collect();
        file = file.tensor_f32(&name("ssm_a"), &[1, MAMBA_HEADS], &decay);
        let norm = self.values(width, 0.2).into_iter();
        let norm: Vec<f32> = norm.map(|value| 1.0 + value).collect();
        let of_group = width / MAMBA_GROUPS;
        file.tensor_f32(&name("ssm_norm.weight"), &[of_group, MAMBA_GROUPS], &norm)
    }

    /// A layer of one block.
    fn one_block(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
        layer: u32,
    ) -> GgufBuilder {
        file = self.norm(file, &name("attn_norm.weight"), N_EMBD);
        match NEMOTRON_LAYERS[layer as usize] {
            OneBlock::Mamba => self.mamba(file, name),
            OneBlock::Attention => {
                let heads = Heads::of(architecture, layer);
                file = self.projections(file, name, architecture, heads);
                self.matrix(file, &name("attn_output.weight"), N_EMBD, heads.queries)
            }
            OneBlock::FeedForward if architecture == Architecture::NemotronH => {
                file = self.matrix(file, &name("ffn_up.weight"), N_FF, N_EMBD);
                self.matrix(file, &name("ffn_down.weight"), N_EMBD, N_FF)
            }
            OneBlock::FeedForward => {
                file = self.experts(file, name, architecture, EXPERT_FF);
                file = self.vector(file, &name("exp_probs_b.bias"), EXPERTS);
                file = self.matrix(file, &name("ffn_up_shexp.weight"), SHARED_FF, N_EMBD);
                self.matrix(file, &name("ffn_down_shexp.weight"), N_EMBD, SHARED_FF)
            }
        }
    }

    fn qk_norms(
        &mut self,
        file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
        heads: Heads,
    ) -> GgufBuilder {
        let (of_q, of_k) = match architecture.conventions().qk_norms {
            QkNorms::None => return file,
            QkNorms::OfHeads | QkNorms::OptionalOfHeads => (heads.dim, heads.dim),
            QkNorms::Joint => (heads.queries, heads.keys),
        };
        let file = self.norm(file, &name("attn_q_norm.weight"), of_q);
        self.norm(file, &name("attn_k_norm.weight"), of_k)
    }

    /// Experts, their biases that only choose, and the shared one, as the architecture has them.
    fn mixture(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
        n_ff: u64,
    ) -> GgufBuilder {
        use Architecture::{
            Ernie45Moe, Glm4Moe, GraniteHybrid, Lfm2Moe, MiniMaxM2, Qwen2Moe, Qwen3Next, Qwen35Moe,
        };
        file = self.experts(file, name, architecture, n_ff);
        if matches!(architecture, Ernie45Moe | Glm4Moe | MiniMaxM2 | Lfm2Moe) {
            file = self.vector(file, &name("exp_probs_b.bias"), EXPERTS);
        }
        match architecture {
            Qwen2Moe | Qwen35Moe | Qwen3Next => self.gated_shared_expert(file, name),
            Ernie45Moe | GraniteHybrid => self.shared_expert(file, name, SHARED_FF),
            Glm4Moe => self.shared_expert(file, name, SHARED_EXPERTS * EXPERT_FF),
            _ => file,
        }
    }

    fn experts(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        architecture: Architecture,
        n_ff: u64,
    ) -> GgufBuilder {
        file = self.matrix(file, &name("ffn_gate_inp.weight"), EXPERTS, N_EMBD);
        let without_gate = usize::from(!architecture.conventions().has_gate);
        let tensors = [
            ("ffn_gate_exps.weight", n_ff, N_EMBD),
            ("ffn_up_exps.weight", n_ff, N_EMBD),
            ("ffn_down_exps.weight", N_EMBD, n_ff),
        ];
        for &(tensor, rows, cols) in &tensors[without_gate..] {
            let values = self.values(EXPERTS * rows * cols, 0.4);
            file = file.tensor_f32(&name(tensor), &[cols, rows, EXPERTS], &values);
        }
        file
    }

    /// Experts of Gemma 4: gate and up in one tensor, norms around them, factors, and the dense part's `ffn_down`.
    fn experts_beside(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        n_ff: u64,
    ) -> GgufBuilder {
        file = self.matrix(file, &name("ffn_down.weight"), N_EMBD, N_FF);
        file = self.matrix(file, &name("ffn_gate_inp.weight"), EXPERTS, N_EMBD);
        for (tensor, rows, cols) in [
            ("ffn_gate_up_exps.weight", 2 * n_ff, N_EMBD),
            ("ffn_down_exps.weight", N_EMBD, n_ff),
        ] {
            let values = self.values(EXPERTS * rows * cols, 0.4);
            file = file.tensor_f32(&name(tensor), &[cols, rows, EXPERTS], &values);
        }
        for (tensor, len) in [
            ("post_ffw_norm_1.weight", N_EMBD),
            ("pre_ffw_norm_2.weight", N_EMBD),
            ("post_ffw_norm_2.weight", N_EMBD),
            ("ffn_gate_inp.scale", N_EMBD),
            ("ffn_down_exps.scale", EXPERTS),
        ] {
            file = self.norm(file, &name(tensor), len);
        }
        file
    }

    fn expert_biases(
        &mut self,
        mut file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
    ) -> GgufBuilder {
        file = self.vector(file, &name("ffn_gate_inp.bias"), EXPERTS);
        for (tensor, rows) in [
            ("ffn_gate_exps.bias", EXPERT_FF),
            ("ffn_up_exps.bias", EXPERT_FF),
            ("ffn_down_exps.bias", N_EMBD),
        ] {
            let values = self.values(EXPERTS * rows, 0.4);
            file = file.tensor_f32(&name(tensor), &[rows, EXPERTS], &values);
        }
        file
    }

    fn gated_shared_expert(
        &mut self,
        file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
    ) -> GgufBuilder {
        let file = self.vector(file, &name("ffn_gate_inp_shexp.weight"), N_EMBD);
        self.shared_expert(file, name, SHARED_FF)
    }

    fn shared_expert(
        &mut self,
        file: GgufBuilder,
        name: &dyn Fn(&str) -> String,
        n_ff: u64,
    ) -> GgufBuilder {
        let file = self.matrix(file, &name("ffn_gate_shexp.weight"), n_ff, N_EMBD);
        let file = self.matrix(file, &name("ffn_up_shexp.weight"), n_ff, N_EMBD);
        self.matrix(file, &name("ffn_down_shexp.weight"), N_EMBD, n_ff)
    }

    fn vector(&mut self, file: GgufBuilder, name: &str, len: u64) -> GgufBuilder {
        file.tensor_f32(name, &[len], &self.values(len, 0.4))
    }

    /// Values around 1, as in trained norms.
    fn norm(&mut self, file: GgufBuilder, name: &str, len: u64) -> GgufBuilder {
        let values: Vec<f32> = self
            .values(len, 0.2)
            .iter()
            .map(|value| 1.0 + value)
            .collect();
        file.tensor_f32(name, &[len], &values)
    }
}
