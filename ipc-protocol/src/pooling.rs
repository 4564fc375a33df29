//! Pooling of the hidden states of a text's tokens into one vector.

use serde::{Deserialize, Serialize};

/// Pooling of an embedding or a score. `{arch}.pooling_type` in a GGUF file has the values of llama.cpp's
/// `enum llama_pooling_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// Mean over all tokens.
    Mean,
    /// First token.
    Cls,
    /// Last token.
    Last,
    /// Last token, followed by the reranker's classification head.
    Rank,
}

impl Pooling {
    /// Pooling of embeddings for a value of `{arch}.pooling_type`. `None` for 0 (none), for 4 (rank: a reranker has no
    /// embeddings), and for unknown values.
    #[must_use]
    pub fn of_file(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Mean),
            2 => Some(Self::Cls),
            3 => Some(Self::Last),
            _ => None,
        }
    }
}
