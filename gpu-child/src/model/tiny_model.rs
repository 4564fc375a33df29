//! Complete GGUF files with two small layers of pseudo-random weights, one for each
//! architecture: for tests and tools that need a model but no sense in what it says.

use super::architecture::Architecture;
use super::gguf_builder::{GgufBuilder, Meta};

pub const N_LAYERS: u32 = 2;
pub const N_EMBD: u64 = 64;
pub const N_FF: u64 = 96;
pub const N_HEADS: u64 = 4;
pub const N_KV_HEADS: u64 = 2;
pub const HEAD_DIM: u64 = 16;
pub const CONTEXT_LENGTH: u32 = 256;
/// Tokens: one a byte, and the special ones behind them.
pub const VOCAB: u64 = 256 + SPECIALS.len() as u64;
pub const EOS: u32 = 257;

const SPECIALS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<unk>"];

/// A file of F32 tensors. The vocabulary has a token for each byte and no merges.
#[must_use]
pub fn tiny_model(architecture: Architecture) -> GgufBuilder {
    let (q_dim, kv_dim) = (N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM);
    let mut random = Random(0x5eed);
    let mut file = metadata(architecture);
    file = random.matrix(file, "token_embd.weight", VOCAB, N_EMBD);
    file = random.norm(file, "output_norm.weight", N_EMBD);
    for layer in 0..N_LAYERS {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        file = random.norm(file, &name("attn_norm.weight"), N_EMBD);
        if architecture == Architecture::Phi3 {
            file = random.matrix(file, &name("attn_qkv.weight"), q_dim + 2 * kv_dim, N_EMBD);
            file = random.matrix(file, &name("ffn_up.weight"), 2 * N_FF, N_EMBD);
        } else {
            file = random.matrix(file, &name("attn_q.weight"), q_dim, N_EMBD);
            file = random.matrix(file, &name("attn_k.weight"), kv_dim, N_EMBD);
            file = random.matrix(file, &name("attn_v.weight"), kv_dim, N_EMBD);
            file = random.matrix(file, &name("ffn_gate.weight"), N_FF, N_EMBD);
            file = random.matrix(file, &name("ffn_up.weight"), N_FF, N_EMBD);
        }
        if architecture == Architecture::Qwen2 {
            file = random.vector(file, &name("attn_q.bias"), q_dim);
            file = random.vector(file, &name("attn_k.bias"), kv_dim);
            file = random.vector(file, &name("attn_v.bias"), kv_dim);
        }
        if architecture == Architecture::Qwen3 {
            file = random.norm(file, &name("attn_q_norm.weight"), HEAD_DIM);
            file = random.norm(file, &name("attn_k_norm.weight"), HEAD_DIM);
        }
        file = random.matrix(file, &name("attn_output.weight"), N_EMBD, q_dim);
        file = random.norm(file, &name("ffn_norm.weight"), N_EMBD);
        file = random.matrix(file, &name("ffn_down.weight"), N_EMBD, N_FF);
    }
    file
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
        .meta(&key("block_count"), N_LAYERS)
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

/// GPT-2's printable stand-in for a byte.
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

    fn vector(&mut self, file: GgufBuilder, name: &str, len: u64) -> GgufBuilder {
        file.tensor_f32(name, &[len], &self.values(len, 0.4))
    }

    /// Around 1, as norms are.
    fn norm(&mut self, file: GgufBuilder, name: &str, len: u64) -> GgufBuilder {
        let values: Vec<f32> = self
            .values(len, 0.2)
            .iter()
            .map(|value| 1.0 + value)
            .collect();
        file.tensor_f32(name, &[len], &values)
    }
}
