//! Log probabilities of prompts.
//!
//! The row of each position yields the log probability of the next token, so cached positions are computed again,
//! except those already reported. Such prompts take at most [`ROWS`] tokens of a step: reading a row costs time of the
//! engine thread, for which all sequences wait. No token is sampled before the whole prompt is reported.

use super::fair_queue::Candidate;
use super::sequence::Sequence;
use crate::logprobs::PromptPart;
use worker_orcd_ipc::{PromptLogprobs, TokenId};

/// Maximum tokens of such prompts in a step. Reading a row of a large vocabulary takes about a millisecond, and a
/// cancellation waits for at most a step.
pub(super) const ROWS: usize = 32;

/// Progress of a prompt's log probabilities.
#[derive(Debug)]
pub(super) struct Scoring {
    top: u8,
    told: usize,
    /// Tokens to report: all of the prompt but the first.
    all: usize,
}

impl Scoring {
    pub(super) fn new(order: PromptLogprobs, prompt_len: usize) -> Self {
        Self {
            top: order.top,
            told: order.reported as usize,
            all: prompt_len.saturating_sub(1),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.told >= self.all
    }

    /// Positions with reported log probabilities; their rows are not needed again.
    pub(super) fn reported(&self) -> usize {
        self.told
    }

    /// Log probabilities that the rows of these positions yield.
    pub(super) fn part(
        &self,
        sequence: &Sequence,
        positions: std::ops::Range<usize>,
        tokens: &[TokenId],
    ) -> Option<PromptPart> {
        let (first, end) = (positions.start.max(self.told), positions.end.min(self.all));
        (first == self.told && first < end).then(|| PromptPart {
            request: sequence.request,
            top: self.top,
            first: first as u32,
            tokens: tokens[first + 1..=end].to_vec(),
        })
    }

    pub(super) fn report(&mut self, count: usize) {
        self.told += count;
    }
}

impl Candidate {
    /// Maximum tokens in a step in which such prompts already have `scored`. `None`: unlimited.
    pub(super) fn most_scored(&self, scored: usize) -> Option<usize> {
        self.scores.then(|| ROWS - scored)
    }
}
