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

impl PlannedDrafts<'_> {
    /// Appends the drafts. No step may be in flight.
    pub(super) fn add(&mut self, cache: &mut KvPages) {
        let (allowance, limits) = (self.allowance, self.limits);
        for sequence in self.decoding() {
            sequence.draft(allowance, limits, cache);
        }
        let offers: Vec<_> = self.decoding().map(|it| it.offer()).collect();
        let choice = self.choice(&offers, false);
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
        let choice = self.choice(&offers, true);
        if choice.is_none() {
            self.pass_over(&offers, &vec![0; offers.len()]);
        }
        choice.is_some()
    }

    fn decoding(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.running.iter_mut().filter(|it| it.decodes())
    }

    fn choice(&self, offers: &[Offer], is_in_flight: bool) -> Option<Choice> {
        let most_rows = self.limits.max_batch_tokens as usize;
        choose(offers, self.seconds, is_in_flight, most_rows)
    }

    fn pass_over(&mut self, offers: &[Offer], lengths: &[usize]) {
        for ((sequence, offer), length) in self.decoding().zip(offers).zip(lengths) {
            if offer.most > 0 && *length == 0 {
                sequence.pass_over(*offer);
            }
        }
    }
}
