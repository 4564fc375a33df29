//! Continuous batching: who runs in the next step, and with how many tokens. Pure: no device, no
//! clock, no I/O.
//!
//! ```text
//!   submit ─► waiting ── admit (pages for all its tokens) ──► running ── complete ─► finished
//!                ▲                                              │
//!                └──────────── park (no page left) ─────────────┘
//! ```
//!
//! One turn is [`Scheduler::plan`], the device's step on its way ([`Scheduler::launched`]), its draws
//! ([`draws`]), its end ([`Scheduler::complete`]). A second step may be planned and launched before the first has ended: a
//! sequence that goes on whatever is drawn for it runs a token that only the device knows yet. If
//! that token ends it, what the second step draws for it is dropped.
//!
//! * Every running sequence whose prompt is computed gets its newest token into the batch: decoding
//!   never waits for prompts.
//! * What is left of the batch goes to prompts, in at most two chunks beside those that it ends:
//!   equal shares to clients, and to a client's oldest and shortest request ([`fair_queue`]). How many
//!   tokens that is, is said from outside, by those who know the time ([`Company`]).
//! * A waiting request is admitted when it is its turn and there is room for it ([`room`]), so that
//!   a long queue holds neither slots nor pages. It takes over pages that hold the same beginning.
//! * A running sequence gives back pages that its layers see no more ([`page_table`]).
//! * When a running sequence needs a page and there is none, another one is parked: its pages
//!   are freed, its tokens kept. Later it is recomputed, and goes on as if it had not been away,
//!   because the device computes the same bits either way. The one that runs for longest is never
//!   parked, so that somebody always gets to the end.
//!
//! A sequence under a grammar draws only where the mask of its next token is here ([`constraint`]). It is in
//! the step before that, but for its first draw: what is computed of its prompt stops before the last token.
//!
//! A sequence whose thoughts are bounded sits out where it takes a token under way to know what may come next
//! ([`thoughts`]).
//!
//! Where every slot is taken by a sequence that decodes, a newcomer waits for one to end. Slots are
//! then given so that clients get to hold equally many.
//!
//! Each accepted submission is reported as finished exactly once.

mod adoption;
mod constraint;
mod draws;
mod fair_queue;
mod gauges;
mod limits;
mod page_table;
mod room;
mod scoring;
mod seals;
mod sequence;
mod shape;
mod thoughts;
mod watched;

use crate::device::SequenceWork;
use crate::kv_pages::KvPages;
pub use adoption::Adoption;
pub use constraint::Wish;
use draws::Share;
use fair_queue::{Candidate, FairQueue};
pub use limits::Limits;
use room::NoRoom;
use seals::Seals;
use sequence::{MOST_FORCED, Sequence, Tail};
pub use shape::{Company, StepShape};
use std::collections::VecDeque;
use thiserror::Error;
use worker_orcd_ipc::{
    Began, Drawn, FinishReason, Finished, RequestId, StepReport, Submission, TokenId,
};

/// Errors that only a wrong supervisor or a wrong device causes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchedulerError {
    #[error("request {0} was submitted while it was still running")]
    DuplicateRequest(RequestId),
    #[error("{found} tokens where {expected} were to be drawn")]
    DrawnCount { expected: usize, found: usize },
    #[error("request {request} was drawn token {token}, which is not in the vocabulary")]
    TokenOutOfRange { request: RequestId, token: TokenId },
    #[error("another token was drawn where the next one of request {0} was to be")]
    NotToBeDrawn(RequestId),
}

/// Long prompts that share what a step has for prompts: fewer, larger chunks read keys and values less
/// often, and with two a short prompt that comes has its turn in the next step.
const CHUNKS: usize = 2;

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    cache: KvPages,
    /// Sequences that wait, in the order of arrival.
    waiting: Vec<Sequence>,
    /// Sequences that run, in the order of admission.
    running: Vec<Sequence>,
    queue: FairQueue,
    /// Tokens of each running sequence in the step that was planned last; 0 sits it out.
    planned: Vec<usize>,
    /// Steps on their way, the oldest first.
    flights: VecDeque<Vec<Share>>,
    submissions: u64,
    /// Taken in for the first time, and not told yet.
    began: Vec<Began>,
    /// Endings to be reported with the next step.
    finished: Vec<Finished>,
    /// Taken without a draw, to be reported at once.
    forced: Vec<Drawn>,
    /// For those who compute masks.
    wishes: Vec<Wish>,
    /// Matchers asked for.
    tickets: u64,
    seals: Seals,
    prefix_hit_tokens: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
    adopted_tokens: u64,
    changed_pages: u64,
    mixed_steps: u64,
    mixed_prompt_tokens: u64,
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
            flights: VecDeque::new(),
            submissions: 0,
            began: Vec::new(),
            finished: Vec::new(),
            forced: Vec::new(),
            wishes: Vec::new(),
            tickets: 0,
            seals: Seals::default(),
            prefix_hit_tokens: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
            adopted_tokens: 0,
            changed_pages: 0,
            mixed_steps: 0,
            mixed_prompt_tokens: 0,
        }
    }

    /// # Errors
    /// When a request of this name has not finished yet.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SchedulerError> {
        self.submit_behind(submission, None)
    }

    /// Submits a request whose first tokens are in the cache, and some more in a page of its own.
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

    /// Unknown and finished requests are fine: they may have ended while the word travelled.
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

    /// Decides the next step. `prompt_tokens` says how many tokens of prompts it may hold, over all
    /// sequences; none only where something decodes. False when there is nothing to compute.
    pub fn plan(&mut self, prompt_tokens: impl FnOnce(Company) -> u32) -> bool {
        let are_short = self.make_room();
        let Self {
            limits,
            cache,
            running,
            planned,
            ..
        } = self;
        let decodes = |sequence: &&Sequence| sequence.decodes() && sequence.runs(limits, cache);
        let rows = rows_of_each(running.iter().filter(decodes), limits);
        planned.clear();
        planned.extend(running.iter().map(|sequence| match decodes(&sequence) {
            true => sequence.runnable(cache).min(rows),
            false => 0,
        }));
        let decoding: usize = planned.iter().sum();
        let batch_left = (limits.max_batch_tokens as usize).saturating_sub(decoding);
        let at_least = u32::from(decoding == 0);
        let tokens = prompt_tokens(self.company(decoding)).max(at_least) as usize;
        self.share_out(batch_left.min(tokens), are_short);
        self.planned.iter().any(|tokens| *tokens > 0)
    }

    /// The planned step, as the device is told.
    #[must_use]
    pub fn work(&self) -> Vec<SequenceWork<'_>> {
        let parts = self.running.iter().zip(&self.planned);
        parts
            .filter(|(_, tokens)| **tokens > 0)
            .map(|(s, tokens)| s.work(*tokens))
            .collect()
    }

    /// The planned step is on its way, up to its draws.
    pub fn launched(&mut self) {
        let shape = self.planned_shape();
        if shape.decoding > 0 && shape.prompt_tokens > 0 {
            self.mixed_steps += 1;
            self.mixed_prompt_tokens += shape.prompt_tokens as u64;
        }
        let parts = self.running.iter_mut().zip(self.planned.drain(..));
        let shares = parts.filter(|(_, tokens)| *tokens > 0);
        let flight = shares.map(|(sequence, tokens)| {
            let (may_draw, draws) = sequence.launch(tokens, &self.cache);
            Share {
                serial: sequence.serial,
                request: sequence.request,
                may_draw,
                draws,
            }
        });
        self.flights.push_back(flight.collect());
    }

    /// Takes what the oldest step on its way drew, in the order of [`Self::work`].
    ///
    /// # Errors
    /// When the device's answer does not fit the question. It cannot be trusted any more then.
    pub fn complete(&mut self, step: u64, drawn: Vec<Drawn>) -> Result<StepReport, SchedulerError> {
        let flight = self.flights.pop_front().unwrap_or_default();
        self.check(&flight, &drawn)?;
        let mut heard = Vec::with_capacity(drawn.len());
        let mut drawn = drawn.into_iter();
        let mut from = 0;
        for share in &flight {
            let row = share.draws.and_then(|_| drawn.next());
            heard.extend(self.advance(share, row, &mut from));
        }
        self.retire();
        Ok(StepReport {
            step,
            drawn: heard,
            finished: std::mem::take(&mut self.finished),
            ..StepReport::default()
        })
    }

    /// Requests of the planned step that were in none before.
    pub fn take_began(&mut self) -> Vec<Began> {
        std::mem::take(&mut self.began)
    }

    /// Requests that ended without a step: refused, cancelled, or complete as they came.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The answer to a step has its shares that draw, and nothing else.
    fn check(&self, flight: &[Share], drawn: &[Drawn]) -> Result<(), SchedulerError> {
        let drawing = flight.iter().filter_map(|it| Some((it.request, it.draws?)));
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

    /// Gives prompts what a step has left beside decoding.
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

    /// Sequences that have prompt tokens to be computed.
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

    /// Index of a candidate among those that run, after admission if it did not run before. If it
    /// cannot be admitted, it leaves the candidates.
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
            // The cache is not searched for what each of a long queue could take over.
            Err(NoRoom::Pages) => candidates.retain(|it| !it.waits || it.left < next.left),
        }
        self.queue.pass(next.client);
        None
    }

    /// Tells a sequence what became of its share of a step; one that has ended by now hears
    /// nothing. `from` is where to look first: a step's order is that of those who still run.
    fn advance(&mut self, share: &Share, drawn: Option<Drawn>, from: &mut usize) -> Option<Drawn> {
        let is_it = |sequence: &Sequence| sequence.serial == share.serial;
        let (before, behind) = self.running.split_at(*from);
        let behind = behind.iter().position(is_it).map(|offset| *from + offset);
        // One that was parked and taken in again since has changed its place.
        let place = behind.or_else(|| before.iter().position(is_it));
        let sequence = match place {
            Some(place) => {
                *from = place + 1;
                &mut self.running[place]
            }
            // Parked since.
            None => self.waiting.iter_mut().find(|sequence| is_it(sequence))?,
        };
        if let Some(row) = drawn {
            sequence.learn(row.token, &self.limits);
            self.generated_tokens += 1;
            self.wishes
                .extend(sequence.next_wish(row.token, &self.limits));
        }
        sequence.publish(&mut self.cache);
        drawn
    }

    fn retire(&mut self) {
        let Self {
            limits,
            cache,
            running,
            waiting,
            finished,
            wishes,
            ..
        } = self;
        let mut goes_on = |sequence: &mut Sequence| {
            let Some(reason) = sequence.ending(limits) else {
                return true;
            };
            sequence.give_up_pages(cache);
            wishes.extend(sequence.constraint.give_up());
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
}

/// Rows that each of those who decode may have in a step. One has more than one row where its next tokens are
/// known, and not beside others, who would wait for them.
fn rows_of_each<'a>(
    decoding: impl Iterator<Item = &'a Sequence> + Clone,
    limits: &Limits,
) -> usize {
    let count = decoding.clone().count().max(1);
    let mut others = decoding.filter(|it| !it.constraint.is_grammar());
    match others.next() {
        Some(_) => 1,
        None => (limits.max_batch_tokens as usize / count).clamp(1, MOST_FORCED),
    }
}

#[cfg(test)]
mod tests;
