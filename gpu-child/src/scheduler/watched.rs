//! Rows of the planned step that somebody wants to see: those behind log probabilities, and those behind
//! embeddings.
//!
//! A prompt that becomes an embedding is a prompt like any other, at whose end no token is drawn. It ends with
//! the step that has its last token.

use super::Scheduler;
use super::sequence::Sequence;
use crate::pooling::HiddenRow;
use worker_orcd_ipc::RequestId;

impl Scheduler {
    /// Requests of the planned step whose log probabilities are wanted, and of how many most likely
    /// tokens each.
    pub fn logprobs_wanted(&self) -> impl Iterator<Item = (RequestId, u8)> {
        let planned = self.planned_sequences();
        planned.filter_map(|(s, _)| Some((s.request, s.logprobs?)))
    }

    /// Requests of the planned step whose embeddings need rows of it.
    pub fn hidden_wanted(&self) -> impl Iterator<Item = RequestId> {
        let planned = self.planned_sequences();
        planned.filter_map(|(s, tokens)| s.pools(tokens).then_some(s.request))
    }

    /// Somebody who runs or waits wants to see rows of a prompt, which are read while a step is begun.
    #[must_use]
    pub fn reads_prompts(&self) -> bool {
        let mut all = self.running.iter().chain(&self.waiting);
        all.any(|it| it.pool.is_some() || it.scores_are_missing())
    }

    /// Takes a row that an embedding is made of.
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
