//! Properties of a loaded model, its tokenizer, and the device, as a child reports them.

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Properties of a model. Names in backquotes are metadata keys of the GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`, such as `qwen3moe`.
    pub architecture: String,
    /// Tensor type of most weight bytes, such as `Q4_1`, counted over the loaded tensors.
    pub quant_kind: String,
    /// All tensor types: `(name, tensors, bytes)`.
    pub tensor_types: Vec<(String, u32, u64)>,
    pub parameters: u64,
    pub file_bytes: u64,
    pub n_layers: u32,
    pub n_embd: u32,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub vocab_size: u32,
    /// `{arch}.context_length`: context length of the training, in tokens.
    pub context_length: u32,
    /// `{arch}.pooling_type`; see [`Pooling::of_file`](crate::Pooling::of_file).
    pub pooling_type: Option<u32>,
    /// `tokenizer.chat_template.rerank`, with the placeholders `{query}` and `{document}`. `None`: the model is not a
    /// complete reranker, and scoring is refused.
    pub rerank_template: Option<String>,
}

/// Checksum of all inputs of the computation but the tokens: each byte of the loaded weights, and each hyperparameter. Loads
/// with equal identities on one device compute equal results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity(pub [u8; 16]);

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// `general.sampling.*` of a GGUF file: default sampling parameters for requests. They are not part of the model's identity,
/// because each request carries its values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingAdvice {
    pub temperature: Option<f32>,
    /// 0: disabled.
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Keys with values outside the ranges of [`Sampling`](crate::Sampling).
    pub out_of_range: Vec<String>,
    /// Keys that the sampler does not implement.
    pub unsupported: Vec<String>,
}

/// `tokenizer.ggml.*` of a GGUF file. The supervisor builds its tokenizer from it, without access to the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizerFacts {
    pub kind: TokenizerKind,
    /// `tokenizer.ggml.pre`: name of the pre-tokenizer of byte-level BPE; empty for others.
    pub pre: String,
    /// Texts of the tokens, by id.
    pub tokens: Vec<String>,
    /// Kinds of the tokens, by id; as many as `tokens`.
    pub kinds: Vec<TokenKind>,
    /// SentencePiece scores, by id; as many as `tokens`. Empty for others.
    pub scores: Vec<f32>,
    /// Merges of BPE as `left right`, by descending priority. Empty for SentencePiece.
    pub merges: Vec<String>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    /// All tokens that end generation: EOS, EOT, and the well-known end markers of chat models.
    pub end_of_generation: Vec<TokenId>,
    pub unknown: Option<TokenId>,
    pub add_bos: bool,
    pub add_eos: bool,
    /// SentencePiece: whether a space is added before the text.
    pub add_space_prefix: bool,
    /// `tokenizer.chat_template`, a Jinja template.
    pub chat_template: Option<String>,
}

/// `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenizerKind {
    /// `gpt2`: byte-level BPE.
    ByteLevelBpe,
    /// `llama`: SentencePiece-style BPE on scores with byte fallback.
    SentencePiece,
    /// `gemma4`: BPE on characters by a list of merges, with `▁` for spaces and byte fallback.
    CharacterBpe,
}

/// `tokenizer.ggml.token_type`, numbered as in the GGUF specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// `cpu` or `cuda:N`.
    pub id: String,
    /// Product name, such as `AMD EPYC 7763` or `NVIDIA H200`.
    pub name: String,
    pub uuid: Option<String>,
    pub driver: Option<String>,
    pub compute_capability: Option<(u32, u32)>,
    /// Instruction set extensions that the CPU device uses: `avx2`, `fma`. Empty for the portable code.
    pub features: Vec<String>,
    /// Number of threads of the CPU device.
    pub threads: Option<u32>,
}
