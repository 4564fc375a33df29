//! The journal as the driver has it: what is with which child, what waits, and what ends how.
//!
//! Owned by the driver alone. Commands for each seat's child collect in a list that the driver sends, time is
//! an argument, and the only output is the [write-ahead log](super::wal). Here are the children's words, and
//! what follows from a death; [`clients`] is what clients want, [`embeddings`] are answers without tokens, [`scoring`] is how likely prompts are,
//! [`restored`] is what another supervisor left, [`assignments`] is who is with which child, and who is next;
//! [`beginning`] is that a child computes one; [`dispatch`] is what is on its way
//! to a seat and back; [`adoption`] is which pages the next child need not compute; [`recall`] is how another driver gets them all; [`probation`] is what
//! deaths say about requests.

mod adoption;
mod assignments;
mod beginning;
mod clients;
mod devices;
mod dispatch;
mod embeddings;
mod levelling;
mod probation;
mod recall;
mod restored;
mod scoring;
mod turns;

use self::assignments::Assignments;
use self::dispatch::Place;
use self::probation::{Inquest, Probation, Verdict};
use crate::error_code::ErrorCode;
use crate::requests::fingerprint::Fingerprint;
use crate::requests::kin::Kin;
use crate::requests::logprobs;
use crate::requests::progress::{Progress, Pushed};
use crate::requests::record::{Failure, OnFault, Record, StopReason};
use crate::requests::registry::Registry;
use crate::requests::scene::Scene;
use crate::requests::totals::Totals;
use crate::requests::violation::Violation;
use crate::requests::wal::Wal;
use crate::text::Text;
use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use tracing::error;
use worker_orcd_ipc::{
    Command, Drawn, DrawnLogprobs, FinishReason, Finished, Logprobs, RequestId, StepReport,
};
use worker_orcd_lifecycle::{DeathCause, SeatId};

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
    /// `None` where the kernel had no memory for it.
    wal: Option<Wal>,
    /// Requests that ended before this supervisor, and wait for a vocabulary to be told.
    untold: Vec<Arc<Record>>,
}

/// A child that is ready to serve.
#[derive(Debug, Clone)]
pub struct ServedBy {
    pub text: Arc<Text>,
    pub kin: Kin,
    /// Sequences that it decodes at once.
    pub slots: usize,
    /// Its KV cache, in tokens.
    pub kv_tokens: u64,
}

impl Requests {
    /// For so many devices. Each has two seats: one for the child that serves, one for the next.
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
            untold: Vec::new(),
        }
    }

    // === looking ===

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.assigned.len() == 0
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.assigned.len()
    }

    /// Those that a child was given.
    #[must_use]
    pub fn with_child(&self) -> usize {
        self.assigned.with_child()
    }

    /// Requests that the present child of a seat was given, in the order of arrival.
    pub(crate) fn in_flight(&self, seat: SeatId) -> impl Iterator<Item = &Record> {
        self.assigned.of(seat).map(|live| &*live.record)
    }

    /// Since when those who are with the child of a seat have had no token: the last that any of them
    /// got, or, before the first, since the oldest was accepted. `None`: nobody is there.
    pub(crate) fn silent_since(&self, seat: SeatId) -> Option<Instant> {
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

    /// Requests that must run alone before anybody else goes on.
    #[must_use]
    pub fn on_probation(&self) -> usize {
        self.assigned.suspects().len()
    }

    #[cfg(test)]
    pub(crate) fn is_suspect(&self, id: RequestId) -> bool {
        self.assigned.suspects().contains(&id)
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The next command for a seat's child.
    pub fn next_command(&mut self, seat: SeatId) -> Option<Command> {
        self.assigned.seat(seat).next_command()
    }

    /// Tells the readers, of what is in the log by then. Called when nothing is locked.
    pub fn wake(&mut self) {
        self.write_ahead();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    // === a child's life ===

    /// The child of this seat is ready, and takes what waits.
    pub fn serve(&mut self, seat: SeatId, by: ServedBy) {
        self.retell(&by.text);
        self.text = Some(Arc::clone(&by.text));
        self.assigned.open(seat, by);
        self.assigned.hand_out();
    }

    /// The child takes nothing more. What it says until it is buried still counts.
    pub fn suspend(&mut self, seat: SeatId) {
        self.assigned.seat(seat).close();
    }

    /// The child is overdue: those that it has are told that they wait.
    pub fn hesitate(&mut self, seat: SeatId) {
        for live in self.assigned.of(seat) {
            let mut progress = live.record.progress.lock();
            progress.pause();
            self.wakers.extend(progress.take_waker());
        }
    }

    // === a child's words ===

    /// # Errors
    /// The first thing in the report that cannot be; what came before it is kept, what comes
    /// after it is not believed.
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
        for drawn in &report.drawn {
            let is_its =
                |it: &&DrawnLogprobs| it.request == drawn.request && it.index == drawn.index;
            let its = logprobs.next_if(is_its).map(|it| &it.logprobs);
            self.drawn(seat, drawn, its, &text, now)?;
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

    fn drawn(
        &mut self,
        seat: SeatId,
        said: &Drawn,
        logprobs: Option<&Logprobs>,
        text: &Arc<Text>,
        now: Instant,
    ) -> Result<(), Violation> {
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
        logprobs::check(request, live.record.logprobs, logprobs, vocabulary)?;
        let max_tokens = live.record.max_tokens;
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
        self.totals.tokens += 1;
        if let Some(gap) = progress.since_last_token(now) {
            self.totals.gaps.observe(gap);
            if progress.is_interrupted() {
                self.totals.pauses.observe(gap);
            }
        }
        let pushed = progress.push(said, logprobs, text, now, &mut self.scratch);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        if let Some(wal) = &mut self.wal {
            wal.drawn(request, said.token, logprobs);
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
            self.assigned.hand_out_to_suspects();
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

    // === ends ===

    /// Ends a request that the child may still be working on, and tells the child.
    fn end_here(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        match self.assigned.place(id) {
            Some(Place::With(seat)) => self.assigned.seat(seat).cancel(id),
            // It is cancelled there already.
            Some(Place::CalledBack(seat)) => self.assigned.seat(seat).leave(id),
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
        // Before the reader can know of the end: it may use the job id again at once.
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

    // === deaths ===

    /// The child says nothing more that counts. Who cannot become a suspect by its death goes on at once;
    /// what it says about them is told at the burial.
    pub(crate) fn release(&mut self, seat: SeatId) {
        for id in self.assigned.depart(seat) {
            self.interrupt(id, seat);
        }
        self.assigned.hand_out();
    }

    /// The child is gone. What it had goes on with the next one, or ends.
    pub(crate) fn bury(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, now: Instant) {
        self.suspend(seat);
        let bereft = self.assigned.bereft(seat);
        let dispatch = self.assigned.seat(seat);
        let alone = dispatch.awaits_nobody() && bereft.len() == 1;
        dispatch.bury();
        let inquest = self.probation.look_into(seat, cause, scene, alone, now);
        for id in bereft {
            self.interrupt(id, seat);
            if inquest.suspects(id) {
                self.judge(id, &inquest, now);
            }
            self.outlive(id, cause, now);
        }
        self.assigned.forget_left(seat);
        self.end_hopeless(now);
        // Where another child serves already, nobody waits for the next one.
        self.assigned.hand_out();
    }

    /// Nothing happens to who has left that seat already.
    fn interrupt(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.assigned.interrupt(id, seat) {
            let mut progress = live.record.progress.lock();
            progress.interrupt();
            self.wakers.extend(progress.take_waker());
        }
    }

    fn judge(&mut self, id: RequestId, inquest: &Inquest<'_>, now: Instant) {
        let toll = self.probation.toll(now);
        match self.assigned.accuse(id, inquest, toll) {
            Verdict::Unchanged => {}
            Verdict::OnProbation => self.totals.probations += 1,
            Verdict::Proven { deaths } => self.convict(id, deaths, inquest.cause, now),
        }
    }

    /// Convicts a request that killed its child when the child had nothing else: the same request
    /// of others would kill, too.
    fn convict(&mut self, id: RequestId, deaths: u32, cause: &DeathCause, now: Instant) {
        let Some(live) = self.assigned.get(id) else {
            return;
        };
        self.probation.forgive(deaths);
        let fingerprint = Fingerprint::of_record(&live.record);
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
}

#[cfg(test)]
mod tests;
