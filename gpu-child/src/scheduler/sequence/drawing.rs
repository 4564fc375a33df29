//! A sequence in a step: its rows, and the source of its next tokens: samples that are decided once the step is
//! launched, behind drafts or not, or tokens forced by its grammar.

use super::Sequence;
use crate::device::{PageId, SampleWork, SequenceWork, TO_BE_DRAWN};
use crate::kv_pages::KvPages;
use crate::scheduler::Limits;
use crate::scheduler::draft_lengths::Offer;
use crate::scheduler::draft_model::Proposal;
use crate::scheduler::drafts::{Allowance, Source, accepted};
use crate::scheduler::reasoning_budget::ReasoningBudget;
use std::ops::Range;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::{Drawn, TokenId};

/// Maximum forced tokens before the next mask request, and of their rows in a step.
pub(in crate::scheduler) const MOST_FORCED: usize = 16;

impl Sequence {
    /// The next `tokens` pending tokens, in the device's terms.
    pub(in crate::scheduler) fn work(
        &self,
        tokens: usize,
        allowance: Allowance,
    ) -> SequenceWork<'_> {
        let end = self.computed + tokens;
        let rows = self.sampling_rows(tokens, allowance);
        let sample = (rows > 0).then(|| self.sample(end - self.prompt_len));
        SequenceWork {
            request: self.request,
            tokens: &self.tokens[self.computed..end],
            first_position: self.computed as u32,
            pages: self.table.pages(),
            sample,
            drafts: rows.saturating_sub(1),
        }
    }

    /// Number of the last rows of the next `tokens` pending tokens that may be sampled. All of a few rows of a sequence that
    /// decodes may be, even if their successors are known: a step of such rows alone is the fastest.
    fn sampling_rows(&self, tokens: usize, allowance: Allowance) -> usize {
        match self.decodes && tokens <= allowance.rows() {
            _ if !self.is_continued() => 0,
            true => tokens,
            false => usize::from(tokens == self.pending()),
        }
    }

    /// Sampling parameters of the token after the first `index` generated ones.
    pub(in crate::scheduler) fn sample(&self, index: usize) -> SampleWork<'_> {
        SampleWork {
            sampling: self.params.sampling,
            prompt: &self.tokens[..self.prompt_len],
            generated: &self.tokens[self.prompt_len..][..index],
            allowed: self.allowed(index),
            bias: &self.params.logit_bias,
        }
    }

    /// Mask of the token after the first `index` generated ones, if not all tokens are allowed.
    fn allowed(&self, index: usize) -> Option<&[u32]> {
        let drafts = index.saturating_sub(self.generated().len());
        let held = match (&self.rules, self.constraint.is_grammar()) {
            (Some(rules), false) => rules.mask(index),
            _ => self.constraint.allowed(drafts),
        };
        match &self.reasoning {
            Some(reasoning) => reasoning.allowed(held),
            None => held,
        }
    }

    /// The grammar's mask of the next token, within the rules of the request.
    pub(in crate::scheduler) fn narrow(&self, mask: Mask) -> Result<Mask, GrammarError> {
        let Some(rules) = &self.rules else {
            return Ok(mask);
        };
        let none = || GrammarError::new("it allows none of allowed_token_ids");
        rules.narrow(mask, self.generated().len()).ok_or_else(none)
    }

    /// Records the mask behind the next draft of the launched step; `None`: there are no more.
    pub(in crate::scheduler) fn hear_drafted(&mut self, mask: Option<Mask>) {
        let index = self.generated().len() + self.constraint.drafted() + 1;
        let narrowed = mask.and_then(|mask| match &self.rules {
            None => Some(mask),
            Some(rules) => rules.narrow(mask, index),
        });
        self.constraint.hear_drafted(narrowed);
    }

    /// Records the launch of a step with `tokens` further tokens, up to its sampling. Returns the number of rows that may
    /// be sampled, and the indices of the tokens sampled from the last of them, among all generated ones.
    pub(in crate::scheduler) fn launch(
        &mut self,
        tokens: usize,
        allowance: Allowance,
        cache: &KvPages,
    ) -> (usize, Range<u32>) {
        debug_assert!(
            self.writes(tokens, cache)
                .all(|page| page.is_some_and(|page| cache.is_private(page))),
            "a page was written that is shared, or not there"
        );
        let rows = self.sampling_rows(tokens, allowance);
        let draws = tokens == self.pending() && self.is_continued();
        self.computed += tokens;
        if !draws {
            return (rows, 0..0);
        }
        let first = (self.tokens.len() - self.drafts - self.prompt_len) as u32;
        self.decodes = true;
        self.is_open = self.constraint.is_grammar();
        self.offered = self.drafts;
        self.await_token();
        (rows, first..first + 1 + self.offered as u32)
    }

    /// Pages to which the next `tokens` are written.
    fn writes(&self, tokens: usize, cache: &KvPages) -> impl Iterator<Item = Option<PageId>> {
        let geometry = cache.geometry();
        let first = self.computed / geometry.page_tokens as usize;
        let blocks = first..geometry.blocks(self.computed + tokens);
        blocks.flat_map(move |block| self.table.of_block(block, geometry))
    }

    pub(in crate::scheduler) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Indices of the tokens that the last launched step samples, if any.
    pub(in crate::scheduler) fn draws(&self) -> Option<Range<u32>> {
        let in_flight = self.drafts.max(usize::from(self.unknown > 0));
        let first = (self.tokens.len() - self.prompt_len).checked_sub(in_flight)? as u32;
        (in_flight > 0).then(|| first..first + 1 + self.drafts as u32)
    }

    /// Records that the sampling is launched.
    pub(in crate::scheduler) fn close(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.constraint.used();
        }
    }

    /// Cancels the samples of the last launched step.
    pub(in crate::scheduler) fn undraw(&mut self) {
        self.constraint.forget_drafts();
        self.forget_drafts(0);
        debug_assert!(self.is_open && self.tokens.last() == Some(&TO_BE_DRAWN));
        self.is_open = false;
        self.tokens.pop();
        self.unknown -= 1;
    }

    /// Removes the drafts of the last launched step that have no mask behind them.
    pub(in crate::scheduler) fn forget_unmasked(&mut self) {
        if self.constraint.is_grammar() {
            self.forget_drafts(self.constraint.drafted());
        }
    }

    /// Removes the drafts of the last launched step but the first `left`.
    fn forget_drafts(&mut self, left: usize) {
        let surplus = self.drafts.saturating_sub(left);
        if surplus == 0 {
            return;
        }
        self.tokens.truncate(self.tokens.len() - surplus);
        self.computed -= surplus;
        self.drafts -= surplus;
        self.await_token();
    }

    /// Marks the token that is sampled behind the newest one, if it has no draft.
    fn await_token(&mut self) {
        if self.drafts == 0 {
            self.tokens.push(TO_BE_DRAWN);
            self.unknown += 1;
        }
    }

    /// Schedules the newest token to run again: all results of its step but its keys and values are lost.
    pub(in crate::scheduler) fn run_again(&mut self) {
        self.computed -= 1;
    }

    /// True if the next draft of the last launched step is this token.
    pub(in crate::scheduler) fn has_drafted(&self, token: TokenId) -> bool {
        self.is_open && self.drafts > 0 && self.tokens.get(self.known().len()) == Some(&token)
    }

    /// Appends a forced token, without sampling. A draft that is forced is in its place already.
    pub(in crate::scheduler) fn take(&mut self, token: TokenId, limits: &Limits) -> Drawn {
        debug_assert_eq!(self.unknown, 0);
        let index = self.generated().len();
        if self.has_drafted(token) {
            self.drafts -= 1;
            self.offered -= 1;
            self.await_token();
        } else {
            self.tokens.push(token);
        }
        self.think(token, limits);
        Drawn {
            request: self.request,
            index: index as u32,
            token,
        }
    }

    /// Maximum number of forced tokens now. 0 if log probabilities of generated tokens are requested or those of the
    /// prompt are missing, and for a request with rules on tokens, which a forced token may break.
    pub(in crate::scheduler) fn most_forced(&self, limits: &Limits) -> usize {
        let is_watched =
            self.params.logprobs.is_some() || limits.traces_logits || self.scores_are_missing();
        let left = (self.params.max_tokens as usize).saturating_sub(self.generated().len());
        if is_watched || self.rules.is_some() {
            0
        } else {
            left.min(MOST_FORCED)
        }
    }

    /// Records the tokens sampled by the oldest step in flight. Returns the number of those that count.
    pub(in crate::scheduler) fn learn(&mut self, drawn: &[Drawn], limits: &Limits) -> usize {
        let counted = match self.drafts {
            0 => self.learn_sampled(drawn, limits),
            _ => self.learn_behind_drafts(drawn, limits),
        };
        for row in &drawn[..counted] {
            self.constraint.learn(row.token);
        }
        let offered = std::mem::take(&mut self.offered);
        if offered > 0 {
            let accepted = counted.saturating_sub(1);
            let tokens = self.tokens.len();
            self.drafter.observe(self.source, offered, accepted, tokens);
        }
        counted
    }

    fn learn_sampled(&mut self, drawn: &[Drawn], limits: &Limits) -> usize {
        for row in drawn {
            let at = self.known().len();
            self.tokens[at] = row.token;
            self.unknown -= 1;
            self.think(row.token, limits);
        }
        drawn.len()
    }

    fn learn_behind_drafts(&mut self, drawn: &[Drawn], limits: &Limits) -> usize {
        let drafts = self.tokens.split_off(self.known().len());
        self.drafts = 0;
        let mut counted = 0_usize;
        for row in &drawn[..accepted(drawn, &drafts)] {
            self.tokens.push(row.token);
            self.think(row.token, limits);
            counted += 1;
            if self.ending(limits).is_some() {
                break;
            }
        }
        // Rows of rejected drafts are computed again.
        self.computed = self.tokens.len() - 1;
        counted
    }

    // === drafts ===

    pub(in crate::scheduler) fn drafts(&self) -> usize {
        self.drafts
    }

    /// True if masks of drafts of the last launched step will arrive.
    pub(in crate::scheduler) fn awaits_drafted(&self) -> bool {
        self.is_open && self.constraint.expects_drafted(self.drafts)
    }

    /// Appends the drafts that the next step can have, within the pages that are free.
    pub(in crate::scheduler) fn draft(
        &mut self,
        allowance: Allowance,
        limits: &Limits,
        cache: &mut KvPages,
    ) {
        let proposal = self.proposal.take();
        let Some(allowance) = self.room_for_next(allowance, limits) else {
            return;
        };
        if self.unknown > 0 {
            return;
        }
        let known = self.known().len();
        // Masks of drafts are requested with the mask before them.
        if self.constraint.is_grammar() && !self.constraint.has_unsent() {
            return;
        }
        let proposal = proposal.filter(|it| it.behind == known);
        let proposal = proposal.unwrap_or_else(|| self.text_drafts(allowance));
        let drafts = proposal.drafts.into_iter().take(allowance.most);
        self.tokens.extend(drafts);
        self.drafts = self.tokens.len() - known;
        self.source = proposal.source;
        let room = self.room_for_drafts(cache);
        self.shorten_drafts(room);
    }

    /// Drops all drafts but the first `most`.
    pub(in crate::scheduler) fn shorten_drafts(&mut self, most: usize) {
        let surplus = self.drafts.saturating_sub(most);
        self.tokens.truncate(self.tokens.len() - surplus);
        self.drafts -= surplus;
    }

    /// The appended drafts.
    pub(in crate::scheduler) fn offer(&self) -> Offer {
        Offer {
            most: self.drafts,
            share: self.drafter.share(self.source),
            source: self.source,
            needs_turn: false,
        }
    }

    /// Drafts behind the token in flight.
    pub(in crate::scheduler) fn offer_behind(
        &mut self,
        allowance: Allowance,
        limits: &Limits,
    ) -> Offer {
        let Some(room) = self.room_for_next(allowance, limits) else {
            return Offer::default();
        };
        let known = self.known().len();
        match self.drafter.promised(&self.tokens[..known], room.most) {
            0 => self.offer_of(Source::Model, self.drafter.wanted_of_model(known, room)),
            most => self.offer_of(Source::Text, most),
        }
    }

    fn offer_of(&self, source: Source, most: usize) -> Offer {
        Offer {
            most,
            share: self.drafter.share(source),
            source,
            needs_turn: source == Source::Model,
        }
    }

    /// The next step has none of the offered drafts.
    pub(in crate::scheduler) fn pass_over(&mut self, offer: Offer) {
        self.drafter.pass_over(offer.source, self.known().len());
    }

    /// The limits that apply to the next drafts; `None` if there are none.
    fn room_for_next(&self, allowance: Allowance, limits: &Limits) -> Option<Allowance> {
        let left = self.prompt_len + self.params.max_tokens as usize;
        let left = left.min(limits.max_sequence_tokens as usize);
        // The token behind the last draft is the last one.
        let left = left.saturating_sub(self.known().len() + 1);
        let decided = self.decided().saturating_sub(self.unknown);
        let allowance = allowance.at_most(left.min(decided));
        let has_room = allowance.most > 0 && self.pending() == 1 && self.may_draft(limits);
        has_room.then_some(allowance)
    }

    fn text_drafts(&mut self, allowance: Allowance) -> Proposal {
        Proposal {
            behind: self.tokens.len(),
            drafts: self.drafter.drafts(&self.tokens, allowance.most),
            source: Source::Text,
        }
    }

    // === drafts of the draft model ===

    /// Source of the drafts in flight.
    pub(in crate::scheduler) fn drafts_of_model(&self) -> bool {
        self.source == Source::Model
    }

    /// Drafts of the next step before the turn of the draft model, which makes none where the text has any.
    pub(in crate::scheduler) fn offer_before_turn(
        &mut self,
        allowance: Allowance,
        limits: &Limits,
    ) -> Offer {
        self.proposal = None;
        let has_mask_to_come = !self.constraint.is_grammar() || self.constraint.has_unsent();
        let room = self.room_for_next(allowance, limits);
        let Some(room) = room.filter(|_| has_mask_to_come && self.unknown == 0) else {
            return Offer::default();
        };
        let of_text = self.text_drafts(room);
        let most = of_text.drafts.len();
        self.proposal = Some(of_text);
        match most {
            0 => {
                let wanted = self.drafter.wanted_of_model(self.tokens.len(), room);
                self.offer_of(Source::Model, wanted)
            }
            most => self.offer_of(Source::Text, most),
        }
    }

    /// Adds a draft of the draft model. False if none is useful behind it.
    pub(in crate::scheduler) fn add_draft(&mut self, token: TokenId, limits: &Limits) -> bool {
        if token.0 >= limits.vocab_size {
            return false;
        }
        self.tokens.push(token);
        self.drafts += 1;
        !self.ends_at(token, limits)
    }

    /// Sets the added drafts aside until the next step is planned.
    pub(in crate::scheduler) fn propose(&mut self) {
        let known = self.known().len();
        let drafts = self.tokens.split_off(known);
        self.drafts = 0;
        self.proposal = Some(Proposal::of_model(known, drafts));
    }

    /// The draft model has no room for the sequence, or does not know one of its tokens.
    pub(in crate::scheduler) fn goes_without_model(&mut self, vocab_size: u32) {
        match self.tokens.iter().all(|token| token.0 < vocab_size) {
            true => self.drafter.goes_without_model(self.tokens.len()),
            false => self.drafter.leaves_model(),
        }
    }

    /// Rows of a trace would be recorded twice.
    pub(in crate::scheduler) fn may_draft(&self, limits: &Limits) -> bool {
        limits.speculates
            && !self.params.without_drafts
            && !limits.traces_logits
            && self.pool.is_none()
            && !self.scores_are_missing()
    }

    /// Number of next tokens that the reasoning budget leaves free.
    fn decided(&self) -> usize {
        self.reasoning
            .as_ref()
            .map_or(usize::MAX, ReasoningBudget::decided)
    }

    /// Removes drafts that are not in flight.
    pub(in crate::scheduler) fn drop_drafts(&mut self) {
        self.constraint.forget_drafts();
        self.tokens.truncate(self.tokens.len() - self.drafts);
        self.drafts = 0;
    }

    fn think(&mut self, token: TokenId, limits: &Limits) {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.learn(token, limits);
        }
    }
}
