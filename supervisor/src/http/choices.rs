//! Several choices of one answer: how many there are, and what each is asked for.
//!
//! Each choice is a request of its own, named `{answer}.{index}`. Choice `k` of a prompt is drawn with the seed
//! `seed + k`, so it is, byte for byte, what a request for it alone with that seed gets. Choices are numbered as
//! the OpenAI API numbers them: all of the first prompt, then all of the second.

use super::error::ApiError;
use super::generation::Input;
use super::mistakes::Constraint;
use serde::{Deserialize, Serialize};
use worker_orcd_ipc::Sampling;

/// `n` of a request, at most.
pub const MAX_N: u32 = 8;

/// Prompts of a request, at most.
pub const MAX_PROMPTS: usize = 32;

/// Choices of an answer that tells log probabilities, at most: they are kept until the last choice has ended.
pub const MAX_WITH_LOGPROBS: usize = 32;

/// How many choices an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub prompts: u32,
    /// Choices of each prompt.
    pub n: u32,
}

impl Default for Layout {
    fn default() -> Self {
        Self { prompts: 1, n: 1 }
    }
}

impl Layout {
    #[must_use]
    pub fn count(self) -> usize {
        self.prompts as usize * self.n as usize
    }

    /// The place of each choice, in the order of their numbers.
    pub fn places(self) -> impl Iterator<Item = Place> {
        let n = self.n.max(1);
        (0..self.prompts * self.n).map(move |index| Place {
            index,
            prompt: (index / n) as usize,
            k: index % n,
        })
    }

    /// Tokens of all prompts, each counted once. `tokens_in` are those of each choice's prompt.
    #[must_use]
    pub fn prompt_tokens(self, tokens_in: impl IntoIterator<Item = u32>) -> u32 {
        let of_prompts = tokens_in.into_iter().step_by(self.n.max(1) as usize);
        of_prompts.fold(0, u32::saturating_add)
    }

    /// Refuses what no queue of this worker has room for, and too many with log probabilities.
    ///
    /// # Errors
    /// When more than `most` are asked for, or than there may be.
    pub fn check(self, most: usize, has_logprobs: bool) -> Result<(), ApiError> {
        let most = match has_logprobs {
            true => most.min(MAX_WITH_LOGPROBS),
            false => most,
        };
        if self.count() <= most {
            return Ok(());
        }
        let field = if self.n > 1 { "n" } else { "prompt" };
        let message = format!(
            "asks for {} choices, and this worker takes {most} at a time",
            self.count()
        );
        Err(ApiError::invalid_field(field, Constraint::Range, message))
    }
}

/// The place of a choice in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the choice.
    pub index: u32,
    /// Number of its prompt.
    pub prompt: usize,
    /// Choices of the same prompt before it.
    pub k: u32,
}

impl Place {
    /// How its tokens are drawn.
    #[must_use]
    pub fn sampling(self, asked: Sampling) -> Sampling {
        Sampling {
            seed: asked.seed.wrapping_add(u64::from(self.k)),
            ..asked
        }
    }
}

/// What is asked for beside the first choice.
#[derive(Debug, Clone, PartialEq)]
pub struct More {
    /// Prompts behind the first.
    pub prompts: Vec<Input>,
    /// Choices of each prompt.
    pub n: u32,
}

impl Default for More {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            n: 1,
        }
    }
}

impl More {
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            prompts: u32::try_from(self.prompts.len()).map_or(u32::MAX, |more| more + 1),
            n: self.n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_is_counted_once() {
        let layout = Layout { prompts: 2, n: 3 };
        assert_eq!(layout.prompt_tokens([5, 5, 5, 7, 7, 7]), 12);
        assert_eq!(Layout::default().prompt_tokens([5]), 5);
    }

    #[test]
    fn what_never_fits_is_refused_by_name() {
        let error = |prompts, n| {
            let refused = Layout { prompts, n }.check(6, false).unwrap_err();
            refused.body(crate::http::error::Dialect::OpenAi)["error"]["param"].clone()
        };
        assert_eq!(error(1, 7), "n");
        assert_eq!(error(7, 1), "prompt");
        assert!(Layout { prompts: 2, n: 3 }.check(6, false).is_ok());
        let many = Layout { prompts: 11, n: 3 };
        assert!(many.check(100, false).is_ok());
        assert!(many.check(100, true).is_err());
    }
}
