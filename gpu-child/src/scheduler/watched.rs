//! Rows of the planned step that are copied to the host: for log probabilities and for embeddings.
//!
//! A prompt of an embedding is scheduled like any other, but no token is sampled at its end. It ends with the step of
//! its last token.

use super::Scheduler;
use super::sequence::Sequence;
use crate::pooling::HiddenRow;
use worker_orcd_ipc::RequestId;

impl Scheduler {
    /// Requests of the planned step with requested log probabilities, each with its number of most likely tokens.
    pub fn logprobs_wanted(&self) -> impl Iterator<Item = (RequestId, u8)> {
        let planned = self.planned_sequences();
        planned.filter_map(|(s, _)| Some((s.request, s.logprobs?)))
    }

    /// Requests of the planned step with rows for an embedding.
    pub fn hidden_wanted(&self) -> impl Iterator<Item = RequestId> {
        let planned = self.planned_sequences();
        planned.filter_map(|(s, tokens)| s.pools(tokens).then_some(s.request))
    }

    /// True if a running or waiting request needs rows of a prompt, which are copied while the step runs.
    #[must_use]
    pub fn reads_prompts(&self) -> bool {
        let mut all = self.running.iter().chain(&self.waiting);
        all.any(|it| it.pool.is_some() || it.scores_are_missing())
    }

    /// Adds a row to its request's embedding.
    pub fn pool(&mut self, row: &HiddenRow) {
        let is_its = |it: &&mut Sequence| it.request == row.request;
        let sequence = self.running.iter_mut().find(is_its);
        if let Some(pool) = sequence.and_then(|it| it.pool.as_mut()) {
            pool.add(row.position as usize, &row.values);
        }
    }

    pub(super) fn planned_sequences(&self) -> impl Iterator<Item = (&Sequence, usize)> {
        let parts = self.running.iter().zip(self.planned.iter().copied());
        parts.filter(|(_, tokens)| *tokens > 0)
    }
}
