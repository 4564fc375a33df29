//! Pooling: how the hidden states of a text's tokens become one vector.

use serde::{Deserialize, Serialize};

/// The pooling of an embedding or of a score. Numbers of a file (`{arch}.pooling_type`) are those of llama.cpp's
/// `enum llama_pooling_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// A reranker's: the last token's, before the head that makes a score of it.
    Rank,
}

impl Pooling {
    /// The pooling of embeddings behind a file's number. `None` for 0 (none), 4 (rank, of rerankers, which give none) and
    /// whatever else there may be.
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
