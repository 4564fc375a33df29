//! How long thoughts may be.

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};

/// A bound on the tokens between two tags. Where so many were generated and the closing tag has not come, its
/// tokens are the next ones. `gpu-child/src/scheduler/thoughts.rs` defines what counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThinkingBudget {
    /// Tokens of thoughts, at most.
    pub tokens: u32,
    /// The tag with which thoughts begin, at the beginning of the answer or nowhere; `None` where the prompt
    /// ends with it.
    pub open: Option<String>,
    /// The tag with which they end.
    pub close: String,
    /// Tokens whose text ends with that tag. At least one, at most [`MAX_CLOSING_TOKENS`].
    pub closing: Vec<TokenId>,
}

/// More than any tag has bytes, each of which may be a token.
pub const MAX_CLOSING_TOKENS: usize = 64;

impl ThinkingBudget {
    /// True for one that can be followed with a vocabulary of that many tokens.
    #[must_use]
    pub fn is_sound(&self, vocabulary: u32) -> bool {
        let is_known = |token: &TokenId| token.0 < vocabulary;
        let is_tag = |tag: &String| !tag.is_empty();
        (1..=MAX_CLOSING_TOKENS).contains(&self.closing.len())
            && self.closing.iter().all(is_known)
            && is_tag(&self.close)
            && self.open.as_ref().is_none_or(is_tag)
    }
}
