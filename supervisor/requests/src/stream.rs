//! Reader of a request.

use crate::progress::{ScoredPrompt, Skip};
use crate::record::{Record, StreamEvent};
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use worker_orcd_ipc::{RequestId, TokenId};

/// Callback that cancels a request without a reader.
#[derive(Clone)]
pub struct Abandon(Arc<dyn Fn(RequestId) + Send + Sync>);

impl Abandon {
    pub fn new(abandon: impl Fn(RequestId) + Send + Sync + 'static) -> Self {
        Self(Arc::new(abandon))
    }
}

impl fmt::Debug for Abandon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Abandon")
    }
}

/// Reader of one request. Its drop before the end cancels the request, because the client is gone.
#[derive(Debug)]
pub struct RequestStream {
    record: Arc<Record>,
    abandon: Abandon,
}

impl RequestStream {
    #[must_use]
    pub fn new(record: Arc<Record>, abandon: Abandon) -> Self {
        Self { record, abandon }
    }

    /// Waits for events and appends all of them to `out`. Returns `false` once an earlier call delivered the end.
    /// Cancel-safe.
    pub async fn next(&mut self, out: &mut Vec<StreamEvent>) -> bool {
        std::future::poll_fn(|cx| self.poll_next(cx, |event| out.push(event))).await
    }

    /// Pushes all new events. Ready with `false` once an earlier call pushed the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>, push: impl FnMut(StreamEvent)) -> Poll<bool> {
        match self.record.progress.lock().read(push, cx.waker()) {
            Some(more) => Poll::Ready(more),
            None => Poll::Pending,
        }
    }

    /// True after the child died or became overdue, until a child has drawn the next token.
    #[must_use]
    pub fn recovering(&self) -> bool {
        self.record.progress.lock().recovering()
    }

    /// Notes that the first `pieces` pieces were delivered to the client, or are irrevocably sent.
    pub fn mark_delivered(&self, pieces: u32) {
        self.record.progress.lock().skip(Skip::Pieces(pieces));
    }

    /// Pieces that the client already has.
    #[must_use]
    pub fn delivered(&self) -> Skip {
        self.record.progress.lock().delivered()
    }

    /// Delivers also the pieces that the client already has, for a reader that must know them to continue.
    pub fn give_known(&self) {
        self.record.progress.lock().give_known();
    }

    /// Handle on the delivered pieces, for a task that does not own the stream.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(vec![Arc::clone(&self.record)])
    }

    /// Id of the answer in the API.
    #[must_use]
    pub fn answer(&self) -> &str {
        self.record.answer()
    }

    /// True if log probabilities are requested.
    #[must_use]
    pub fn has_logprobs(&self) -> bool {
        self.record.params.logprobs.is_some()
    }

    /// Id of the request. It equals the answer's id unless the answer has several parts.
    #[must_use]
    pub fn job_id(&self) -> &str {
        &self.record.job_id
    }

    #[must_use]
    pub fn max_tokens(&self) -> u32 {
        self.record.params.max_tokens
    }

    #[must_use]
    pub fn tokens_in(&self) -> u32 {
        self.record.tokens_in()
    }

    /// Tokens of prompt and answer, for an answer that lists them.
    #[must_use]
    pub fn tokens(&self) -> Tokens {
        Tokens {
            record: Arc::clone(&self.record),
            taken: 0,
        }
    }

    /// Number of tokens accepted so far.
    #[must_use]
    pub fn tokens_out(&self) -> u32 {
        self.record.progress.lock().tokens_out()
    }
}

/// Tokens of a request; the generated ones are taken piece by piece. They may be read after the end of the stream.
#[derive(Debug)]
pub struct Tokens {
    record: Arc<Record>,
    /// Number of generated tokens that were taken.
    taken: usize,
}

/// Token ids of a prompt, which are not copied. They are serialized as a list of numbers.
#[derive(Debug, Clone)]
pub struct PromptIds(Arc<Record>);

impl Tokens {
    #[must_use]
    pub fn of_prompt(&self) -> PromptIds {
        PromptIds(Arc::clone(&self.record))
    }

    /// All log probabilities of the prompt. `None` until they are known, and if they are not requested.
    #[must_use]
    pub fn scored_prompt(&self) -> Option<ScoredPrompt> {
        self.record.progress.lock().scored_prompt()
    }

    /// Takes the generated tokens up to the one with this index.
    pub fn take_through(&mut self, index: u32) -> Vec<TokenId> {
        self.take(index as usize + 1)
    }

    /// Takes all other generated tokens.
    pub fn take_rest(&mut self) -> Vec<TokenId> {
        self.take(usize::MAX)
    }

    fn take(&mut self, end: usize) -> Vec<TokenId> {
        let progress = self.record.progress.lock();
        let generated = progress.generated();
        let end = end.min(generated.len()).max(self.taken);
        let taken = generated[self.taken..end].to_vec();
        self.taken = end;
        taken
    }
}

impl PromptIds {
    #[must_use]
    pub fn as_slice(&self) -> &[TokenId] {
        &self.0.prompt
    }
}

impl Serialize for PromptIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.prompt.serialize(serializer)
    }
}

/// Delivered pieces of an answer, by part.
#[derive(Debug, Clone)]
pub struct Position(Vec<Arc<Record>>);

impl Position {
    #[must_use]
    pub fn of(parts: &[RequestStream]) -> Self {
        Self(parts.iter().map(|it| Arc::clone(&it.record)).collect())
    }

    /// Pieces of each part that the client already has.
    #[must_use]
    pub fn delivered(&self) -> Vec<Skip> {
        let sent = |record: &Arc<Record>| record.progress.lock().delivered();
        self.0.iter().map(sent).collect()
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if self.record.progress.lock().close() {
            (self.abandon.0)(self.record.id);
        }
    }
}
