//! Driver's side of the journal: assignment of requests to children, queues, and ends.
//!
//! The driver owns [`Requests`] alone. Commands for the child of each seat collect in a list that the driver sends.
//! Time is an argument, and the only output is the [write-ahead log](super::wal). This file has the life of a request:
//! submission, the reports of its child, the child's death, and the end.
//!
//! * [`restored`]: write-ahead log and requests of an earlier supervisor.
//! * [`assignments`]: requests and their children. [`dispatch`]: commands and pending answers of one seat. [`scheduling`]:
//!   choice of the next request for each child, and rebalancing between children.
//! * [`devices`]: several children: the requests that each may continue, KV cache pages that it can adopt, recall, and
//!   overdue children.
//! * [`probation`]: blame of requests for deaths.

mod assignments;
mod devices;
mod dispatch;
mod probation;
mod restored;
mod scheduling;

use self::assignments::{Assignments, Live};
use self::dispatch::Place;
use self::probation::{Inquest, Probation, Verdict};
use crate::determinism::DeterminismClass;
use crate::drafts::Drafts;
use crate::error_code::ErrorCode;
use crate::fingerprint::Fingerprint;
use crate::logprobs;
use crate::progress::{Progress, Pushed};
use crate::record::{Embedding, Failure, OnFault, Record, StopReason};
use crate::registry::Registry;
use crate::scene::Scene;
use crate::totals::Totals;
use crate::violation::Violation;
use crate::wal::Wal;
use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use tracing::error;
use worker_orcd_ipc::{
    Began, Command, Drafted, Drawn, DrawnLogprobs, FinishReason, Finished, Logprobs, RequestId,
    Scored, StepReport,
};
use worker_orcd_lifecycle::{DeathCause, SeatId};
use worker_orcd_text::Text;

#[derive(Debug)]
pub struct Requests {
    registry: Arc<Registry>,
    assigned: Assignments,
    probation: Probation,
    deadlines: BTreeSet<(Instant, RequestId)>,
    text: Option<Arc<Text>>,
    wakers: Vec<Waker>,
    scratch: String,
    totals: Totals,
    /// `None` if the kernel had no memory or no descriptor for the log.
    wal: Option<Wal>,
    /// Requests that ended under an earlier supervisor. Their text is decoded once a vocabulary is known.
    unsent: Vec<Arc<Record>>,
}

/// Properties of a child that is ready to serve.
#[derive(Debug, Clone)]
pub struct ServedBy {
    pub text: Arc<Text>,
    pub class: DeterminismClass,
    /// Number of sequences that the child decodes at once.
    pub slots: usize,
    /// Size of the KV cache, in tokens.
    pub kv_tokens: u64,
}

/// Token in a report of a child.
struct Sampled<'a> {
    drawn: &'a Drawn,
    /// It is a draft that was accepted.
    is_draft: bool,
    logprobs: Option<&'a Logprobs>,
}

impl Requests {
    /// Creates a journal for `devices` devices of two seats each: one for the serving child, one for the next.
    #[must_use]
    pub fn new(registry: Arc<Registry>, devices: NonZeroU8) -> Self {
        Self {
            registry,
            assigned: Assignments::new(devices),
            probation: Probation::default(),
            deadlines: BTreeSet::new(),
            text: None,
            wakers: Vec::new(),
            scratch: String::new(),
            totals: Totals::default(),
            wal: None,
            unsent: Vec::new(),
        }
    }

    // === accessors ===

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.assigned.len() == 0
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.assigned.len()
    }

    /// Number of requests that are with a child.
    #[must_use]
    pub fn with_child(&self) -> usize {
        self.assigned.with_child()
    }

    /// Requests that are with the present child of a seat, in order of arrival.
    pub fn in_flight(&self, seat: SeatId) -> impl Iterator<Item = &Record> {
        self.assigned.of(seat).map(|live| &*live.record)
    }

    /// Start of the present silence of a seat: the time of the latest token of any of its requests, or, before the
    /// first token, of the oldest acceptance. `None`: no request is there.
    pub fn silent_since(&self, seat: SeatId) -> Option<Instant> {
        let moments = |record: &Record| {
            let progress = record.progress.lock();
            (progress.accepted_at(), progress.last_token_at())
        };
        let moments = self.in_flight(seat).map(moments);
        let sooner = |(accepted, token): (Instant, Option<Instant>), (other, later)| {
            (accepted.min(other), token.max(later))
        };
        let (accepted, token) = moments.reduce(sooner)?;
        Some(token.unwrap_or(accepted))
    }

    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Number of requests that must run alone.
    #[must_use]
    pub fn on_probation(&self) -> usize {
        self.assigned.suspects().len()
    }

    #[cfg(test)]
    pub fn is_suspect(&self, id: RequestId) -> bool {
        self.assigned.suspects().contains(&id)
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Removes and returns the next command for a seat's child.
    pub fn next_command(&mut self, seat: SeatId) -> Option<Command> {
        self.assigned.seat(seat).next_command()
    }

    /// Writes the log, then wakes the readers of the new entries. The caller must hold no lock.
    pub fn wake(&mut self) {
        self.write_ahead();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    // === clients ===

    pub fn submit(&mut self, record: Arc<Record>) {
        if let Some(deadline) = record.deadline {
            self.deadlines.insert((deadline, record.id));
        }
        if let Some(wal) = &mut self.wal {
            wal.accepted(&record);
        }
        if let Some(text) = &self.text {
            let mut progress = record.progress.lock();
            progress.deliver_prompt(&record.prompt, text);
            self.wakers.extend(progress.take_waker());
        }
        self.assigned.admit(record);
    }

    pub fn cancel(&mut self, id: RequestId, now: Instant) {
        let failure = Failure::new(ErrorCode::Cancelled, "the job was cancelled");
        self.end_here(id, now, |progress, _| progress.fail(failure));
    }

    /// Ends a request without a reader.
    pub fn abandon(&mut self, id: RequestId, now: Instant) {
        self.end_here(id, now, |_, _| {});
    }

    pub fn expire(&mut self, now: Instant) {
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            let failure = Failure::new(ErrorCode::InferenceTimeout, "the job took too long");
            self.end_here(id, now, |progress, _| progress.fail(failure));
        }
    }

    pub fn fail_all(&mut self, failure: &Failure, now: Instant) {
        for id in self.assigned.ids() {
            self.end_here(id, now, |progress, _| progress.fail(failure.clone()));
        }
    }

    // === child lifecycle ===

    /// Opens a seat, because its child is ready, and assigns waiting requests.
    pub fn serve(&mut self, seat: SeatId, by: ServedBy) {
        self.retell(&by.text);
        self.text = Some(Arc::clone(&by.text));
        self.assigned.open(seat, by);
        self.assigned.hand_out();
    }

    /// Stops assignments to the child. Its reports remain valid until [`reaped`](Self::reaped) or
    /// [`release`](Self::release).
    pub fn suspend(&mut self, seat: SeatId) {
        self.assigned.seat(seat).close();
    }

    /// Notifies the clients of an overdue child that their requests wait.
    pub fn hesitate(&mut self, seat: SeatId) {
        for live in self.assigned.of(seat) {
            let mut progress = live.record.progress.lock();
            progress.pause();
            self.wakers.extend(progress.take_waker());
        }
    }

    // === reports of a child ===

    /// Applies the report of a step.
    ///
    /// # Errors
    /// The first violation of the protocol in the report. Earlier parts of the report are applied, later ones are
    /// ignored.
    pub fn step(
        &mut self,
        seat: SeatId,
        report: &StepReport,
        now: Instant,
    ) -> Result<(), Violation> {
        let text = self.text.clone().ok_or(Violation::NotReady)?;
        for began in &report.began {
            self.began(seat, *began, now)?;
        }
        for scored in &report.scored {
            self.scored(seat, scored, &text)?;
        }
        let mut logprobs = report.logprobs.iter().peekable();
        let mut drafted = report.drafted.iter().peekable();
        for tokens in report.drawn.chunk_by(|a, b| a.request == b.request) {
            let drafts = drafted.next_if(|it| it.request == tokens[0].request);
            if let Some(drafts) = drafts {
                self.drafted(seat, *drafts, tokens.len())?;
            }
            for (place, drawn) in tokens.iter().enumerate() {
                let is_its =
                    |it: &&DrawnLogprobs| it.request == drawn.request && it.index == drawn.index;
                let sampled = Sampled {
                    drawn,
                    is_draft: drafts.is_some() && place > 0,
                    logprobs: logprobs.next_if(is_its).map(|it| &it.logprobs),
                };
                self.drawn(seat, sampled, &text, now)?;
            }
        }
        if let Some(stray) = drafted.next() {
            return Err(Violation::Drafts(stray.request));
        }
        if let Some(stray) = logprobs.next() {
            return Err(Violation::Logprobs(stray.request));
        }
        for finished in &report.finished {
            self.finished(seat, finished, now)?;
        }
        for sealing in &report.sealed {
            self.sealed(seat, sealing)?;
        }
        Ok(())
    }

    /// Notes the first step of a request on a child, with the number of prompt tokens in the prefix cache. Only the first
    /// child's report counts: replays do not change it.
    fn began(&mut self, seat: SeatId, said: Began, now: Instant) -> Result<(), Violation> {
        let Began {
            request,
            cached_tokens,
        } = said;
        let is_leaving = self.assigned.seat(seat).is_leaving(request);
        let Some(live) = self.assigned.get_with(request, seat) else {
            let what = "the beginning";
            return match is_leaving {
                true => Ok(()),
                false => Err(Violation::UnknownRequest { what, request }),
            };
        };
        if cached_tokens > live.record.tokens_in() {
            return Err(Violation::CachedTokens(request));
        }
        let record = Arc::clone(&live.record);
        self.assigned.begun(request, seat);
        let is_first = record.progress.lock().begin(cached_tokens, now);
        if let Some(wal) = self.wal.as_mut().filter(|_| is_first) {
            wal.began(request, cached_tokens);
        }
        Ok(())
    }

    /// Adds log probabilities of a prompt. A child reports them in parts, and each part is accepted once, in order.
    fn scored(&mut self, seat: SeatId, said: &Scored, text: &Arc<Text>) -> Result<(), Violation> {
        let request = said.request;
        let Some(live) = self.assigned.get_with(request, seat) else {
            if self.assigned.seat(seat).is_leaving(request) {
                return Ok(());
            }
            return Err(Violation::UnknownRequest {
                what: "a prompt",
                request,
            });
        };
        let record = &live.record;
        let vocabulary = text.vocabulary().len();
        for of_token in &said.logprobs {
            logprobs::check(request, record.prompt_top(), Some(of_token), vocabulary)?;
        }
        let mut progress = record.progress.lock();
        let is_next = progress.scores_sent() == Some(said.first);
        if !is_next || said.logprobs.len() > progress.scores_missing() {
            return Err(Violation::Logprobs(request));
        }
        progress.score(&said.logprobs);
        if let Some(wal) = &mut self.wal {
            wal.scored(request, &said.logprobs);
        }
        progress.deliver_prompt(&record.prompt, text);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        self.assigned.bind(request, seat);
        Ok(())
    }

    /// Notes the drafts of a request in a step that sampled so many of its tokens.
    fn drafted(&mut self, seat: SeatId, said: Drafted, tokens: usize) -> Result<(), Violation> {
        let Drafted { request, drafts } = said;
        if drafts == 0 || tokens - 1 > drafts as usize {
            return Err(Violation::Drafts(request));
        }
        // Accepted ones are noted with their tokens: one may complete a stop string, and those behind it do not count.
        if let Some(live) = self.assigned.get_with(request, seat) {
            let drafts = Drafts::verified(drafts);
            live.record.progress.lock().note_drafts(drafts);
            if let Some(wal) = &mut self.wal {
                wal.drafted(request, drafts);
            }
        }
        Ok(())
    }

    fn drawn(
        &mut self,
        seat: SeatId,
        sampled: Sampled<'_>,
        text: &Arc<Text>,
        now: Instant,
    ) -> Result<(), Violation> {
        let Sampled {
            drawn: said,
            is_draft,
            logprobs,
        } = sampled;
        let request = said.request;
        let Some(live) = self.assigned.get_with(request, seat) else {
            if self.assigned.seat(seat).is_leaving(request) {
                return Ok(());
            }
            return Err(Violation::UnknownRequest {
                what: "a token",
                request,
            });
        };
        let vocabulary = text.vocabulary().len();
        if said.token.index() >= vocabulary {
            return Err(Violation::Vocabulary {
                token: said.token,
                vocabulary,
            });
        }
        logprobs::check(request, live.record.params.logprobs, logprobs, vocabulary)?;
        let max_tokens = live.record.params.max_tokens;
        let is_its_first = !live.streams();
        let mut progress = live.record.progress.lock();
        if progress.scores_missing() > 0 {
            return Err(Violation::Logprobs(request));
        }
        let expected = progress.tokens_out();
        if said.index != expected {
            return Err(Violation::Index {
                request,
                said: said.index,
                expected,
            });
        }
        if expected >= max_tokens {
            return Err(Violation::TooMany {
                request,
                max_tokens,
            });
        }
        self.totals.note_token(&progress, now);
        if is_draft {
            progress.note_drafts(Drafts::ACCEPTED);
        }
        let pushed = progress.push(said, logprobs, text, now, &mut self.scratch);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        if let Some(wal) = &mut self.wal {
            wal.drawn(request, said.token, logprobs);
            if is_draft {
                wal.drafted(request, Drafts::ACCEPTED);
            }
        }
        if is_its_first {
            self.assigned.bind(request, seat);
            self.assigned.streams(request, seat);
        }
        if let Pushed::Stopped(stop) = pushed {
            self.end_here(request, now, |progress, record| {
                progress.finish_stopped(record, stop, now);
            });
            self.assigned.seat(seat).check_leaving()?;
        } else if self.assigned.suspects().contains(&request) {
            self.assigned.acquit_if_past(request);
        }
        Ok(())
    }

    fn finished(&mut self, seat: SeatId, said: &Finished, now: Instant) -> Result<(), Violation> {
        let id = said.request;
        if self.assigned.seat(seat).has_left(id) {
            self.assigned.hand_out_after(id);
            return Ok(());
        }
        let place = self.assigned.place(id);
        if place.and_then(Place::seat) != Some(seat) {
            return Err(Violation::UnknownRequest {
                what: "the end",
                request: id,
            });
        }
        self.check_answer(said, seat)?;
        match &said.reason {
            FinishReason::Embedded { values } => self.embedded(id, values, now),
            FinishReason::MaxTokens => self.end(id, now, |progress, record| {
                progress.finish(record, StopReason::MaxTokens, now);
            }),
            FinishReason::EndOfSequence => self.end(id, now, |progress, record| {
                progress.finish(record, StopReason::Eos, now);
            }),
            FinishReason::Cancelled if place == Some(Place::CalledBack(seat)) => {
                self.assigned.came_back(id);
                self.end_hopeless(now);
            }
            FinishReason::Cancelled => return Err(Violation::NotCancelled(id)),
            FinishReason::OutOfMemory {
                needed_bytes,
                available_bytes,
            } => {
                let message = format!(
                    "this job needs {needed_bytes} bytes of memory, of which {available_bytes} \
                     are available"
                );
                let failure = Failure::new(ErrorCode::VramOom, message);
                self.end(id, now, |progress, _| progress.fail(failure));
            }
            FinishReason::Refused { message } | FinishReason::GrammarFailed { message } => {
                let failure = Failure::new(ErrorCode::InvalidRequest, message.clone());
                self.end(id, now, |progress, _| progress.fail(failure));
            }
        }
        Ok(())
    }

    /// Checks the kind of a final answer. Only a request for a vector gets one, and it gets no other answer. A request
    /// for prompt log probabilities ends only after all of them were reported.
    fn check_answer(&self, said: &Finished, seat: SeatId) -> Result<(), Violation> {
        let live = self.assigned.get_with(said.request, seat);
        let wants_vector = live.is_some_and(|live| live.record.embeds.is_some());
        let is_right = match &said.reason {
            FinishReason::Embedded { values } => {
                let is_vector = !values.is_empty() && values.iter().all(|it| it.is_finite());
                wants_vector && is_vector
            }
            FinishReason::MaxTokens | FinishReason::EndOfSequence => {
                let knows_prompt = |live: &Live| live.record.progress.lock().scores_missing() == 0;
                !wants_vector && live.is_none_or(knows_prompt)
            }
            FinishReason::Cancelled
            | FinishReason::OutOfMemory { .. }
            | FinishReason::GrammarFailed { .. }
            | FinishReason::Refused { .. } => true,
        };
        is_right
            .then_some(())
            .ok_or(Violation::Answer(said.request))
    }

    fn embedded(&mut self, id: RequestId, values: &[f32], now: Instant) {
        self.end(id, now, |progress, _| {
            progress.embed(Embedding {
                values: values.to_vec(),
                queued_for: progress.queued_for(),
                recoveries: progress.recoveries(),
            });
        });
    }

    // === deaths ===

    /// Reassigns requests of a dying child before it is reaped, except those that its death could make suspects. Later
    /// reports of the child do not count. [`reaped`](Self::reaped) judges the death.
    pub fn release(&mut self, seat: SeatId) {
        for id in self.assigned.depart(seat) {
            self.interrupt(id, seat);
        }
        self.assigned.hand_out();
    }

    /// Judges the requests of a dead, reaped child, then continues or ends each. Returns how many recent deaths a
    /// request caused.
    pub fn reaped(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, now: Instant) -> u32 {
        self.suspend(seat);
        let in_flight = self.assigned.in_flight(seat);
        let dispatch = self.assigned.seat(seat);
        let alone = dispatch.awaits_nobody() && in_flight.len() == 1;
        dispatch.reaped();
        let inquest = self.probation.look_into(seat, cause, scene, alone, now);
        let mut ascribed = 0;
        for id in in_flight {
            self.interrupt(id, seat);
            if inquest.suspects(id) {
                ascribed = ascribed.max(self.judge(id, &inquest, now));
            }
            self.outlive(id, cause, now);
        }
        self.assigned.forget_left(seat);
        self.end_hopeless(now);
        // A child that already serves takes the requests immediately.
        self.assigned.hand_out();
        ascribed
    }

    /// Interrupts a request, unless it has already left that seat.
    fn interrupt(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.assigned.interrupt(id, seat) {
            let mut progress = live.record.progress.lock();
            progress.interrupt();
            self.wakers.extend(progress.take_waker());
        }
    }

    /// Judges a request and returns the number of deaths that it caused, which do not count as a crash loop. The number
    /// is bounded, because a proof takes few deaths.
    fn judge(&mut self, id: RequestId, inquest: &Inquest<'_>, now: Instant) -> u32 {
        let recent_deaths = self.probation.recent_deaths(now);
        match self.assigned.accuse(id, inquest, recent_deaths) {
            Verdict::Unchanged => 0,
            Verdict::OnProbation => {
                self.totals.probations += 1;
                0
            }
            Verdict::AloneAtItsPlace => 1,
            Verdict::Proven { deaths } => {
                self.convict(id, deaths, inquest.cause, now);
                deaths
            }
        }
    }

    /// Quarantines a request that was proven to kill children, and ends all requests with the same fingerprint.
    fn convict(&mut self, id: RequestId, deaths: u32, cause: &DeathCause, now: Instant) {
        let Some(live) = self.assigned.get(id) else {
            return;
        };
        self.probation.forgive(deaths);
        let fingerprint = Fingerprint::of(&live.record);
        let job_id = live.record.job_id.as_str();
        error!(job_id, request = id.0, %fingerprint, deaths, %cause, "job_quarantined");
        self.registry.quarantine(fingerprint, now);
        let message = format!(
            "{deaths} children died at the same place of this job, the last when it ran alone: \
             {cause}"
        );
        let failure = Failure::new(ErrorCode::Quarantined, message);
        for twin in self.assigned.twins(fingerprint) {
            self.totals.quarantined += 1;
            self.end_here(twin, now, |progress, _| progress.fail(failure.clone()));
        }
    }

    fn outlive(&mut self, id: RequestId, cause: &DeathCause, now: Instant) {
        match self.assigned.get(id).map(|live| live.record.on_fault) {
            None => {}
            Some(OnFault::Fail) if *cause != DeathCause::Dismissed => {
                let message = format!("the worker lost its child: {cause}");
                let failure = Failure::new(ErrorCode::of_death(cause), message);
                self.end_here(id, now, |progress, _| progress.fail(failure));
            }
            Some(_) => self.totals.recoveries += 1,
        }
    }

    // === ends ===

    /// Ends a request and, if a child may still work on it, cancels it there.
    fn end_here(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        match self.assigned.place(id) {
            Some(Place::With(seat)) => self.assigned.seat(seat).cancel(id),
            // The call-back has already sent the cancellation.
            Some(Place::CalledBack(seat)) => self.assigned.seat(seat).depart(id),
            Some(Place::Waiting) | None => {}
        }
        self.end(id, now, how);
    }

    fn end(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        let Some(record) = self.assigned.remove(id) else {
            return;
        };
        if let Some(deadline) = record.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let mut progress = record.progress.lock();
        // The release precedes the reader's notification, because the client may reuse the job id immediately after the
        // end.
        let took = now.saturating_duration_since(progress.accepted_at());
        self.registry.release(&record.job_id, id, took);
        how(&mut progress, &record);
        self.wakers.extend(progress.take_waker());
        if let Some(wal) = self.wal.as_mut().filter(|_| record.embeds.is_none()) {
            wal.ended(&record, progress.end_to_read().cloned(), now);
        }
        drop(progress);
        self.assigned.fill_gap(id);
    }
}

#[cfg(test)]
mod drafts_tests;
#[cfg(test)]
mod embeddings_tests;
#[cfg(test)]
mod scoring_tests;
#[cfg(test)]
mod tests;
