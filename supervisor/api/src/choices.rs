//! Several choices of one answer: their number and their parameters.
//!
//! Each choice is a separate request with the id `{answer}.{index}`. Choice `k` of a prompt uses the seed `seed + k`,
//! so it is byte for byte equal to the answer of a single request with that seed. Choices are numbered as in the OpenAI
//! API: all of the first prompt, then all of the second.

use crate::error::ApiError;
use crate::mistakes::Constraint;
use crate::request::Input;
use serde::{Deserialize, Serialize};
use worker_orcd_ipc::Sampling;

/// Largest `n`.
pub const MAX_N: u32 = 8;

/// Largest number of prompts of a request.
pub const MAX_PROMPTS: usize = 32;

/// Largest number of choices with log probabilities, which are kept until the last choice ends.
pub const MAX_WITH_LOGPROBS: usize = 32;

/// Number of choices of an answer.
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

    /// Positions of all choices, in order.
    pub fn places(self) -> impl Iterator<Item = Place> {
        let n = self.n.max(1);
        (0..self.prompts * self.n).map(move |index| Place {
            index,
            prompt: (index / n) as usize,
            k: index % n,
        })
    }

    /// Tokens of all prompts, each counted once. `tokens_in`: prompt tokens of each choice.
    #[must_use]
    pub fn prompt_tokens(self, tokens_in: impl IntoIterator<Item = u32>) -> u32 {
        let of_prompts = tokens_in.into_iter().step_by(self.n.max(1) as usize);
        of_prompts.fold(0, u32::saturating_add)
    }

    /// Checks the limits of choices.
    ///
    /// # Errors
    /// If there are more than `most`, which is the queue's size, or too many with log probabilities.
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

/// Position of a choice in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the choice.
    pub index: u32,
    /// Number of its prompt.
    pub prompt: usize,
    /// Number of the choice among those of its prompt.
    pub k: u32,
}

impl Place {
    /// Sampling parameters of this choice.
    #[must_use]
    pub fn sampling(self, asked: Sampling) -> Sampling {
        Sampling {
            seed: asked.seed.wrapping_add(u64::from(self.k)),
            ..asked
        }
    }
}

/// Further choices after the first.
#[derive(Debug, Clone, PartialEq)]
pub struct More {
    /// Prompts after the first.
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
            refused.body(crate::error::Dialect::OpenAi)["error"]["param"].clone()
        };
        assert_eq!(error(1, 7), "n");
        assert_eq!(error(7, 1), "prompt");
        assert!(Layout { prompts: 2, n: 3 }.check(6, false).is_ok());
        let many = Layout { prompts: 11, n: 3 };
        assert!(many.check(100, false).is_ok());
        assert!(many.check(100, true).is_err());
    }
}
