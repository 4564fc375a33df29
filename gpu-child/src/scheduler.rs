//! Continuous batching: chooses the sequences of the next step and their numbers of tokens. Pure: no device, no clock,
//! no I/O.
//!
//! ```text
//!   submit ─► waiting ── admit (pages for all its tokens) ──► running ── complete ─► finished
//!                ▲                                              │
//!                └──────────── park (no page left) ─────────────┘
//! ```
//!
//! One turn is [`Scheduler::plan`], launch on the device ([`Scheduler::launched`]), sampling ([`Scheduler::draws`]) and
//! [`Scheduler::complete`]. A second step may be planned and launched before the first has ended: a sequence that
//! continues regardless of the sampled token runs a token that only the device has yet. If that token ends the
//! sequence, the second step's sample is dropped.
//!
//! * Every running sequence with a complete prefill gets its newest token into the batch: decoding never waits for
//!   prompts.
//! * The rest of the batch goes to chunked prefill, in at most two chunks besides those that complete a prompt: equal
//!   shares to clients, and to a client's oldest and shortest request ([`fair_queue`]). The caller, which measures
//!   time, sets the number of prompt tokens ([`StepDemand`]).
//! * A waiting request is admitted in its turn, if there is room for it ([`room`]), so that a long queue holds neither
//!   slots nor pages. It reuses cached pages with the same prefix.
//! * A running sequence releases pages outside its layers' windows ([`page_table`]).
//! * If a running sequence needs a page and none is free, another sequence is parked: its pages are freed, its tokens
//!   kept. Later it is recomputed and continues with the same output, because the device computes the same bits either
//!   way. The longest-running sequence is never parked, so that at least one sequence always finishes.
//!
//! A step may be launched before the sampling of some rows is decided: their masks are computed meanwhile. Such a
//! sampling is open. After [`Scheduler::settle_draws`] each row of the step samples or not. It does not if its request
//! has ended, its mask is late, or its next token is forced.
//!
//! A prompt of an embedding is scheduled like any other, but no token is sampled at its end. It ends with the step of
//! its last token.
//!
//! A sequence under a grammar samples only when the mask of its next token is present ([`constraint`]). It takes part
//! in the step before that, except for its first sample: its prefill stops before the last token.
//!
//! A request's own rules on tokens narrow the mask of its grammar, or are a mask alone ([`token_rules`]).
//!
//! A sequence with a reasoning budget pauses where the next allowed token depends on a token in flight ([`reasoning_budget`]).
//!
//! A sequence may run drafts of its next tokens with its newest one ([`drafts`]), its own or those of a second model
//! ([`draft_model`]), or tokens that its grammar forces. Nothing is planned behind such a step before it ends. A step waits for
//! the tokens in flight if it yields more with drafts behind them ([`draft_lengths`]).
//!
//! If decoding sequences hold every slot, a new request waits until one ends. Free slots are then assigned so that
//! clients hold equally many.
//!
//! Each accepted submission is reported as finished exactly once.

mod adoption;
mod constraint;
mod draft_lengths;
mod draft_model;
mod drafts;
mod error;
mod fair_queue;
mod limits;
mod page_table;
mod planned_drafts;
mod prediction;
mod reasoning_budget;
mod room;
mod scoring;
mod sequence;
mod shape;
mod share;
mod token_rules;

use crate::device::{SampleWork, SequenceWork};
use crate::kv_pages::KvPages;
use crate::logprobs::PromptPart;
use crate::pooling::HiddenRow;
pub use adoption::Adoption;
use adoption::Seals;
use constraint::Constraint;
pub use constraint::MaskRequest;
pub use draft_lengths::{Point, SIZES, StepSeconds};
use draft_model::DraftModel;
pub use draft_model::{DraftModelLimits, DraftTurn};
use drafts::Allowance;
pub use error::SchedulerError;
use fair_queue::{Candidate, FairQueue};
pub use limits::Limits;
use planned_drafts::PlannedDrafts;
use room::NoRoom;
use sequence::{Sequence, Tail};
use shape::rows_of_each;
pub use shape::{StepDemand, StepShape};
use share::Share;
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_grammar::{GrammarError, Mask};
use worker_orcd_ipc::{
    Began, Counters, Drafted, Drawn, FinishReason, Finished, Load, RequestId, Scored, StepReport,
    Submission, TokenId,
};

/// Prompts that share the prefill budget of a step. Fewer, larger chunks read the KV cache less often; with two, a
/// short new prompt gets its turn in the next step.
const CHUNKS: usize = 2;

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    cache: KvPages,
    /// Waiting sequences, in order of arrival.
    waiting: Vec<Sequence>,
    /// Running sequences, in order of admission.
    running: Vec<Sequence>,
    queue: FairQueue,
    /// Tokens of each running sequence in the last planned step; 0: not in the step.
    planned: Vec<usize>,
    /// Rows of each decoding sequence that may be sampled in that step.
    allowance: Allowance,
    /// Steps in flight, the oldest first.
    flights: VecDeque<Vec<Share>>,
    submissions: u64,
    /// Requests admitted for the first time and not reported yet.
    began: Vec<Began>,
    /// Ends of requests, reported with the next step.
    finished: Vec<Finished>,
    /// Tokens forced by a grammar without sampling, reported immediately.
    forced: Vec<Drawn>,
    /// Mask requests for the grammar threads.
    mask_requests: Vec<MaskRequest>,
    /// Number of matchers requested so far.
    tickets: u64,
    seals: Seals,
    counters: Counters,
    step_seconds: StepSeconds,
    draft_model: Option<DraftModel>,
}

impl Scheduler {
    #[must_use]
    pub fn new(mut limits: Limits, cache: KvPages) -> Self {
        limits.max_running = limits.max_running.clamp(1, limits.max_batch_tokens.max(1));
        Self {
            limits,
            cache,
            waiting: Vec::new(),
            running: Vec::new(),
            queue: FairQueue::default(),
            planned: Vec::new(),
            allowance: Allowance::default(),
            flights: VecDeque::new(),
            submissions: 0,
            began: Vec::new(),
            finished: Vec::new(),
            forced: Vec::new(),
            mask_requests: Vec::new(),
            tickets: 0,
            seals: Seals::default(),
            counters: Counters::default(),
            step_seconds: StepSeconds::FREE,
            draft_model: None,
        }
    }

    /// Sets the durations of steps, which decide how many drafts they have.
    pub fn set_step_seconds(&mut self, seconds: StepSeconds) {
        self.step_seconds = seconds;
    }

    /// Adds a draft model with these pages.
    #[must_use]
    pub fn with_draft_model(mut self, limits: DraftModelLimits, cache: KvPages) -> Self {
        self.draft_model = Some(DraftModel::new(limits, cache));
        self
    }

    /// Removes the draft model: the next plan drops its drafts, and sequences go on without.
    pub fn remove_draft_model(&mut self) {
        self.draft_model = None;
    }

    /// The turn of the draft model before the next plan. No step may be in flight.
    pub fn draft_turn(&mut self) -> Option<DraftTurn<'_>> {
        debug_assert!(self.flights.is_empty());
        Some(DraftTurn {
            allowance: self.next_allowance(),
            seconds: self.step_seconds,
            model: self.draft_model.as_mut()?,
            running: &mut self.running,
            limits: &self.limits,
        })
    }

    /// # Errors
    /// If an unfinished request has the same id.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SchedulerError> {
        self.submit_behind(submission, None)
    }

    /// Submits a request with its first tokens in the cache, and further ones in a private tail block.
    fn submit_behind(
        &mut self,
        submission: Submission,
        tail: Option<Tail>,
    ) -> Result<(), SchedulerError> {
        let request = submission.request;
        let mut live = self.running.iter().chain(&self.waiting);
        if live.any(|sequence| sequence.request == request) {
            return Err(SchedulerError::DuplicateRequest(request));
        }
        self.submissions += 1;
        let mut sequence = Sequence::new(self.submissions, submission, tail, &self.limits);
        let reason = sequence
            .refusal(&self.limits)
            .or_else(|| self.never_fits(&sequence));
        match reason {
            Some(reason) => {
                sequence.give_up_tail(&mut self.cache);
                self.finished.push(Finished { request, reason });
            }
            None => self.waiting.push(sequence),
        }
        Ok(())
    }

    /// Cancels a request. Ignores unknown and finished requests: they may have ended while the command was in transit.
    pub fn cancel(&mut self, request: RequestId) {
        let is_it = |sequence: &Sequence| sequence.request == request;
        let mut sequence = if let Some(index) = self.running.iter().position(is_it) {
            self.running.remove(index)
        } else if let Some(index) = self.waiting.iter().position(is_it) {
            self.waiting.remove(index)
        } else {
            return;
        };
        sequence.give_up_pages(&mut self.cache);
        self.finish(sequence, FinishReason::Cancelled);
    }

    /// Plans the next step. `prompt_tokens` returns the budget of prompt tokens over all sequences; 0 is legal only if
    /// a sequence decodes. False if there is nothing to compute, or nothing before the end of a step with drafts.
    pub fn plan(&mut self, prompt_tokens: impl FnOnce(StepDemand) -> u32) -> bool {
        let newest = self.flights.back().into_iter().flatten();
        if newest.clone().any(|share| share.rows > 1) {
            return false;
        }
        self.running.iter_mut().for_each(Sequence::drop_drafts);
        let are_short = self.make_room();
        if !self.add_drafts() {
            return false;
        }
        let Self {
            limits,
            cache,
            running,
            planned,
            allowance,
            ..
        } = self;
        let decodes = |sequence: &&Sequence| sequence.decodes() && sequence.runs(limits, cache);
        let rows = rows_of_each(running.iter().filter(decodes), limits, *allowance);
        planned.clear();
        planned.extend(running.iter().map(|sequence| {
            match decodes(&sequence) {
                true => sequence
                    .runnable(cache)
                    .min(rows.max(1 + sequence.drafts())),
                false => 0,
            }
        }));
        let rows: usize = planned.iter().sum();
        let batch_left = (limits.max_batch_tokens as usize).saturating_sub(rows);
        let decoding = self.planned_sequences().count();
        let at_least = u32::from(decoding == 0);
        let tokens = prompt_tokens(self.demand(decoding)).max(at_least) as usize;
        self.share_out(batch_left.min(tokens), are_short);
        self.planned.iter().any(|tokens| *tokens > 0)
    }

    /// The planned step, in the device's terms.
    #[must_use]
    pub fn work(&self) -> Vec<SequenceWork<'_>> {
        let parts = self.running.iter().zip(&self.planned);
        parts
            .filter(|(_, tokens)| **tokens > 0)
            .map(|(s, tokens)| s.work(*tokens, self.allowance))
            .collect()
    }

    /// Records that the planned step is launched, up to its sampling.
    pub fn launched(&mut self) {
        let shape = self.planned_shape();
        if shape.decoding > 0 && shape.prompt_tokens > 0 {
            self.counters.mixed_steps += 1;
            self.counters.mixed_prompt_tokens += shape.prompt_tokens as u64;
        }
        let parts = self.running.iter_mut().zip(self.planned.drain(..));
        let shares = parts.filter(|(_, tokens)| *tokens > 0);
        let flight = shares.map(|(sequence, tokens)| {
            let (rows, draws) = sequence.launch(tokens, self.allowance, &self.cache);
            Share {
                serial: sequence.serial,
                request: sequence.request,
                rows,
                known: rows - draws.len(),
                drafts: sequence.drafts(),
                of_model: sequence.drafts_of_model(),
                draws,
            }
        });
        self.flights.push_back(flight.collect());
    }

    /// Applies the samples of the oldest step in flight, in the order of [`Self::work`].
    ///
    /// # Errors
    /// If the device's answer does not match the step. The device cannot be trusted from then on.
    pub fn complete(&mut self, step: u64, drawn: Vec<Drawn>) -> Result<StepReport, SchedulerError> {
        let flight = self.flights.pop_front().unwrap_or_default();
        self.check(&flight, &drawn)?;
        let (mut heard, mut drafted) = (Vec::with_capacity(drawn.len()), Vec::new());
        let (mut rest, mut from) = (&drawn[..], 0);
        for share in &flight {
            let (rows, behind) = rest.split_at(share.draws.len());
            let counted = self.advance(share, rows, &mut from);
            heard.extend_from_slice(&rows[..counted]);
            let drafts = share.drafts as u32;
            if drafts > 0 && counted > 0 {
                let request = share.request;
                drafted.push(Drafted { request, drafts });
            }
            rest = behind;
        }
        self.retire();
        Ok(StepReport {
            step,
            drawn: heard,
            drafted,
            finished: std::mem::take(&mut self.finished),
            ..StepReport::default()
        })
    }

    /// Requests with their first step in the planned one.
    pub fn take_began(&mut self) -> Vec<Began> {
        std::mem::take(&mut self.began)
    }

    /// Requests that ended without a step: refused, cancelled, or complete at submission.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Checks that the answer has exactly the shares of the step that sample.
    fn check(&self, flight: &[Share], drawn: &[Drawn]) -> Result<(), SchedulerError> {
        let indices = |it: &Share| it.draws.clone();
        let drawing = flight
            .iter()
            .flat_map(|it| indices(it).map(|index| (it.request, index)));
        let (expected, found) = (drawing.clone().count(), drawn.len());
        if found != expected {
            return Err(SchedulerError::DrawnCount { expected, found });
        }
        for ((request, index), row) in drawing.zip(drawn) {
            if (row.request, row.index) != (request, index) {
                return Err(SchedulerError::NotToBeDrawn(request));
            }
            if row.token.0 >= self.limits.vocab_size {
                let token = row.token;
                return Err(SchedulerError::TokenOutOfRange { request, token });
            }
        }
        Ok(())
    }

    /// Distributes the batch's tokens that decoding leaves to prompts.
    fn share_out(&mut self, mut left: usize, pages_are_short: bool) {
        let chunk = left.div_ceil(CHUNKS);
        let mut scored = 0;
        let mut candidates = self.candidates();
        self.queue.retain_clients(&candidates);
        self.keep_admissible(&mut candidates);
        self.keep_the_first(&mut candidates, pages_are_short);
        while left > 0
            && let Some(next) = self.queue.next(&candidates)
        {
            let Some(index) = self.take_in(next, &mut candidates) else {
                continue;
            };
            let pending = self.running[index].runnable(&self.cache) - self.planned[index];
            let most = next.most_scored(scored).unwrap_or(left);
            let tokens = pending.min(chunk).min(left).min(most);
            scored += if next.scores { tokens } else { 0 };
            self.planned[index] += tokens;
            left -= tokens;
            self.queue.charge(next.client, tokens);
            if let Some(it) = candidates.iter_mut().find(|it| it.serial == next.serial) {
                it.left = pending - tokens;
                it.waits = false;
            }
            candidates.retain(|it| it.left > 0 && it.most_scored(scored) != Some(0));
        }
    }

    /// Sequences with prompt tokens to compute.
    fn candidates(&self) -> Vec<Candidate> {
        let prefills = |it: &&Sequence| !it.decodes() && it.runs(&self.limits, &self.cache);
        let running = self.running.iter().filter(prefills);
        let running = running.map(|it| it.candidate(false, &self.cache));
        running
            .chain(
                self.waiting
                    .iter()
                    .map(|it| it.candidate(true, &self.cache)),
            )
            .collect()
    }

    /// Index of a candidate among the running sequences, after its admission if it was waiting. A candidate that cannot
    /// be admitted is removed from `candidates`.
    fn take_in(&mut self, next: Candidate, candidates: &mut Vec<Candidate>) -> Option<usize> {
        if !next.waits {
            let mut running = self.running.iter();
            return running.position(|it| it.serial == next.serial);
        }
        match self.admit(next.serial) {
            Ok(()) => {
                self.planned.push(0);
                return Some(self.running.len() - 1);
            }
            Err(NoRoom::Slots) => candidates.retain(|it| !it.waits || it.client != next.client),
            // Without this, the cache would be searched for a prefix of each request of a long queue.
            Err(NoRoom::Pages) => candidates.retain(|it| !it.waits || it.left < next.left),
        }
        self.queue.pass(next.client);
        None
    }

    /// Applies a share of a step to its sequence; ignored if that has ended. Returns the number of sampled tokens that
    /// count. `from` is the index at which the search begins: a step's order is that of the sequences that still run.
    fn advance(&mut self, share: &Share, drawn: &[Drawn], from: &mut usize) -> usize {
        let is_it = |sequence: &Sequence| sequence.serial == share.serial;
        let (before, behind) = self.running.split_at(*from);
        let behind = behind.iter().position(is_it).map(|offset| *from + offset);
        // A sequence that was parked and readmitted since has another index.
        let place = behind.or_else(|| before.iter().position(is_it));
        let sequence = match place {
            Some(place) => {
                *from = place + 1;
                &mut self.running[place]
            }
            // Parked since.
            None => match self.waiting.iter_mut().find(|sequence| is_it(sequence)) {
                Some(sequence) => sequence,
                None => return 0,
            },
        };
        let counted = sequence.learn(drawn, &self.limits);
        self.counters.generated_tokens += counted as u64;
        if counted > 0 {
            let (offered, accepted) = (share.drafts as u64, counted as u64 - 1);
            self.counters.draft_tokens += offered;
            self.counters.accepted_draft_tokens += accepted;
            if share.of_model {
                self.counters.model_draft_tokens += offered;
                self.counters.accepted_model_draft_tokens += accepted;
            }
        }
        // Otherwise the next plan requests the mask, with those behind its drafts.
        if sequence.has_unknown() || !sequence.may_draft(&self.limits) {
            self.mask_requests
                .extend(sequence.next_mask_request(&self.limits));
        }
        sequence.publish(&mut self.cache);
        counted
    }

    /// Appends drafts to sequences that decode, and requests missing masks. False if the next step waits for the tokens in flight.
    fn add_drafts(&mut self) -> bool {
        self.allowance = self.next_allowance();
        let mut drafts = PlannedDrafts {
            running: &mut self.running,
            limits: &self.limits,
            allowance: self.allowance,
            seconds: &self.step_seconds,
        };
        match self.flights.is_empty() {
            false if drafts.await_tokens() => return false,
            false => {}
            true => drafts.add(&mut self.cache),
        }
        for sequence in &mut self.running {
            self.mask_requests
                .extend(sequence.next_mask_request(&self.limits));
        }
        true
    }

    /// Number of decoding sequences.
    #[must_use]
    pub fn decoding(&self) -> usize {
        self.running.iter().filter(|it| it.decodes()).count()
    }

    /// Limits of the next step's drafts.
    fn next_allowance(&self) -> Allowance {
        let reach = self.draft_model.as_ref().map_or(0, DraftModel::reach);
        Allowance::of(self.decoding(), &self.limits, &self.step_seconds, reach)
    }

    fn retire(&mut self) {
        let Self {
            limits,
            cache,
            running,
            waiting,
            finished,
            mask_requests,
            ..
        } = self;
        let mut goes_on = |sequence: &mut Sequence| {
            let Some(reason) = sequence.ending(limits) else {
                return true;
            };
            sequence.publish_end(cache);
            sequence.give_up_pages(cache);
            mask_requests.extend(sequence.constraint.give_up());
            finished.push(Finished {
                request: sequence.request,
                reason,
            });
            false
        };
        running.retain_mut(&mut goes_on);
        // Those that were parked before their last token was known.
        waiting.retain_mut(&mut goes_on);
    }

    // === sampling of a step in flight ===

    /// True if a sampling of the last launched step waits for a mask.
    #[must_use]
    pub fn draws_wait(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|it| it.is_open() && it.constraint.expects_mask())
    }

    /// True if a sampling of the last launched step waits for masks behind its drafts.
    #[must_use]
    pub fn drafts_wait(&self) -> bool {
        self.running.iter().any(Sequence::awaits_drafted)
    }

    /// True if another row of the last launched step samples regardless of masks.
    #[must_use]
    pub fn others_draw(&self) -> bool {
        let newest = self.flights.back().into_iter().flatten();
        let mut drawing = newest.filter(|share| !share.draws.is_empty());
        drawing.any(|share| self.find(share.serial).is_some_and(|it| !it.is_open()))
    }

    /// Decides the sampling of the last launched step: a row without a mask by now does not sample, nor do those behind it.
    pub fn settle_draws(&mut self) {
        for sequence in self.running.iter_mut().filter(|it| it.is_open()) {
            if sequence.constraint.lacks_mask() {
                sequence.constraint.goes_without();
                sequence.undraw();
                sequence.run_again();
            }
            sequence.forget_unmasked();
        }
        let Self {
            flights,
            running,
            waiting,
            ..
        } = self;
        for share in flights.back_mut().into_iter().flatten() {
            let mut all = running.iter().chain(waiting.iter());
            let sequence = all.find(|it| it.serial == share.serial);
            let draws = sequence.and_then(Sequence::draws);
            share.settle(draws.unwrap_or_default());
        }
    }

    /// Sampling of the rows of the last launched step, in the device's terms.
    #[must_use]
    pub fn draws(&self) -> Vec<Option<SampleWork<'_>>> {
        let newest = self.flights.back().into_iter().flatten();
        let rows = newest.flat_map(|share| {
            let sequence = self.find(share.serial);
            (0..share.rows).map(move |row| {
                let index = share.index_at(row)?;
                Some(sequence?.sample(index as usize))
            })
        });
        rows.collect()
    }

    /// Records that the sampling is launched.
    pub fn drawn(&mut self) {
        for sequence in &mut self.running {
            sequence.close();
        }
    }

    fn find(&self, serial: u64) -> Option<&Sequence> {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|it| it.serial == serial)
    }

    // === grammars ===

    /// Requests since the last call.
    pub fn take_mask_requests(&mut self) -> Vec<MaskRequest> {
        std::mem::take(&mut self.mask_requests)
    }

    /// Applies the answer to a request: a mask, or the end of a sequence with a failed grammar. `forced`: tokens before
    /// the mask that need no sampling.
    pub fn hear_mask(&mut self, of: u64, forced: &[TokenId], answer: Result<Mask, GrammarError>) {
        let is_it = |sequence: &Sequence| sequence.constraint.ticket() == Some(of);
        // A sequence that does not run has no matcher; one that has ended has no index.
        let Some(index) = self.running.iter().position(is_it) else {
            return;
        };
        if !forced.is_empty() {
            self.take_forced_of(index, forced);
        }
        if self.running[index].ending(&self.limits).is_some() {
            return self.retire();
        }
        match answer.and_then(|heard| self.running[index].narrow(heard)) {
            Ok(heard) => self.running[index].constraint.hear(heard),
            Err(error) => {
                let mut sequence = self.running.remove(index);
                sequence.give_up_pages(&mut self.cache);
                let message = format!("the answer cannot go on under its grammar: {error}");
                self.finish(sequence, FinishReason::GrammarFailed { message });
            }
        }
    }

    /// Applies a mask behind a draft; `None`: there are no more.
    pub fn hear_drafted(&mut self, of: u64, mask: Option<Mask>) {
        let mut running = self.running.iter_mut();
        if let Some(sequence) = running.find(|it| it.constraint.ticket() == Some(of)) {
            sequence.hear_drafted(mask);
        }
    }

    fn take_forced_of(&mut self, index: usize, forced: &[TokenId]) {
        let sequence = &mut self.running[index];
        if !sequence.is_open() {
            sequence.drop_drafts();
        }
        for token in forced {
            let is_drafted = sequence.has_drafted(*token);
            if sequence.is_open() && !is_drafted {
                sequence.undraw();
            }
            // The same number of tokens as with sampling: the token without room in memory is the last.
            let has_room = is_drafted || !sequence.outgrows(&self.cache);
            if sequence.ending(&self.limits).is_some() || !has_room {
                break;
            }
            self.counters.generated_tokens += 1;
            self.forced.push(sequence.take(*token, &self.limits));
        }
    }

    /// Forced tokens not reported yet.
    pub fn take_forced(&mut self) -> Vec<Drawn> {
        std::mem::take(&mut self.forced)
    }

    /// True if a mask is outstanding.
    #[must_use]
    pub fn awaits_masks(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|sequence| sequence.constraint.lacks_mask())
    }

    /// Requests the first mask of a sequence that has just got a slot.
    fn ask_for_first_mask(&mut self, sequence: &mut Sequence) {
        let generated = sequence.generated().to_vec();
        let most_forced = sequence.most_forced(&self.limits);
        let Constraint::Grammar {
            grammar, ticket, ..
        } = &mut sequence.constraint
        else {
            return;
        };
        self.tickets += 1;
        *ticket = Some(self.tickets);
        self.mask_requests.push(MaskRequest::Begin {
            ticket: self.tickets,
            grammar: Arc::clone(grammar),
            generated,
            most_forced,
        });
    }

    // === rows of the planned step that are copied to the host ===

    /// Requests of the planned step with requested log probabilities, each with its number of most likely tokens.
    pub fn logprobs_wanted(&self) -> impl Iterator<Item = (RequestId, u8)> {
        let planned = self.planned_sequences();
        planned.filter_map(|(s, _)| Some((s.request, s.params.logprobs?)))
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

    fn planned_sequences(&self) -> impl Iterator<Item = (&Sequence, usize)> {
        let parts = self.running.iter().zip(self.planned.iter().copied());
        parts.filter(|(_, tokens)| *tokens > 0)
    }

    /// Rows of the planned step that yield log probabilities of prompts.
    pub fn prompt_rows_wanted(&self) -> impl Iterator<Item = PromptPart> {
        self.planned_sequences()
            .filter_map(|(sequence, tokens)| sequence.scored_part(tokens))
    }

    /// Records the parts of prompts reported with the planned step.
    pub fn score(&mut self, scored: &[Scored]) {
        for part in scored {
            let mut running = self.running.iter_mut();
            let sequence = running.find(|it| it.request == part.request);
            if let Some(scoring) = sequence.and_then(|it| it.scoring.as_mut()) {
                scoring.report(part.logprobs.len());
            }
        }
    }

    // === size of a step, and statistics ===

    /// Demand of a step with planned decoding sequences.
    fn demand(&self, decoding: usize) -> StepDemand {
        let begun = || self.running.iter().filter(|sequence| !sequence.decodes());
        let free = (self.limits.max_running as usize).saturating_sub(self.running.len());
        StepDemand {
            decoding,
            prompts: begun().count() + self.waiting.len().min(free),
            deepest: begun().map(Sequence::computed).max().unwrap_or(0),
        }
    }

    #[must_use]
    pub fn planned_shape(&self) -> StepShape {
        let (mut shape, mut reach) = (StepShape::default(), 0);
        for (sequence, &tokens) in self.running.iter().zip(&self.planned) {
            if sequence.decodes() {
                shape.decoding += tokens;
                shape.drafts += tokens.saturating_sub(1);
            } else {
                shape.prompt_tokens += tokens;
                reach += tokens * (sequence.computed() + tokens / 2);
            }
        }
        shape.depth = reach.checked_div(shape.prompt_tokens).unwrap_or(0);
        shape
    }

    #[must_use]
    pub fn load(&self) -> Load {
        let geometry = self.cache.geometry();
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used_tokens: geometry.tokens_in(self.cache.used_pages()),
            counters: self.counters,
            // Set by the pacer, which measures time.
            step_budget_us: None,
        }
    }

    #[must_use]
    pub fn kv_used_bytes(&self) -> u64 {
        u64::from(self.cache.used_pages()) * self.cache.geometry().page_bytes
    }
}

#[cfg(test)]
mod tests;
