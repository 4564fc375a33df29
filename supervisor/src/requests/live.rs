//! The journal as the driver has it: what is with which child, what waits, and what ends how.
//!
//! Owned by the driver alone, without I/O: commands for each seat's child collect in a list that the
//! driver sends, and time is an argument. Here are clients and the children's words;
//! [`dispatch`] is what is on its way to a seat and back; [`probation`] is who is given to which child
//! when, and what follows from a death.

mod dispatch;
mod probation;

use self::dispatch::{Dispatch, Place};
use crate::error_code::ErrorCode;
use crate::requests::pace::Pace;
use crate::requests::progress::{Progress, Pushed};
use crate::requests::record::{Failure, Record, StopReason};
use crate::requests::registry::Registry;
use crate::requests::suspicion::Suspicion;
use crate::requests::violation::Violation;
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{Command, Drawn, FinishReason, Finished, RequestId, StepReport};
use worker_orcd_lifecycle::SeatId;

/// From HTTP tasks to the driver. Unbounded as a channel, bounded by admission: each request
/// that was let in causes at most one of the first and one of the third.
#[derive(Debug)]
pub(crate) enum Control {
    Submit(Arc<Record>),
    Cancel(RequestId),
    /// The reader is gone.
    Abandon(RequestId),
    Drain(Duration),
    StopNow,
}

#[derive(Debug)]
pub struct Requests {
    registry: Arc<Registry>,
    /// By number, hence in the order of arrival.
    live: BTreeMap<RequestId, Live>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// One for each seat.
    seats: Vec<Dispatch>,
    /// Each of them runs alone in its seat, in this order.
    suspects: BTreeSet<RequestId>,
    /// When children died lately of what a request may have done.
    deaths: Vec<Instant>,
    text: Option<Arc<Text>>,
    wakers: Vec<Waker>,
    scratch: String,
    tokens_total: u64,
    pace: Pace,
    recoveries_total: u64,
    probations_total: u64,
    quarantined_total: u64,
}

#[derive(Debug)]
struct Live {
    record: Arc<Record>,
    place: Place,
    /// Its history when the child got it.
    given_at: u32,
    suspicion: Suspicion,
}

impl Requests {
    #[must_use]
    pub fn new(registry: Arc<Registry>, seats: NonZeroU8) -> Self {
        Self {
            registry,
            live: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            seats: (0..seats.get()).map(|_| Dispatch::default()).collect(),
            suspects: BTreeSet::new(),
            deaths: Vec::new(),
            text: None,
            wakers: Vec::new(),
            scratch: String::new(),
            tokens_total: 0,
            pace: Pace::default(),
            recoveries_total: 0,
            probations_total: 0,
            quarantined_total: 0,
        }
    }

    // === looking ===

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Those that a child was given.
    #[must_use]
    pub fn with_child(&self) -> usize {
        let seats = self.live.values().filter_map(|live| live.place.seat());
        seats.count()
    }

    /// What the present child of a seat was given, in the order of arrival.
    pub(crate) fn in_flight(&self, seat: SeatId) -> impl Iterator<Item = &Record> {
        self.of(seat).map(|live| &*live.record)
    }

    fn of(&self, seat: SeatId) -> impl Iterator<Item = &Live> {
        let live = self.live.values();
        live.filter(move |live| live.place.seat() == Some(seat))
    }

    /// Tokens accepted since the start.
    #[must_use]
    pub fn tokens_total(&self) -> u64 {
        self.tokens_total
    }

    /// Between the tokens of streams, since the start.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// How often any request went on with another child.
    #[must_use]
    pub fn recoveries_total(&self) -> u64 {
        self.recoveries_total
    }

    /// Requests that must run alone before anybody else goes on.
    #[must_use]
    pub fn on_probation(&self) -> usize {
        self.suspects.len()
    }

    #[cfg(test)]
    pub(crate) fn is_suspect(&self, id: RequestId) -> bool {
        self.suspects.contains(&id)
    }

    /// How often any request was put on probation.
    #[must_use]
    pub fn probations_total(&self) -> u64 {
        self.probations_total
    }

    /// Requests that ended as queries of death.
    #[must_use]
    pub fn quarantined_total(&self) -> u64 {
        self.quarantined_total
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// What a seat's child is to be told next.
    pub fn next_command(&mut self, seat: SeatId) -> Option<Command> {
        self.seat(seat).next_command()
    }

    /// Tells the readers. Called when nothing is locked.
    pub fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    // === clients ===

    pub(crate) fn submit(&mut self, record: Arc<Record>) {
        if let Some(deadline) = record.deadline {
            self.deadlines.insert((deadline, record.id));
        }
        let id = record.id;
        let live = Live {
            record,
            place: Place::Waiting,
            given_at: 0,
            suspicion: Suspicion::default(),
        };
        self.live.insert(id, live);
        if let Some(seat) = self.seat_for_anybody() {
            self.hand_over(id, seat);
        }
    }

    pub fn cancel(&mut self, id: RequestId, now: Instant) {
        let failure = Failure::new(ErrorCode::Cancelled, "the job was cancelled");
        self.end_here(id, now, |progress, _| progress.fail(failure));
    }

    /// Nobody reads any more.
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
        let ids: Vec<_> = self.live.keys().copied().collect();
        for id in ids {
            self.end_here(id, now, |progress, _| progress.fail(failure.clone()));
        }
    }

    // === a child's life ===

    /// The child of this seat is ready, and takes what waits.
    pub fn serve(&mut self, seat: SeatId, text: Arc<Text>) {
        self.text = Some(text);
        self.seat(seat).open();
        self.hand_out();
    }

    /// The child takes nothing more. What it says until it is buried still counts.
    pub fn suspend(&mut self, seat: SeatId) {
        self.seat(seat).close();
    }

    /// The child is overdue: those that it has are told that they wait.
    pub fn hesitate(&mut self, seat: SeatId) {
        let with_it = self
            .live
            .values()
            .filter(|it| it.place.seat() == Some(seat));
        for live in with_it {
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
        for request in &report.began {
            self.began(seat, *request, now)?;
        }
        for drawn in &report.drawn {
            self.drawn(seat, drawn, &text, now)?;
        }
        for finished in &report.finished {
            self.finished(seat, finished, now)?;
        }
        Ok(())
    }

    fn began(&mut self, seat: SeatId, request: RequestId, now: Instant) -> Result<(), Violation> {
        let is_leaving = self.seat(seat).is_leaving(request);
        let live = self.live.get(&request);
        match live.filter(|live| live.place.seat() == Some(seat)) {
            Some(live) => live.record.progress.lock().begin(now),
            None if is_leaving => {}
            None => {
                let what = "the beginning";
                return Err(Violation::UnknownRequest { what, request });
            }
        }
        Ok(())
    }

    fn drawn(
        &mut self,
        seat: SeatId,
        said: &Drawn,
        text: &Text,
        now: Instant,
    ) -> Result<(), Violation> {
        let request = said.request;
        let Some(live) = self
            .live
            .get(&request)
            .filter(|live| live.place.seat() == Some(seat))
        else {
            if self.seat(seat).is_leaving(request) {
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
        let max_tokens = live.record.max_tokens;
        let mut progress = live.record.progress.lock();
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
        self.tokens_total += 1;
        if let Some(gap) = progress.since_last_token(now) {
            self.pace.observe(gap);
        }
        let pushed = progress.push(said, text, now, &mut self.scratch);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        if let Pushed::Stopped(stop) = pushed {
            self.end_here(request, now, |progress, record| {
                progress.finish_stopped(record, stop, now);
            });
            self.seat(seat).check_leaving()?;
        } else if self.suspects.contains(&request) {
            self.acquit_if_past(request);
        }
        Ok(())
    }

    fn finished(&mut self, seat: SeatId, said: &Finished, now: Instant) -> Result<(), Violation> {
        let id = said.request;
        if self.seat(seat).has_left(id) {
            self.hand_out_to_suspects();
            return Ok(());
        }
        let place = self.live.get(&id).map(|live| live.place);
        if place.and_then(Place::seat) != Some(seat) {
            return Err(Violation::UnknownRequest {
                what: "the end",
                request: id,
            });
        }
        match &said.reason {
            FinishReason::MaxTokens => self.end(id, now, |progress, record| {
                progress.finish(record, StopReason::MaxTokens, now);
            }),
            FinishReason::EndOfSequence => self.end(id, now, |progress, record| {
                progress.finish(record, StopReason::Eos, now);
            }),
            FinishReason::Cancelled if place == Some(Place::CalledBack(seat)) => {
                self.came_back(seat, id)
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
            FinishReason::Refused { message } => {
                let failure = Failure::new(ErrorCode::InvalidRequest, message.clone());
                self.end(id, now, |progress, _| progress.fail(failure));
            }
        }
        Ok(())
    }

    // === ends ===

    /// Ends a request that the child may still be working on, and tells the child.
    fn end_here(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        match self.live.get(&id).map(|live| live.place) {
            Some(Place::With(seat)) => self.seat(seat).cancel(id),
            // It is cancelled there already.
            Some(Place::CalledBack(seat)) => self.seat(seat).leave(id),
            Some(Place::Waiting) | None => {}
        }
        self.end(id, now, how);
    }

    fn end(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        let Some(Live { record, place, .. }) = self.live.remove(&id) else {
            return;
        };
        if let Some(seat) = place.seat() {
            self.seat(seat).release();
        }
        if let Some(deadline) = record.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let mut progress = record.progress.lock();
        // Before the reader can know of the end: it may use the job id again at once.
        let took = now.saturating_duration_since(progress.accepted_at());
        self.registry.release(&record.job_id, id, took);
        how(&mut progress, &record);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        let was_suspect = self.suspects.remove(&id);
        // The last suspect gives way to everybody, any other end may leave the child to the next.
        if was_suspect || !self.suspects.is_empty() {
            self.hand_out();
        }
    }

    fn seat(&mut self, seat: SeatId) -> &mut Dispatch {
        &mut self.seats[usize::from(seat.0)]
    }

    /// Somebody may wait until the child has nothing else.
    fn hand_out_to_suspects(&mut self) {
        if !self.suspects.is_empty() {
            self.hand_out();
        }
    }
}

impl Live {
    /// Tokens of its prompt and its answer.
    fn history(&self) -> u32 {
        let tokens = self.record.progress.lock().tokens_out();
        self.record.tokens_in().saturating_add(tokens)
    }

    fn has_tokens(&self) -> bool {
        self.record.progress.lock().tokens_out() > 0
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
