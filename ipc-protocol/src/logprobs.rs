//! Log probabilities: how likely the model finds a token, and which other tokens it finds likely.
//!
//! They are the log-softmax of the model's raw logits, before penalties, temperature and cuts: natural
//! logarithms, at most 0. vLLM calls them `raw_logprobs`.

use crate::ids::{RequestId, TokenId};
use serde::{Deserialize, Serialize};

/// Most likely tokens that can be asked for at each place, at most.
pub const MAX_TOP_LOGPROBS: u8 = 20;

/// The log probabilities at one place of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// That of the token at this place.
    pub of_token: f32,
    /// As many tokens as were asked for, or the whole vocabulary where that is smaller. The most likely
    /// comes first, the lower id first of equals.
    pub top: Vec<(TokenId, f32)>,
}

/// The log probabilities of a prompt's tokens are wanted: of each but the first, which nothing comes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptLogprobs {
    /// Most likely tokens beside each, at most [`MAX_TOP_LOGPROBS`].
    pub top: u8,
    /// Tokens that were told of before, over all children.
    pub told: u32,
}

/// Log probabilities of the next tokens of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    pub request: RequestId,
    /// Tokens that were told of before these, over all children. The supervisor accepts exactly the next ones.
    pub first: u32,
    pub logprobs: Vec<Logprobs>,
}

/// Log probabilities of a token that was drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrawnLogprobs {
    pub request: RequestId,
    /// As [`Drawn::index`](crate::Drawn::index).
    pub index: u32,
    pub logprobs: Logprobs,
}
