//! Log probabilities of generated and prompt tokens, and of the most likely alternatives.
//!
//! They are the log-softmax of the raw logits, before penalties, temperature and truncation (vLLM: `raw_logprobs`). Values
//! are natural logarithms, at most 0.

use crate::ids::{RequestId, TokenId};
use serde::{Deserialize, Serialize};

/// Maximum number of alternatives per position.
pub const MAX_TOP_LOGPROBS: u8 = 20;

/// Log probabilities at one position of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Log probability of the token at this position.
    pub of_token: f32,
    /// Position of the token in the order of `top`, counted from 1, over the whole vocabulary.
    pub rank: u32,
    /// The requested number of most likely tokens, or the whole vocabulary if that is smaller. Ordered by descending
    /// probability, then by ascending id.
    pub top: Vec<(TokenId, f32)>,
}

/// Request for log probabilities of all prompt tokens but the first, which has no predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// Number of alternatives per position, at most [`MAX_TOP_LOGPROBS`].
    pub top: u8,
    /// Number of prompt tokens that earlier children have reported.
    pub reported: u32,
}

/// Log probabilities of the next tokens of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    pub request: RequestId,
    /// Number of prompt tokens reported before these, over all children. The supervisor accepts only the next ones.
    pub first: u32,
    pub logprobs: Vec<Logprobs>,
}

/// Log probabilities of a generated token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrawnLogprobs {
    pub request: RequestId,
    /// Index of the token; see [`Drawn::index`](crate::Drawn::index).
    pub index: u32,
    pub logprobs: Logprobs,
}
