//! Drafts of an answer: how many were verified, and how many were accepted.
//!
//! A child reports drafts with the tokens of their step, and the log has both in one entry. So a step counts in neither
//! if its report is lost with a child or a supervisor: its tokens are sampled again, behind new drafts. An accepted
//! draft is always a token of the answer.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafts {
    /// Drafts that a step compared with sampled tokens.
    pub verified: u32,
    /// Tokens of the answer that are such drafts.
    pub accepted: u32,
}

impl Drafts {
    /// A draft that became a token.
    pub(crate) const ACCEPTED: Self = Self {
        verified: 0,
        accepted: 1,
    };

    pub(crate) fn verified(drafts: u32) -> Self {
        Self {
            verified: drafts,
            accepted: 0,
        }
    }

    /// Drafts that are no tokens of the answer: wrong ones, and all behind the first wrong one or the end.
    #[must_use]
    pub fn rejected(self) -> u32 {
        self.verified.saturating_sub(self.accepted)
    }

    /// Sum. The counts of a child are unchecked input, so it saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            verified: self.verified.saturating_add(other.verified),
            accepted: self.accepted.saturating_add(other.accepted),
        }
    }

    /// Removes accepted drafts behind the first `tokens` tokens, which the answer has lost.
    pub(crate) fn cut(&mut self, tokens: usize) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let lost = self.accepted.saturating_sub(tokens);
        self.accepted -= lost;
        self.verified = self.verified.saturating_sub(lost);
    }
}
