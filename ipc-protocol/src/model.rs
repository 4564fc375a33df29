//! Facts that a child reports: of the model it loaded, the tokenizer inside it, and its device.

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`, such as `qwen3moe`.
    pub architecture: String,
    /// The tensor type that most weight bytes have, such as `Q4_1`: what was really loaded, not
    /// what the file's name says.
    pub quant_kind: String,
    /// Every tensor type with its share: `(name, tensors, bytes)`.
    pub tensor_types: Vec<(String, u32, u64)>,
    pub parameters: u64,
    pub file_bytes: u64,
    pub n_layers: u32,
    pub n_embd: u32,
    pub n_heads: u32,
    pub n_kv_heads: u32,
    pub head_dim: u32,
    pub vocab_size: u32,
    /// `{arch}.context_length`: what the model was trained for, in tokens.
    pub context_length: u32,
    /// `{arch}.pooling_type` as the file has it: a number that [`Pooling::of_file`](crate::Pooling::of_file) reads.
    pub pooling_type: Option<u32>,
    /// `tokenizer.chat_template.rerank`, with `{query}` and `{document}` in it. `None` of a file that is no reranker's, or
    /// not a whole one: prompts can be scored only where it is here.
    pub rerank_template: Option<String>,
}

/// Checksum of everything that the next token's computation reads: each byte of the weights as they
/// were placed, and each hyperparameter. Two loads on one device with equal identities compute the
/// same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity(pub [u8; 16]);

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// `general.sampling.*` of a GGUF file: how its makers would have tokens drawn where a request does
/// not say. No part of the model's identity, since a request carries its values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingAdvice {
    pub temperature: Option<f32>,
    /// 0 means off.
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    /// Keys whose values no request may have either.
    pub out_of_range: Vec<String>,
    /// Keys of what the sampler does not do.
    pub unsupported: Vec<String>,
}

/// `tokenizer.ggml.*` of a GGUF file, so that the supervisor can build a tokenizer without
/// opening the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizerFacts {
    pub kind: TokenizerKind,
    /// `tokenizer.ggml.pre`: which pre-tokenizer the merges expect; empty for SentencePiece.
    pub pre: String,
    /// Index is the token id.
    pub tokens: Vec<String>,
    /// Same length as `tokens`.
    pub kinds: Vec<TokenKind>,
    /// SentencePiece scores, same length as `tokens`; empty for byte-level BPE.
    pub scores: Vec<f32>,
    /// `left right`, best first; empty for SentencePiece.
    pub merges: Vec<String>,
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    /// Every token that ends generation: eos, eot, and the well-known texts of chat models.
    pub end_of_generation: Vec<TokenId>,
    pub unknown: Option<TokenId>,
    pub add_bos: bool,
    pub add_eos: bool,
    /// SentencePiece: put a space before the text.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// `cpu` or `cuda:N`.
    pub id: String,
    /// Such as `AMD EPYC 7763` or `NVIDIA H200`.
    pub name: String,
    pub uuid: Option<String>,
    pub driver: Option<String>,
    pub compute_capability: Option<(u32, u32)>,
    /// Instruction sets in use on the CPU device: `avx2`, `fma`, or empty for the portable path.
    pub features: Vec<String>,
    /// Threads of the CPU device.
    pub threads: Option<u32>,
}
