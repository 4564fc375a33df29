//! The driver's side of the journal: what is with the child, what waits, and what ends how.
//!
//! Owned by the driver alone, without I/O: commands for the child collect in a list that the
//! driver sends, and time is an argument.

use crate::error_code::ErrorCode;
use crate::requests::progress::{Progress, Pushed};
use crate::requests::record::{Failure, OnFault, Record, StopReason};
use crate::requests::registry::Registry;
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use thiserror::Error;
use worker_orcd_ipc::{
    Command, EmittedToken, Fault, FinishReason, Finished, RequestId, StepReport, TokenId,
};
use worker_orcd_lifecycle::DeathCause;

/// A request that was in flight at more deaths than this is suspected of causing them. It is
/// less than the restart intensity's five, so that one request never ends a worker.
const MAX_RECOVERIES: u32 = 3;

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
    text: Option<Arc<Text>>,
    /// A child takes submissions.
    serving: bool,
    commands: Vec<Command>,
    wakers: Vec<Waker>,
    scratch: String,
    tokens_total: u64,
    recoveries_total: u64,
}

#[derive(Debug)]
struct Live {
    record: Arc<Record>,
    with_child: bool,
}

impl Requests {
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            live: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            leaving: HashSet::new(),
            text: None,
            serving: false,
            commands: Vec::new(),
            wakers: Vec::new(),
            scratch: String::new(),
            tokens_total: 0,
            recoveries_total: 0,
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
        self.live.values().filter(|live| live.with_child).count()
    }

    /// Tokens accepted since the start.
    #[must_use]
    pub fn tokens_total(&self) -> u64 {
        self.tokens_total
    }

    /// How often any request went on with another child.
    #[must_use]
    pub fn recoveries_total(&self) -> u64 {
        self.recoveries_total
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// What the child is to be told, oldest first.
    pub fn take_commands(&mut self) -> std::vec::Drain<'_, Command> {
        self.commands.drain(..)
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
            with_child: false,
        };
        if self.serving {
            live.hand_over(&mut self.commands);
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

    /// A child is ready: it gets everything that waits, in the order of arrival.
    pub fn serve(&mut self, text: Arc<Text>) {
        self.text = Some(text);
        self.serving = true;
        for live in self.live.values_mut().filter(|live| !live.with_child) {
            live.hand_over(&mut self.commands);
        }
    }

    /// The child takes nothing more. What it says until it is buried still counts.
    pub fn suspend(&mut self) {
        self.serving = false;
        self.commands.clear();
    }

    /// The child is gone. What it had goes on with the next one, or ends.
    pub fn bury(&mut self, cause: &DeathCause, now: Instant) {
        self.suspend();
        self.leaving.clear();
        let bereft: Vec<_> = self
            .live
            .values()
            .filter(|live| live.with_child)
            .map(|live| live.record.id)
            .collect();
        for id in bereft {
            self.outlive(id, cause, now);
        }
    }

    fn outlive(&mut self, id: RequestId, cause: &DeathCause, now: Instant) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        live.with_child = false;
        let mut progress = live.record.progress.lock();
        progress.interrupt();
        self.wakers.extend(progress.take_waker());
        let recoveries = progress.recoveries();
        drop(progress);
        if live.record.on_fault == OnFault::Fail {
            let failure = Failure::new(
                error_code(cause),
                format!("the worker lost its child: {cause}"),
            );
            self.end_here(id, now, |progress, _| progress.fail(failure));
        } else if recoveries > MAX_RECOVERIES {
            let message = format!("{recoveries} children died with this job in flight");
            let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
            self.end_here(id, now, |progress, _| progress.fail(failure));
        } else {
            self.recoveries_total += 1;
        }
    }

    // === the child's words ===

    /// # Errors
    /// The first thing in the report that cannot be; what came before it is kept, what comes
    /// after it is not believed.
    pub fn step(&mut self, report: &StepReport, now: Instant) -> Result<(), Violation> {
        let text = self.text.clone().ok_or(Violation::NotReady)?;
        for token in &report.tokens {
            self.token(token, &text, now)?;
        }
        for finished in &report.finished {
            self.finished(finished, now)?;
        }
        Ok(())
    }

    fn token(&mut self, said: &EmittedToken, text: &Text, now: Instant) -> Result<(), Violation> {
        let request = said.request;
        let Some(live) = self.live.get(&request).filter(|live| live.with_child) else {
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
        let pushed = progress.push(said.token, text, now, &mut self.scratch);
        self.wakers.extend(progress.take_waker());
        drop(progress);
        if let Pushed::Stopped(stop) = pushed {
            self.end_here(request, now, |progress, record| {
                progress.finish_stopped(record, stop, now);
            });
            if self.leaving.len() > MAX_LEAVING {
                return Err(Violation::Unanswered(self.leaving.len()));
            }
        }
        Ok(())
    }

    fn finished(&mut self, said: &Finished, now: Instant) -> Result<(), Violation> {
        let id = said.request;
        if self.leaving.remove(&id) {
            return Ok(());
        }
        if !self.live.get(&id).is_some_and(|live| live.with_child) {
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
        if self.live.get(&id).is_some_and(|live| live.with_child) {
            self.leaving.insert(id);
            if self.serving {
                self.commands.push(Command::Cancel { request: id });
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
    }
}

impl Live {
    fn hand_over(&mut self, commands: &mut Vec<Command>) {
        self.with_child = true;
        commands.push(Command::Submit(Box::new(self.record.submission())));
    }
}

/// What a client is told of a death that ended its job.
fn error_code(cause: &DeathCause) -> ErrorCode {
    match cause {
        DeathCause::Said(Fault::Device { name, .. }) if name.starts_with("CUDA") => {
            ErrorCode::CudaError
        }
        _ => ErrorCode::WorkerUnhealthy,
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
