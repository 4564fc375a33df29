//! The reader's end of a request.

use crate::progress::Skip;
use crate::record::{Record, StreamEvent};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use worker_orcd_ipc::RequestId;

/// Cancels the work of a request whose reader is gone.
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

/// Dropping it before the end means that the client is gone: its work is cancelled.
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

    /// Waits until there is something, then appends all of it to `out`. `false` once the end was
    /// delivered by an earlier call. Cancel-safe.
    pub async fn next(&mut self, out: &mut Vec<StreamEvent>) -> bool {
        std::future::poll_fn(|cx| self.poll_next(cx, out)).await
    }

    /// [`RequestStream::next`] for bodies that are polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>, out: &mut Vec<StreamEvent>) -> Poll<bool> {
        match self.record.progress.lock().read(out, cx.waker()) {
            Some(more) => Poll::Ready(more),
            None => Poll::Pending,
        }
    }

    /// True after its child died or is overdue, until a child has produced a token for it.
    #[must_use]
    pub fn recovering(&self) -> bool {
        self.record.progress.lock().recovering()
    }

    /// So many pieces are with the client, or on an irrevocable way to it.
    pub fn has_told(&self, pieces: u32) {
        self.record.progress.lock().skip(Skip::Pieces(pieces));
    }

    /// What the client has.
    #[must_use]
    pub fn told(&self) -> Skip {
        self.record.progress.lock().told()
    }

    /// Gives what the client has, too, for a reader that must know it to go on.
    pub fn give_known(&self) {
        self.record.progress.lock().give_known();
    }

    /// For whoever wants to know what the client has when the stream is somebody else's.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(vec![Arc::clone(&self.record)])
    }

    /// The name by which the client knows the answer.
    #[must_use]
    pub fn answer(&self) -> &str {
        self.record.answer()
    }

    /// Its client wants log probabilities.
    #[must_use]
    pub fn has_logprobs(&self) -> bool {
        self.record.logprobs.is_some()
    }

    /// The name of the request, which is the answer's where it is all of it.
    #[must_use]
    pub fn job_id(&self) -> &str {
        &self.record.job_id
    }

    #[must_use]
    pub fn max_tokens(&self) -> u32 {
        self.record.max_tokens
    }

    #[must_use]
    pub fn tokens_in(&self) -> u32 {
        self.record.tokens_in()
    }

    /// Tokens accepted so far.
    #[must_use]
    pub fn tokens_out(&self) -> u32 {
        self.record.progress.lock().tokens_out()
    }
}

/// The place of a reader in its answer, whose parts are these.
#[derive(Debug, Clone)]
pub struct Position(Vec<Arc<Record>>);

impl Position {
    #[must_use]
    pub fn of(parts: &[RequestStream]) -> Self {
        Self(parts.iter().map(|it| Arc::clone(&it.record)).collect())
    }

    /// What the client has of each part.
    #[must_use]
    pub fn told(&self) -> Vec<Skip> {
        let told = |record: &Arc<Record>| record.progress.lock().told();
        self.0.iter().map(told).collect()
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if self.record.progress.lock().close() {
            (self.abandon.0)(self.record.id);
        }
    }
}
