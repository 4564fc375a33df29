//! Drafts of the planned step: of those that its sequences can have, the ones with which it yields most.

use super::Limits;
use super::draft_lengths::{Choice, Offer, StepSeconds, choose};
use super::drafts::Allowance;
use super::sequence::Sequence;
use crate::kv_pages::KvPages;

pub(super) struct PlannedDrafts<'a> {
    pub running: &'a mut [Sequence],
    pub limits: &'a Limits,
    pub allowance: Allowance,
    pub seconds: &'a StepSeconds,
}

/// Maximum rows of a step with drafts. Half of a batch is left for prompts.
pub(super) fn draft_rows(limits: &Limits, running: &[Sequence]) -> usize {
    let rows = limits.max_batch_tokens as usize;
    match running.iter().all(Sequence::decodes) {
        true => rows,
        false => rows / 2,
    }
}

impl PlannedDrafts<'_> {
    /// Appends the drafts. No step may be in flight.
    pub(super) fn add(&mut self, cache: &mut KvPages) {
        let (allowance, limits) = (self.allowance, self.limits);
        for sequence in self.decoding() {
            sequence.draft(allowance, limits, cache);
        }
        let offers: Vec<_> = self.decoding().map(|it| it.offer()).collect();
        let choice = self.choice(&offers);
        let lengths = choice.map_or_else(|| vec![0; offers.len()], |it| it.lengths);
        for (sequence, length) in self.decoding().zip(&lengths) {
            sequence.shorten_drafts(*length);
        }
        self.pass_over(&offers, &lengths);
    }

    /// True if the step yields more with drafts behind the tokens in flight than launched ahead.
    pub(super) fn await_tokens(&mut self) -> bool {
        let (allowance, limits) = (self.allowance, self.limits);
        let offers = self.decoding().map(|it| it.offer_behind(allowance, limits));
        let offers: Vec<_> = offers.collect();
        let choice = self.choice(&offers);
        if choice.is_none() {
            self.pass_over(&offers, &vec![0; offers.len()]);
        }
        choice.is_some()
    }

    fn decoding(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.running.iter_mut().filter(|it| it.decodes())
    }

    fn choice(&self, offers: &[Offer]) -> Option<Choice> {
        choose(offers, self.seconds, draft_rows(self.limits, self.running))
    }

    fn pass_over(&mut self, offers: &[Offer], lengths: &[usize]) {
        for ((sequence, offer), length) in self.decoding().zip(offers).zip(lengths) {
            if offer.most > 0 && *length == 0 {
                sequence.pass_over(*offer);
            }
        }
    }
}
