//! Continuous batching: who runs in the next step, and with how many tokens. Pure: no device, no
//! clock, no I/O.
//!
//! ```text
//!   submit ─► waiting ── admit (pages for all its tokens) ──► running ── complete ─► finished
//!                ▲                                              │
//!                └──────────── park (no page left) ─────────────┘
//! ```
//!
//! One turn is [`Scheduler::plan`], the device's step on its way ([`Scheduler::launched`]), its end
//! ([`Scheduler::complete`]). A second step may be planned and launched before the first has ended: a
//! sequence that goes on whatever is drawn for it runs a token that only the device knows yet. If
//! that token ends it, what the second step draws for it is dropped.
//!
//! * Waiting requests are admitted in order of arrival, each when the cache has pages for all of
//!   its tokens, and takes over pages that hold the same beginning.
//! * Every running sequence whose newest token is all that is left to run gets that token into
//!   the batch: decoding never waits for prompts.
//! * What is left of the batch goes to prompts, oldest first, in chunks.
//! * When a decoding sequence needs a page and there is none, the newest one is parked: its pages
//!   are freed, its tokens kept. It is the first to be admitted again, is recomputed, and goes on
//!   as if it had not been away, because the device computes the same bits either way. The oldest
//!   is never parked, so that somebody always gets to the end.
//!
//! Each accepted submission is reported as finished exactly once.

mod sequence;

use crate::device::SequenceWork;
use crate::kv_cache::KvCache;
use sequence::Sequence;
use std::collections::{HashSet, VecDeque};
use thiserror::Error;
use worker_orcd_ipc::{
    EmittedToken, FinishReason, Finished, Load, RequestId, StepReport, Submission, TokenId,
};

#[derive(Debug, Clone)]
pub struct Limits {
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion of one request.
    pub max_sequence_tokens: u32,
    /// Tokens that one batch may hold.
    pub max_batch_tokens: u32,
    pub vocab_size: u32,
    pub end_of_generation: HashSet<TokenId>,
}

impl Limits {
    fn ends_generation(&self, token: TokenId) -> bool {
        self.end_of_generation.contains(&token)
    }
}

/// What the supervisor or the device may not do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchedulerError {
    #[error("request {0} was submitted while it was still running")]
    DuplicateRequest(RequestId),
    #[error("{found} results for {expected} sequences")]
    ResultCount { expected: usize, found: usize },
    #[error("request {request} was drawn token {token}, which is not in the vocabulary")]
    TokenOutOfRange { request: RequestId, token: TokenId },
    #[error("request {0}: a token is missing where one was to be drawn, or there where none was")]
    UnexpectedResult(RequestId),
}

/// A sequence in a step that is on its way.
#[derive(Debug)]
struct Share {
    serial: u64,
    request: RequestId,
    draws: bool,
}

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    cache: KvCache,
    waiting: VecDeque<Sequence>,
    /// In order of arrival.
    running: Vec<Sequence>,
    /// Tokens of each running sequence in the step that was planned last; 0 sits it out.
    planned: Vec<usize>,
    /// Steps on their way, the oldest first.
    flights: VecDeque<Vec<Share>>,
    submissions: u64,
    /// To be reported with the next step.
    finished: Vec<Finished>,
    prefix_hit_tokens: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
}

impl Scheduler {
    #[must_use]
    pub fn new(mut limits: Limits, cache: KvCache) -> Self {
        limits.max_running = limits.max_running.clamp(1, limits.max_batch_tokens.max(1));
        Self {
            limits,
            cache,
            waiting: VecDeque::new(),
            running: Vec::new(),
            planned: Vec::new(),
            flights: VecDeque::new(),
            submissions: 0,
            finished: Vec::new(),
            prefix_hit_tokens: 0,
            prompt_tokens: 0,
            generated_tokens: 0,
        }
    }

    /// # Errors
    /// When a request of this name has not finished yet.
    pub fn submit(&mut self, submission: Submission) -> Result<(), SchedulerError> {
        let request = submission.request;
        let mut live = self.running.iter().chain(&self.waiting);
        if live.any(|sequence| sequence.request == request) {
            return Err(SchedulerError::DuplicateRequest(request));
        }
        self.submissions += 1;
        let sequence = Sequence::new(self.submissions, submission);
        let reason = sequence
            .refusal(&self.limits)
            .or_else(|| self.never_fits(&sequence));
        match reason {
            Some(reason) => self.finished.push(Finished { request, reason }),
            None => self.waiting.push_back(sequence),
        }
        Ok(())
    }

    /// Unknown and finished requests are fine: they may have ended while the word travelled.
    pub fn cancel(&mut self, request: RequestId) {
        let is_it = |sequence: &Sequence| sequence.request == request;
        let mut sequence = if let Some(index) = self.running.iter().position(is_it) {
            self.running.remove(index)
        } else if let Some(sequence) = self
            .waiting
            .iter()
            .position(is_it)
            .and_then(|index| self.waiting.remove(index))
        {
            sequence
        } else {
            return;
        };
        sequence.give_up_pages(&mut self.cache);
        self.finished.push(Finished {
            request,
            reason: FinishReason::Cancelled,
        });
    }

    /// Decides the next step. `prefill_tokens` is how many tokens of prompts it may hold, over all
    /// sequences. False when there is nothing to compute.
    pub fn plan(&mut self, prefill_tokens: u32) -> bool {
        self.admit();
        self.make_room_to_decode();
        if self.running.is_empty() {
            // The one that stood in everybody's way has ended for lack of memory.
            self.admit();
        }
        let runs = |sequence: &&Sequence| {
            !sequence.will_be_full(&self.limits) && !sequence.lacks_pages(&self.cache)
        };
        let decoding = self
            .running
            .iter()
            .filter(|sequence| runs(sequence) && sequence.pending() == 1)
            .count();
        let batch_left = (self.limits.max_batch_tokens as usize).saturating_sub(decoding);
        let mut prefill_left = batch_left.min(prefill_tokens.max(1) as usize);
        self.planned.clear();
        for sequence in &self.running {
            let tokens = match sequence.pending() {
                _ if !runs(&sequence) => 0,
                1 => 1,
                pending => {
                    let chunk = pending.min(prefill_left);
                    prefill_left -= chunk;
                    chunk
                }
            };
            self.planned.push(tokens);
        }
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

    /// How many of the planned tokens belong to prompts (or to sequences being recomputed).
    #[must_use]
    pub fn planned_prefill_tokens(&self) -> usize {
        let parts = self.running.iter().zip(&self.planned);
        parts
            .filter(|(sequence, _)| sequence.pending() > 1)
            .map(|(_, tokens)| tokens)
            .sum()
    }

    /// The planned step is on its way.
    pub fn launched(&mut self) {
        let parts = self.running.iter_mut().zip(self.planned.drain(..));
        let shares = parts.filter(|(_, tokens)| *tokens > 0);
        let flight = shares.map(|(sequence, tokens)| Share {
            serial: sequence.serial,
            request: sequence.request,
            draws: sequence.launch(tokens, &self.cache),
        });
        self.flights.push_back(flight.collect());
    }

    /// Takes what the oldest step on its way drew, in the order of [`Self::work`].
    ///
    /// # Errors
    /// When the device's answer does not fit the question. It cannot be trusted any more then.
    pub fn complete(
        &mut self,
        step: u64,
        results: &[Option<TokenId>],
    ) -> Result<StepReport, SchedulerError> {
        let flight = self.flights.pop_front().unwrap_or_default();
        if results.len() != flight.len() {
            return Err(SchedulerError::ResultCount {
                expected: flight.len(),
                found: results.len(),
            });
        }
        let mut emitted = Vec::new();
        let mut from = 0;
        for (share, drawn) in flight.iter().zip(results) {
            let request = share.request;
            if drawn.is_some() != share.draws {
                return Err(SchedulerError::UnexpectedResult(request));
            }
            if let Some(token) = drawn
                && token.0 >= self.limits.vocab_size
            {
                let token = *token;
                return Err(SchedulerError::TokenOutOfRange { request, token });
            }
            emitted.extend(self.advance(share, *drawn, &mut from));
        }
        self.retire();
        Ok(StepReport {
            step,
            tokens: emitted,
            finished: std::mem::take(&mut self.finished),
        })
    }

    /// Requests that ended without a step: refused, cancelled, or complete as they came.
    pub fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    #[must_use]
    pub fn load(&self) -> Load {
        let geometry = self.cache.geometry();
        Load {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            kv_used_tokens: u64::from(self.cache.used_pages()) * u64::from(geometry.page_tokens),
            prefix_hit_tokens: self.prefix_hit_tokens,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
        }
    }

    #[must_use]
    pub fn kv_used_bytes(&self) -> u64 {
        u64::from(self.cache.used_pages()) * self.cache.geometry().page_bytes
    }

    fn never_fits(&self, sequence: &Sequence) -> Option<FinishReason> {
        let geometry = self.cache.geometry();
        let wanted = sequence.pages_wanted(&self.cache) as u64;
        (wanted > u64::from(geometry.pages)).then(|| FinishReason::OutOfMemory {
            needed_bytes: wanted * geometry.page_bytes,
            available_bytes: u64::from(geometry.pages) * geometry.page_bytes,
        })
    }

    fn admit(&mut self) {
        while self.running.len() < self.limits.max_running as usize
            // Parked, and its newest token is still to come.
            && !self.waiting.front().is_some_and(Sequence::has_unknown)
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            let saved = sequence.adopt_prefix(&mut self.cache);
            if !self.has_room_for(&sequence) {
                sequence.give_up_pages(&mut self.cache);
                self.waiting.push_front(sequence);
                return;
            }
            while sequence.lacks_pages(&self.cache)
                && let Some(page) = self.cache.allocate()
            {
                sequence.add_page(page);
            }
            if !std::mem::replace(&mut sequence.was_running, true) {
                self.prompt_tokens += sequence.prompt_len() as u64;
                self.prefix_hit_tokens += saved.min(sequence.prompt_len()) as u64;
            }
            self.running.push(sequence);
        }
    }

    /// Beside its own pages, one for each that runs already must be left: who is admitted into
    /// the last page would only be parked again.
    fn has_room_for(&self, sequence: &Sequence) -> bool {
        let missing = sequence.pages_wanted(&self.cache) - sequence.page_count();
        missing + self.running.len() <= self.cache.available_pages() as usize
    }

    /// Gives each decoding sequence the page that its next position needs, oldest first.
    fn make_room_to_decode(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &self.running[index];
            if !sequence.lacks_pages(&self.cache) || sequence.will_be_full(&self.limits) {
                index += 1;
            } else if let Some(page) = self.cache.allocate() {
                self.running[index].add_page(page);
            } else if self.running.len() > 1 {
                self.park_newest();
            } else if self.running[index].has_unknown() {
                // The token to come may end it otherwise.
                index += 1;
            } else {
                self.end_for_lack_of_memory();
            }
        }
    }

    fn park_newest(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            sequence.give_up_pages(&mut self.cache);
            self.waiting.push_front(sequence);
        }
    }

    /// The last running sequence has every page and needs another.
    fn end_for_lack_of_memory(&mut self) {
        if let Some(mut sequence) = self.running.pop() {
            let geometry = self.cache.geometry();
            let reason = FinishReason::OutOfMemory {
                needed_bytes: sequence.pages_wanted(&self.cache) as u64 * geometry.page_bytes,
                available_bytes: u64::from(geometry.pages) * geometry.page_bytes,
            };
            sequence.give_up_pages(&mut self.cache);
            self.finished.push(Finished {
                request: sequence.request,
                reason,
            });
        }
    }

    /// Tells a sequence what became of its share of a step; one that has ended by now hears
    /// nothing. `from` is where to look first: a step's order is that of those who still run.
    fn advance(
        &mut self,
        share: &Share,
        drawn: Option<TokenId>,
        from: &mut usize,
    ) -> Option<EmittedToken> {
        let is_it = |sequence: &Sequence| sequence.serial == share.serial;
        let behind = self.running[*from..].iter().position(is_it);
        let sequence = match behind {
            Some(offset) => {
                *from += offset + 1;
                &mut self.running[*from - 1]
            }
            // Parked since.
            None => self.waiting.iter_mut().find(|sequence| is_it(sequence))?,
        };
        let token = drawn.map(|token| EmittedToken {
            request: share.request,
            index: sequence.learn(token),
            token,
        });
        sequence.publish(&mut self.cache);
        self.generated_tokens += u64::from(token.is_some());
        token
    }

    fn retire(&mut self) {
        let Self {
            limits,
            cache,
            running,
            waiting,
            finished,
            ..
        } = self;
        let mut goes_on = |sequence: &mut Sequence| {
            let Some(reason) = sequence.ending(limits) else {
                return true;
            };
            sequence.give_up_pages(cache);
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

#[cfg(test)]
mod tests;
