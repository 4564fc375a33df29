//! Prompts whose log probabilities are wanted.
//!
//! Every position's row tells of the token behind it, so positions that are in the cache already are computed
//! again, but for those that were told of. Such a prompt takes [`ROWS`] of a step at most: to read a row takes
//! time of the thread that everybody waits for. Nothing is drawn before all of it was told.

use super::Scheduler;
use super::fair_queue::Candidate;
use super::sequence::Sequence;
use crate::logprobs::WantedPart;
use worker_orcd_ipc::{PromptLogprobs, Scored, TokenId};

/// Tokens of such prompts in a step. A row of a large vocabulary is read in about a millisecond, and a cancellation
/// waits for no longer than a step.
pub(super) const ROWS: usize = 32;

/// How far the log probabilities of a prompt were told.
#[derive(Debug)]
pub(super) struct Scoring {
    top: u8,
    told: usize,
    /// Tokens that are to be told of: all of the prompt but the first.
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

    /// Positions whose rows are not needed any more, where others are.
    pub(super) fn told(&self) -> usize {
        self.told
    }

    /// What the rows of these positions tell.
    pub(super) fn part(
        &self,
        sequence: &Sequence,
        positions: std::ops::Range<usize>,
        tokens: &[TokenId],
    ) -> Option<WantedPart> {
        let (first, end) = (positions.start.max(self.told), positions.end.min(self.all));
        (first == self.told && first < end).then(|| WantedPart {
            request: sequence.request,
            top: self.top,
            first: first as u32,
            tokens: tokens[first + 1..=end].to_vec(),
        })
    }

    fn tell(&mut self, count: usize) {
        self.told += count;
    }
}

impl Candidate {
    /// Tokens that it may have of a step in which such prompts have so many, if it is bounded.
    pub(super) fn most_scored(&self, scored: usize) -> Option<usize> {
        self.scores.then(|| ROWS - scored)
    }
}

impl Scheduler {
    /// Rows of the planned step that tell of prompts.
    pub fn prompt_rows_wanted(&self) -> impl Iterator<Item = WantedPart> {
        self.planned_sequences()
            .filter_map(|(sequence, tokens)| sequence.scored_part(tokens))
    }

    /// Parts of prompts that are told of with the planned step.
    pub fn score(&mut self, scored: &[Scored]) {
        for part in scored {
            let mut running = self.running.iter_mut();
            let sequence = running.find(|it| it.request == part.request);
            if let Some(scoring) = sequence.and_then(|it| it.scoring.as_mut()) {
                scoring.tell(part.logprobs.len());
            }
        }
    }
}
