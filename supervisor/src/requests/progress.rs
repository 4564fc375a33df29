//! Progress of one request: tokens, the text a reader has not taken yet, and its one end.
//!
//! Every method here runs under the record's lock and does no more than its token's worth of
//! work; wakers are handed out to be woken after the lock is gone.

use crate::requests::record::{Completion, Failure, Piece, Record, StopReason, StreamEvent};
use crate::text::{Detokenizer, StopMatcher, Text};
use std::task::Waker;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{Drawn, TokenId};

#[derive(Debug)]
pub(crate) struct Progress {
    generated: Vec<TokenId>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    unread: Unread,
    end: Option<StreamEvent>,
    /// The reader has the end, or is gone: nobody needs to be told any more.
    closed: bool,
    waker: Option<Waker>,
    accepted_at: Instant,
    began_at: Option<Instant>,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
    recoveries: u32,
    recovering: bool,
}

/// Text in one block, cut where tokens ended. Emptied by every read, so its memory is reused.
#[derive(Debug, Default)]
struct Unread {
    text: String,
    cuts: Vec<Cut>,
}

/// The end of a piece.
#[derive(Debug)]
struct Cut {
    /// The place in the unread text.
    at: usize,
    /// Index of the token that completed the piece.
    index: u32,
}

/// The effect of a token on its request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    GoesOn,
    /// A stop string became complete: its index in the request's list.
    Stopped(usize),
}

impl Progress {
    pub(crate) fn new(now: Instant, stop: &[String]) -> Self {
        Self {
            generated: Vec::new(),
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(stop),
            unread: Unread::default(),
            end: None,
            closed: false,
            waker: None,
            accepted_at: now,
            began_at: None,
            first_token_at: None,
            last_token_at: None,
            recoveries: 0,
            recovering: false,
        }
    }

    pub(crate) fn generated(&self) -> &[TokenId] {
        &self.generated
    }

    pub(crate) fn tokens_out(&self) -> u32 {
        u32::try_from(self.generated.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn recovering(&self) -> bool {
        self.recovering
    }

    pub(crate) fn recoveries(&self) -> u32 {
        self.recoveries
    }

    pub(crate) fn accepted_at(&self) -> Instant {
        self.accepted_at
    }

    pub(crate) fn last_token_at(&self) -> Option<Instant> {
        self.last_token_at
    }

    /// `None` before the first one.
    pub(crate) fn since_last_token(&self, now: Instant) -> Option<Duration> {
        self.last_token_at
            .map(|at| now.saturating_duration_since(at))
    }

    /// Notes that it is in a child's next step. The first time counts.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began_at.get_or_insert(now);
    }

    /// Accepts what was drawn next; `scratch` is reused between calls.
    pub(crate) fn push(
        &mut self,
        drawn: &Drawn,
        text: &Text,
        now: Instant,
        scratch: &mut String,
    ) -> Pushed {
        self.generated.push(drawn.token);
        self.first_token_at.get_or_insert(now);
        self.last_token_at = Some(now);
        self.recovering = false;
        scratch.clear();
        self.detokenizer.push(text.bytes(drawn.token), scratch);
        match self.append(scratch, drawn.index) {
            Some(stop) => Pushed::Stopped(stop),
            None => Pushed::GoesOn,
        }
    }

    /// Ends with what the child says is its end. What was held back is text after all, unless
    /// the very last of it completes a stop string.
    pub(crate) fn finish(&mut self, record: &Record, reason: StopReason, now: Instant) {
        let index = self.tokens_out().saturating_sub(1);
        let mut rest = String::new();
        self.detokenizer.finish(&mut rest);
        match self.append(&rest, index) {
            Some(stop) => self.finish_stopped(record, stop, now),
            None => {
                let before = self.unread.text.len();
                self.stop.finish(&mut self.unread.text);
                self.unread.cut(before, index);
                self.end(StreamEvent::Finished(
                    self.completion(record, reason, None, now),
                ));
            }
        }
    }

    /// Ends because stop string number `stop` was matched.
    pub(crate) fn finish_stopped(&mut self, record: &Record, stop: usize, now: Instant) {
        let matched = record.stop.get(stop).cloned();
        let completion = self.completion(record, StopReason::StopSequence, matched, now);
        self.end(StreamEvent::Finished(completion));
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.end(StreamEvent::Failed(failure));
    }

    /// The child that worked on it is gone, and another one will go on.
    pub(crate) fn interrupt(&mut self) {
        self.recovering = true;
        self.recoveries += 1;
    }

    /// The request waits for its turn with a child that lives. Its client is told `recovering`, as
    /// of any pause; it does not count as a recovery.
    pub(crate) fn pause(&mut self) {
        self.recovering = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some() || self.closed
    }

    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    // === the reader's side ===

    /// Moves everything new into `out`. `None`: there is nothing yet, and `waker` will be woken.
    /// `Some(false)`: the end was read before.
    pub(crate) fn read(&mut self, out: &mut Vec<StreamEvent>, waker: &Waker) -> Option<bool> {
        if self.closed {
            return Some(false);
        }
        let before = out.len();
        self.unread.take(out);
        if let Some(end) = self.end.take() {
            out.push(end);
            self.closed = true;
        }
        if out.len() > before {
            return Some(true);
        }
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        None
    }

    /// The reader is gone. True when that was before the end.
    pub(crate) fn close(&mut self) -> bool {
        let early = !self.has_ended();
        self.closed = true;
        self.unread = Unread::default();
        self.waker = None;
        early
    }

    fn append(&mut self, text: &str, index: u32) -> Option<usize> {
        let before = self.unread.text.len();
        let stopped = self.stop.push(text, &mut self.unread.text);
        self.unread.cut(before, index);
        stopped
    }

    /// A request ends exactly once; the first end stands.
    fn end(&mut self, end: StreamEvent) {
        if !self.has_ended() {
            self.end = Some(end);
            self.recovering = false;
        }
    }

    fn completion(
        &self,
        record: &Record,
        stop_reason: StopReason,
        stop_sequence: Option<String>,
        now: Instant,
    ) -> Completion {
        let first_token_at = self.first_token_at.unwrap_or(now);
        Completion {
            stop_reason,
            stop_sequence,
            tokens_in: record.tokens_in(),
            tokens_out: self.tokens_out(),
            queued_for: self
                .began_at
                .map(|at| at.saturating_duration_since(self.accepted_at)),
            first_token_after: first_token_at.saturating_duration_since(self.accepted_at),
            decode_time: now.saturating_duration_since(first_token_at),
            recoveries: self.recoveries,
        }
    }
}

impl Unread {
    /// Makes one piece of what was appended since `before`, if it is anything.
    fn cut(&mut self, before: usize, index: u32) {
        if self.text.len() > before {
            let at = self.text.len();
            self.cuts.push(Cut { at, index });
        }
    }

    fn take(&mut self, out: &mut Vec<StreamEvent>) {
        let mut start = 0;
        out.reserve(self.cuts.len() + 1);
        for Cut { at, index } in self.cuts.drain(..) {
            out.push(StreamEvent::Text(Piece {
                text: self.text[start..at].to_owned(),
                index,
            }));
            start = at;
        }
        self.text.clear();
    }
}
