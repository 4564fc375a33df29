//! Limit on reasoning tokens.

use crate::ids::TokenId;
use serde::{Deserialize, Serialize};

/// Limit on the tokens between two reasoning tags. When it is reached without a closing tag, the tokens of the closing tag
/// are forced. `gpu-child/src/scheduler/reasoning_budget.rs` defines which tokens count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThinkingBudget {
    /// Maximum number of reasoning tokens.
    pub tokens: u32,
    /// Opening tag, recognised only at the start of the answer. `None`: the prompt ends with it.
    pub open: Option<String>,
    /// Closing tag.
    pub close: String,
    /// Tokens of a text that ends with the closing tag. At least one, at most [`MAX_CLOSING_TOKENS`].
    pub closing: Vec<TokenId>,
}

/// Maximum length of [`ThinkingBudget::closing`]: more than the bytes of any tag, each of which may be one token.
pub const MAX_CLOSING_TOKENS: usize = 64;

impl ThinkingBudget {
    /// True if the tags are not empty, and the closing tokens are within their limit and a vocabulary of this size.
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
