//! The journal as the driver has it: what is with the child, what waits, and what ends how.
//!
//! Owned by the driver alone, without I/O: commands for the child collect in a list that the
//! driver sends, and time is an argument. Here are clients and the child's words;
//! [`probation`] is who is given to the child when, and what follows from a death.

mod probation;

use crate::error_code::ErrorCode;
use crate::requests::pace::Pace;
use crate::requests::progress::{Progress, Pushed};
use crate::requests::record::{Failure, Record, StopReason};
use crate::requests::registry::Registry;
use crate::requests::suspicion::Suspicion;
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use thiserror::Error;
use worker_orcd_ipc::{Command, Drawn, FinishReason, Finished, RequestId, StepReport, TokenId};

/// A child answers a cancellation within a step. Thousands unanswered mean that it never will.
const MAX_LEAVING: usize = 10_000;

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

/// What no child of this protocol says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("{what} of request {request}, which is not with it")]
    UnknownRequest {
        what: &'static str,
        request: RequestId,
    },
    #[error("token {said} of request {request}, where {expected} comes next")]
    Index {
        request: RequestId,
        said: u32,
        expected: u32,
    },
    #[error("token id {token} of a vocabulary of {vocabulary}")]
    Vocabulary { token: TokenId, vocabulary: usize },
    #[error("more than the {max_tokens} tokens that request {request} asked for")]
    TooMany { request: RequestId, max_tokens: u32 },
    #[error("request {0} was called cancelled, and nobody had")]
    NotCancelled(RequestId),
    #[error("{0} cancellations without an answer")]
    Unanswered(usize),
    #[error("a step before the model was ready")]
    NotReady,
}

#[derive(Debug)]
pub struct Requests {
    registry: Arc<Registry>,
    /// By number, hence in the order of arrival.
    live: BTreeMap<RequestId, Live>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    /// Ended here while the child still had them: its last words on them are due.
    leaving: HashSet<RequestId>,
    /// Each of them runs alone, in this order, before anybody else is given to the child.
    suspects: BTreeSet<RequestId>,
    /// When children died lately of what a request may have done.
    deaths: Vec<Instant>,
    text: Option<Arc<Text>>,
    /// A child takes submissions.
    serving: bool,
    orders: VecDeque<Order>,
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

/// For the child.
#[derive(Debug)]
enum Order {
    Submit(Arc<Record>),
    Cancel(RequestId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// For a child, or for its turn.
    Waiting,
    WithChild,
    /// Cancelled at the child, not here: it goes on later. The child's answer is due, and what
    /// it says until then still counts.
    CalledBack,
}

impl Requests {
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            live: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            leaving: HashSet::new(),
            suspects: BTreeSet::new(),
            deaths: Vec::new(),
            text: None,
            serving: false,
            orders: VecDeque::new(),
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

    /// Those that the present child was given.
    #[must_use]
    pub fn with_child(&self) -> usize {
        self.live
            .values()
            .filter(|live| live.place.is_with_child())
            .count()
    }

    /// What the present child was given, in the order of arrival.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Record> {
        let live = self.live.values().filter(|live| live.place.is_with_child());
        live.map(|live| &*live.record)
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

    /// What the child is to be told next. A prompt is copied only here: a whole queue of them may
    /// wait until the child has read the ones before.
    pub fn next_command(&mut self) -> Option<Command> {
        Some(match self.orders.pop_front()? {
            Order::Submit(record) => Command::Submit(Box::new(record.submission())),
            Order::Cancel(request) => Command::Cancel { request },
        })
    }

    /// There is nobody to be told.
    pub fn drop_orders(&mut self) {
        self.orders.clear();
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
        let mut live = Live {
            record,
            place: Place::Waiting,
            given_at: 0,
            suspicion: Suspicion::default(),
        };
        if self.serving && self.suspects.is_empty() {
            live.hand_over(&mut self.orders);
        }
        self.live.insert(live.record.id, live);
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

    // === the child's life ===

    /// A child is ready: it gets everything that waits, in the order of arrival, or the first
    /// suspect.
    pub fn serve(&mut self, text: Arc<Text>) {
        self.text = Some(text);
        self.serving = true;
        self.hand_out();
    }

    /// The child takes nothing more. What it says until it is buried still counts.
    pub fn suspend(&mut self) {
        self.serving = false;
        self.orders.clear();
    }

    /// The child is overdue: those that it has are told that they wait.
    pub fn hesitate(&mut self) {
        let with_child = self.live.values().filter(|it| it.place.is_with_child());
        for live in with_child {
            let mut progress = live.record.progress.lock();
            progress.pause();
            self.wakers.extend(progress.take_waker());
        }
    }

    // === the child's words ===

    /// # Errors
    /// The first thing in the report that cannot be; what came before it is kept, what comes
    /// after it is not believed.
    pub fn step(&mut self, report: &StepReport, now: Instant) -> Result<(), Violation> {
        let text = self.text.clone().ok_or(Violation::NotReady)?;
        for request in &report.began {
            self.began(*request, now)?;
        }
        for drawn in &report.drawn {
            self.drawn(drawn, &text, now)?;
        }
        for finished in &report.finished {
            self.finished(finished, now)?;
        }
        Ok(())
    }

    fn began(&mut self, request: RequestId, now: Instant) -> Result<(), Violation> {
        let live = self.live.get(&request);
        match live.filter(|live| live.place.is_with_child()) {
            Some(live) => live.record.progress.lock().begin(now),
            None if self.leaving.contains(&request) => {}
            None => {
                let what = "the beginning";
                return Err(Violation::UnknownRequest { what, request });
            }
        }
        Ok(())
    }

    fn drawn(&mut self, said: &Drawn, text: &Text, now: Instant) -> Result<(), Violation> {
        let request = said.request;
        let Some(live) = self
            .live
            .get(&request)
            .filter(|live| live.place.is_with_child())
        else {
            if self.leaving.contains(&request) {
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
            if self.leaving.len() > MAX_LEAVING {
                return Err(Violation::Unanswered(self.leaving.len()));
            }
        } else if self.suspects.contains(&request) {
            self.acquit_if_past(request);
        }
        Ok(())
    }

    fn finished(&mut self, said: &Finished, now: Instant) -> Result<(), Violation> {
        let id = said.request;
        if self.leaving.remove(&id) {
            self.hand_out_to_suspects();
            return Ok(());
        }
        let place = self.live.get(&id).map(|live| live.place);
        if !place.is_some_and(Place::is_with_child) {
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
            FinishReason::Cancelled if place == Some(Place::CalledBack) => self.came_back(id),
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
        let place = self.live.get(&id).map(|live| live.place);
        if place.is_some_and(Place::is_with_child) {
            self.leaving.insert(id);
            // One that was called back is cancelled there already.
            if self.serving && place == Some(Place::WithChild) {
                self.orders.push_back(Order::Cancel(id));
            }
        }
        self.end(id, now, how);
    }

    fn end(&mut self, id: RequestId, now: Instant, how: impl FnOnce(&mut Progress, &Record)) {
        let Some(Live { record, .. }) = self.live.remove(&id) else {
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
        drop(progress);
        let was_suspect = self.suspects.remove(&id);
        // The last suspect gives way to everybody, any other end may leave the child to the next.
        if was_suspect || !self.suspects.is_empty() {
            self.hand_out();
        }
    }

    /// Somebody may wait until the child has nothing else.
    fn hand_out_to_suspects(&mut self) {
        if !self.suspects.is_empty() {
            self.hand_out();
        }
    }
}

impl Live {
    fn hand_over(&mut self, orders: &mut VecDeque<Order>) {
        self.place = Place::WithChild;
        self.given_at = self.history();
        orders.push_back(Order::Submit(Arc::clone(&self.record)));
    }

    /// Tokens of its prompt and its answer.
    fn history(&self) -> u32 {
        let tokens = self.record.progress.lock().tokens_out();
        self.record.tokens_in().saturating_add(tokens)
    }

    fn has_tokens(&self) -> bool {
        self.record.progress.lock().tokens_out() > 0
    }
}

impl Place {
    fn is_with_child(self) -> bool {
        matches!(self, Self::WithChild | Self::CalledBack)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
