//! Progress of one request: tokens, unread text, and the single end.
//!
//! Every method here runs under the record's lock and does work for one token only. Wakers are returned, and the caller
//! wakes them after it has released the lock.

mod echo;
mod unread;

use crate::drafts::Drafts;
use crate::logprobs::Ledger;
use crate::record::{Completion, Embedding, Failure, NewRequest, Record, StopReason, StreamEvent};
pub use echo::ScoredPrompt;
use echo::{Echo, Scores};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
pub use unread::Skip;
use unread::Unread;
use worker_orcd_ipc::{Drawn, GenerationParams, Logprobs, TokenId};
use worker_orcd_text::{Detokenizer, StopMatcher, Text};

#[derive(Debug)]
pub struct Progress {
    generated: Vec<TokenId>,
    params: Arc<GenerationParams>,
    /// Special tokens that appear as text.
    shown: Vec<TokenId>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    unread: Unread,
    /// `Some` if log probabilities are requested.
    ledger: Option<Ledger>,
    /// `Some` if the answer echoes the prompt.
    echo: Option<Echo>,
    /// `Some` if log probabilities of the prompt are requested.
    scores: Option<Scores>,
    end: Option<StreamEvent>,
    /// The reader has the end, or is gone. No further event is delivered.
    closed: bool,
    waker: Option<Waker>,
    accepted_at: Instant,
    began_at: Option<Instant>,
    /// Cached prompt tokens, as reported by the first child that began the request.
    cached_tokens: Option<u32>,
    drafts: Drafts,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
    recoveries: u32,
    recovering: bool,
    /// The child has died since the last token.
    interrupted: bool,
    /// `generated` comes from an earlier supervisor and is not decoded yet.
    is_unsent: bool,
    /// Number of pieces that were taken or skipped.
    taken: u32,
    skip: Skip,
    /// Pieces that the client already has are delivered as well.
    gives_known: bool,
}

/// Effect of a token on its request.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed {
    GoesOn,
    /// The token completed a stop string: its index in the request's list.
    Stopped(usize),
}

impl Progress {
    /// Creates the progress of a new request. `logprobs`: known log probabilities of the answer, `None` if they are not
    /// requested.
    pub fn new(now: Instant, request: &NewRequest, logprobs: Option<Vec<Logprobs>>) -> Self {
        Self {
            generated: Vec::new(),
            params: Arc::clone(&request.params),
            shown: request.shown.clone(),
            detokenizer: Detokenizer::default(),
            stop: StopMatcher::new(&request.stop),
            unread: Unread::default(),
            ledger: logprobs.map(|known| Ledger::new(request.params.logprobs, known)),
            echo: None,
            scores: None,
            end: None,
            closed: false,
            waker: None,
            accepted_at: now,
            began_at: None,
            cached_tokens: None,
            drafts: Drafts::default(),
            first_token_at: None,
            last_token_at: None,
            recoveries: 0,
            recovering: false,
            interrupted: false,
            is_unsent: false,
            taken: 0,
            skip: Skip::Nothing,
            gives_known: false,
        }
    }

    /// Progress of a restored request. [`retell`](Self::retell) decodes it once a vocabulary is known.
    pub fn restored(
        self,
        generated: Vec<TokenId>,
        first_token_at: Option<Instant>,
        recoveries: u32,
        end: Option<StreamEvent>,
    ) -> Self {
        Self {
            generated,
            first_token_at,
            recoveries,
            recovering: end.is_none(),
            end,
            is_unsent: true,
            ..self
        }
    }

    pub fn with_cached_tokens(self, cached_tokens: Option<u32>) -> Self {
        Self {
            cached_tokens,
            ..self
        }
    }

    pub fn with_drafts(self, drafts: Drafts) -> Self {
        Self { drafts, ..self }
    }

    /// Decodes the tokens of an earlier supervisor.
    pub fn retell(&mut self, text: &Arc<Text>, scratch: &mut String) {
        if !std::mem::take(&mut self.is_unsent) {
            return;
        }
        for (index, token) in (0..).zip(std::mem::take(&mut self.generated)) {
            self.generated.push(token);
            self.decode(token, text, scratch);
            self.append(scratch, index);
        }
        if let Some(StreamEvent::Finished(Completion {
            stop_sequence: None,
            ..
        })) = self.end
        {
            self.flush_rest();
        }
    }

    #[cfg(test)]
    pub fn note_for_test(&mut self, token: TokenId) {
        self.generated.push(token);
    }

    pub fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    /// Ends a restored request that this model cannot decode.
    pub fn disown(&mut self, failure: &Failure) {
        self.is_unsent = false;
        self.end = Some(StreamEvent::Failed(failure.clone()));
    }

    /// Pieces that the client already has.
    pub fn delivered(&self) -> Skip {
        self.skip
    }

    /// Delivers also the pieces that the client already has, for a reader that needs the whole answer.
    pub fn give_known(&mut self) {
        self.gives_known = true;
    }

    /// Sets the pieces that the client already has. They are not delivered again.
    pub fn skip(&mut self, skip: Skip) {
        self.skip = skip;
    }

    pub fn logprobs(&self) -> &[Logprobs] {
        self.ledger.as_ref().map_or(&[], |ledger| ledger.all())
    }

    pub fn generated(&self) -> &[TokenId] {
        &self.generated
    }

    pub fn tokens_out(&self) -> u32 {
        u32::try_from(self.generated.len()).unwrap_or(u32::MAX)
    }

    pub fn recovering(&self) -> bool {
        self.recovering
    }

    /// True if the next token comes from another child than the last one.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    pub fn recoveries(&self) -> u32 {
        self.recoveries
    }

    pub fn accepted_at(&self) -> Instant {
        self.accepted_at
    }

    pub fn first_token_at(&self) -> Option<Instant> {
        self.first_token_at
    }

    pub fn last_token_at(&self) -> Option<Instant> {
        self.last_token_at
    }

    /// Time since the last token. `None` before the first one.
    pub fn since_last_token(&self, now: Instant) -> Option<Duration> {
        self.last_token_at
            .map(|at| now.saturating_duration_since(at))
    }

    /// Notes the first step of the request on a child, with the number of prompt tokens in the prefix cache. Returns
    /// true for the first child; later reports change nothing.
    pub fn begin(&mut self, cached_tokens: u32, now: Instant) -> bool {
        self.began_at.get_or_insert(now);
        let is_first = self.cached_tokens.is_none();
        self.cached_tokens.get_or_insert(cached_tokens);
        is_first
    }

    /// Number of prompt tokens from the prefix cache. `None` before a child began the request.
    pub fn cached_tokens(&self) -> Option<u32> {
        self.cached_tokens
    }

    /// Notes drafts of this answer.
    pub fn note_drafts(&mut self, drafts: Drafts) {
        self.drafts = self.drafts.plus(drafts);
    }

    pub fn drafts(&self) -> Drafts {
        self.drafts
    }

    /// Time from acceptance to the first step. `None` before it, and if no child reported it.
    pub fn queued_for(&self) -> Option<Duration> {
        self.began_at
            .map(|at| at.saturating_duration_since(self.accepted_at))
    }

    /// Appends a drawn token. `scratch` is a buffer that is reused between calls.
    pub fn push(
        &mut self,
        drawn: &Drawn,
        logprobs: Option<&Logprobs>,
        text: &Arc<Text>,
        now: Instant,
        scratch: &mut String,
    ) -> Pushed {
        self.generated.push(drawn.token);
        self.first_token_at.get_or_insert(now);
        self.last_token_at = Some(now);
        self.recovering = false;
        self.interrupted = false;
        if let (Some(ledger), Some(logprobs)) = (&mut self.ledger, logprobs) {
            ledger.learn(logprobs.clone());
        }
        self.decode(drawn.token, text, scratch);
        match self.append(scratch, drawn.index) {
            Some(stop) => Pushed::Stopped(stop),
            None => Pushed::GoesOn,
        }
    }

    /// Ends with the child's reason. Text that was held back is released, unless its end completes a stop string.
    pub fn finish(&mut self, record: &Record, reason: StopReason, now: Instant) {
        match self.flush_rest() {
            Some(stop) => self.finish_stopped(record, stop, now),
            None => self.end(StreamEvent::Finished(
                self.completion(record, reason, None, now),
            )),
        }
    }

    /// Releases text that was held back, because no token follows. Returns the index of a stop string that it
    /// completes.
    fn flush_rest(&mut self) -> Option<usize> {
        let index = self.tokens_out().saturating_sub(1);
        let mut rest = String::new();
        self.detokenizer.finish(&mut rest);
        let stopped = self.append(&rest, index);
        if stopped.is_none() {
            let before = self.unread.text.len();
            self.stop.finish(&mut self.unread.text);
            let piece = &self.unread.text[before..];
            let ledger = self.ledger.as_mut();
            let listed = ledger.map_or(0, |ledger| ledger.assign_last(piece));
            self.unread.cut(before, index, listed);
        }
        stopped
    }

    /// Ends with the stop string of index `stop`.
    pub fn finish_stopped(&mut self, record: &Record, stop: usize, now: Instant) {
        let matched = record.stop.get(stop).cloned();
        let completion = self.completion(record, StopReason::StopSequence, matched, now);
        self.end(StreamEvent::Finished(completion));
    }

    pub fn embed(&mut self, embedding: Embedding) {
        self.end(StreamEvent::Embedded(embedding));
    }

    pub fn fail(&mut self, failure: Failure) {
        self.end(StreamEvent::Failed(failure));
    }

    /// Notes the death of the child. Another child continues the request.
    pub fn interrupt(&mut self) {
        self.recovering = true;
        self.interrupted = true;
        self.recoveries += 1;
    }

    /// Notes that the request waits while its child lives. The client gets `recovering` as in any pause; it does not
    /// count as a recovery.
    pub fn pause(&mut self) {
        self.recovering = true;
    }

    /// The end, until the reader has taken it.
    pub fn end_to_read(&self) -> Option<&StreamEvent> {
        self.end.as_ref()
    }

    pub fn has_ended(&self) -> bool {
        self.end.is_some() || self.closed
    }

    pub fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    // === the reader's side ===

    /// Pushes new events, at most `PIECES_AT_ONCE` pieces. `None`: there are none, and `waker` is registered.
    /// `Some(false)`: the end was read before.
    pub fn read(&mut self, mut push: impl FnMut(StreamEvent), waker: &Waker) -> Option<bool> {
        if self.closed {
            return Some(false);
        }
        let skip = match self.gives_known {
            true => Skip::Nothing,
            false => self.skip,
        };
        let ledger = self.ledger.as_mut();
        let pieces = self.unread.take(&mut push, &mut self.taken, skip, ledger);
        let may_end = !self.is_unsent && self.unread.is_empty();
        if let Some(end) = self.end.take_if(|_| may_end) {
            push(end);
            self.closed = true;
        }
        if pieces > 0 || self.closed {
            return Some(true);
        }
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        None
    }

    /// Closes the reader's side. Returns true if the request had not ended.
    pub fn close(&mut self) -> bool {
        let early = !self.has_ended();
        self.closed = true;
        self.unread = Unread::default();
        self.waker = None;
        early
    }

    /// Decodes the newest token into `scratch`. A stop token has no text, as in vLLM.
    fn decode(&mut self, token: TokenId, text: &Arc<Text>, scratch: &mut String) {
        scratch.clear();
        let bytes = match self.params.stops_at(token) {
            true => &[],
            false => text.bytes_shown(token, &self.shown),
        };
        if let Some(ledger) = &mut self.ledger {
            let index = ledger.prompt_len() + self.generated.len() - 1;
            let is_listed = !bytes.is_empty() || ledger.lists_all();
            let begins = is_listed.then(|| self.detokenizer.characters_before(bytes));
            self.detokenizer.push(bytes, scratch);
            ledger.note((index, token), text, begins, scratch);
        } else {
            self.detokenizer.push(bytes, scratch);
        }
    }

    fn append(&mut self, text: &str, index: u32) -> Option<usize> {
        let before = self.unread.text.len();
        let out = &mut self.unread.text;
        let stopped = match index < self.params.min_tokens {
            true => {
                self.stop.pass(text, out);
                None
            }
            false => self.stop.push(text, out),
        };
        self.cut(before, index);
        stopped
    }

    fn cut(&mut self, before: usize, index: u32) {
        let piece = &self.unread.text[before..];
        let ledger = self.ledger.as_mut();
        let listed = ledger.map_or(0, |ledger| ledger.assign(piece));
        self.unread.cut(before, index, listed);
    }

    /// Ends the request. Only the first end counts.
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
            cached_tokens: self.cached_tokens.unwrap_or_default(),
            tokens_out: self.tokens_out(),
            drafts: self.drafts,
            queued_for: self.queued_for(),
            first_token_after: first_token_at.saturating_duration_since(self.accepted_at),
            decode_time: now.saturating_duration_since(first_token_at),
            recoveries: self.recoveries,
        }
    }
}
