//! Answers as server-sent events, or as lines of JSON (Ollama's API).
//!
//! The connection polls the body. The body takes all new events of the request's stream and writes them into one chunk:
//! under load, many tokens share one write. Silence is filled with comments, which every client skips: `: recovering`
//! as soon as the child is dead or overdue, and each second until another one continues; `: keep-alive` otherwise, for
//! proxies. Lines of JSON have a space instead.
//!
//! If an API's clients retry by the status line, the status line is delayed until the first event: a request that fails
//! before its first token then gets an error status.

#![expect(
    clippy::disallowed_methods,
    reason = "a stream that is silent says so after a while"
)]

use super::error::ApiError;
use super::job::Job;
use axum::body::{Body, HttpBody};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;
use worker_orcd_api::render::{COMMENT, EVENT_STREAM, RECOVERING, Render};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Failure, RequestStream, Skip, StreamEvent};

/// Time between two checks of a silent stream.
const TICK: Duration = Duration::from_secs(1);
/// Silence after which a comment is sent; shorter than the timeouts of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Source of a body's events.
pub trait Source: Send + Unpin + 'static {
    /// Media type of the body.
    const CONTENT_TYPE: &'static str = EVENT_STREAM;

    /// Takes new events. `false`: no more will follow.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<bool>;
    /// Writes the events before all others.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// Writes the taken events. Returns true after the end.
    fn write(&mut self, out: &mut Vec<u8>) -> bool;
    /// The failure, if it is the first event.
    fn first_failure(&mut self) -> Option<Failure>;
    /// Whether the client received a part of it from another supervisor.
    fn has_delivered(&self) -> bool;
    /// True while its child is dead or overdue.
    fn recovering(&self) -> bool;
    /// Writes a keep-alive after a long silence.
    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(COMMENT);
    }
    /// Writes a sign of life while its child is dead or overdue.
    fn tell_recovery(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(RECOVERING);
    }
}

/// The failure that ends a stream of text with this event.
pub(super) fn failure_of(end: StreamEvent) -> Failure {
    match end {
        StreamEvent::Failed(failure) => failure,
        // Only requests for embeddings get vectors.
        _ => Failure::new(ErrorCode::Internal, "a vector is no text"),
    }
}

/// Response with the stream as its body. The head is sent at once.
#[must_use]
pub fn respond<R: Render>(stream: RequestStream, job: Job, render: R) -> Response {
    let mut body = EventBody::new(One::new(stream, job, render));
    body.begins_at_once = true;
    respond_with(body)
}

/// Response with the rest of a stream that began in another supervisor.
#[must_use]
pub fn go_on<R: Render>(stream: RequestStream, job: Job, render: R) -> Response {
    go_on_with(One::new(stream, job, render))
}

/// [`go_on`] for a stream of several choices.
#[must_use]
pub fn go_on_with<S: Source>(source: S) -> Response {
    let mut body = EventBody::new(source);
    // A client without any part of the answer has received the head alone.
    body.begun = body.source.has_delivered();
    respond_with(body)
}

/// [`go_on`] that writes the first events at once, before there is any text.
#[must_use]
pub fn go_on_begun<R: Render>(stream: RequestStream, job: Job, render: R) -> Response {
    let mut body = EventBody::new(One::new(stream, job, render));
    body.begun = true;
    respond_with(body)
}

/// Response that starts with the first events, once they are known. Liveness probes are sent during a long wait.
///
/// # Errors
/// If the first event is a failure.
pub async fn respond_when_known<R: Render>(
    stream: RequestStream,
    job: Job,
    render: R,
) -> Result<Response, ApiError> {
    respond_when_known_with(One::new(stream, job, render)).await
}

/// [`respond_when_known`] for a stream of several choices.
///
/// # Errors
/// If the first event is a failure.
pub async fn respond_when_known_with<S: Source>(mut source: S) -> Result<Response, ApiError> {
    // Cancel-safe: the body reads later events.
    let known = poll_fn(|cx| source.poll_new(cx));
    let _ = tokio::time::timeout(KEEP_ALIVE, known).await;
    match source.first_failure() {
        Some(failure) => Err(ApiError::of_failure(&failure)),
        None => Ok(respond_with(EventBody::new(source))),
    }
}

fn respond_with<S: Source>(body: EventBody<S>) -> Response {
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(S::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables nginx's buffering of the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One stream with one renderer.
struct One<R> {
    stream: RequestStream,
    job: Job,
    render: R,
    /// Taken events that are not written yet. Reused.
    events: Vec<StreamEvent>,
    /// Position that the client has reached.
    known: Skip,
}

impl<R: Render> One<R> {
    fn new(stream: RequestStream, job: Job, render: R) -> Self {
        Self {
            known: stream.delivered(),
            stream,
            job,
            render,
            events: Vec::new(),
        }
    }
}

impl<R: Render> Source for One<R> {
    const CONTENT_TYPE: &'static str = R::CONTENT_TYPE;

    fn poll_new(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        match self.events.is_empty() {
            true => self.stream.poll_next(cx, &mut self.events),
            false => Poll::Ready(true),
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.render.begin(out);
    }

    fn write(&mut self, out: &mut Vec<u8>) -> bool {
        let (mut has_text, mut ended) = (false, false);
        for event in self.events.drain(..) {
            if has_text && !matches!(event, StreamEvent::Text(_)) {
                self.render.progress(self.stream.tokens_out(), out);
                has_text = false;
            }
            match event {
                StreamEvent::Text(piece) if self.known.covers(piece.number, piece.index) => {
                    self.render.known(&piece);
                }
                StreamEvent::Text(piece) => {
                    has_text = true;
                    self.render.text(&piece, out);
                    self.stream.mark_delivered(piece.number + 1);
                }
                StreamEvent::Finished(completion) => {
                    ended = true;
                    self.job.finished(&completion);
                    self.render.finished(&completion, out);
                }
                event @ (StreamEvent::Embedded(_) | StreamEvent::Failed(_)) => {
                    ended = true;
                    let failure = failure_of(event);
                    self.job.failed(&failure);
                    self.render.failed(&failure, out);
                }
            }
        }
        if has_text {
            self.render.progress(self.stream.tokens_out(), out);
        }
        ended
    }

    fn has_delivered(&self) -> bool {
        self.known != Skip::Nothing
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        self.render.keep_alive(out);
    }

    fn tell_recovery(&mut self, out: &mut Vec<u8>) {
        self.render.recovering(out);
    }

    fn first_failure(&mut self) -> Option<Failure> {
        let Some(StreamEvent::Failed(failure)) = self.events.first() else {
            return None;
        };
        self.job.failed(failure);
        Some(failure.clone())
    }

    fn recovering(&self) -> bool {
        self.stream.recovering()
    }
}

struct EventBody<S> {
    source: S,
    begins_at_once: bool,
    begun: bool,
    ended: bool,
    tick: Pin<Box<Sleep>>,
    last_write: Instant,
    /// The client was informed of this pause.
    pause_told: bool,
}

impl<S: Source> EventBody<S> {
    fn new(source: S) -> Self {
        Self {
            source,
            begins_at_once: false,
            begun: false,
            ended: false,
            tick: Box::pin(tokio::time::sleep(TICK)),
            last_write: Instant::now(),
            pause_told: false,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !self.begun {
            self.begun = true;
            self.source.begin(out);
        }
    }

    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        loop {
            match self.source.poll_new(cx) {
                Poll::Pending => return,
                Poll::Ready(false) => {
                    self.ended = true;
                    return;
                }
                Poll::Ready(true) => {}
            }
            self.begin(out);
            self.ended |= self.source.write(out);
            // A part that the client already has produces no output, and the waker is registered only after a read to
            // the present end.
            if self.ended || !out.is_empty() {
                return;
            }
        }
    }

    /// Registers for the next tick and writes a comment if one is due.
    fn poll_silence(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let recovering = self.source.recovering();
        if recovering && !self.pause_told && self.begun {
            self.source.tell_recovery(out);
        }
        self.pause_told = recovering;
        while self.tick.as_mut().poll(cx).is_ready() {
            self.tick.as_mut().reset(tokio::time::Instant::now() + TICK);
            let silent_for = self.last_write.elapsed();
            if recovering && silent_for >= TICK && out.is_empty() {
                self.source.tell_recovery(out);
            } else if silent_for >= KEEP_ALIVE {
                self.source.keep_alive(out);
            }
            if !out.is_empty() {
                return;
            }
        }
    }
}

impl<S: Source> HttpBody for EventBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        if this.begins_at_once {
            this.begin(&mut out);
        }
        this.poll_events(cx, &mut out);
        this.pause_told &= out.is_empty();
        if out.is_empty() && !this.ended {
            this.poll_silence(cx, &mut out);
        }
        if out.is_empty() {
            return if this.ended {
                Poll::Ready(None)
            } else {
                Poll::Pending
            };
        }
        this.last_write = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, params, request, step};
    use worker_orcd_requests::{Completion, Piece};

    /// Renderer that writes the numbers of pieces and counts the known ones.
    #[derive(Default)]
    struct Numbers {
        known: u32,
    }

    impl Render for Numbers {
        fn begin(&mut self, _: &mut Vec<u8>) {}

        fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
            out.extend_from_slice(format!("{} behind {};", piece.number, self.known).as_bytes());
        }

        fn known(&mut self, piece: &Piece) {
            assert_eq!(piece.number, self.known);
            self.known += 1;
        }

        fn progress(&mut self, _: u32, _: &mut Vec<u8>) {}

        fn finished(&mut self, _: &Completion, _: &mut Vec<u8>) {}

        fn failed(&mut self, _: &Failure, _: &mut Vec<u8>) {}
    }

    #[tokio::test]
    async fn what_the_client_has_is_read_without_a_pause_however_long_it_is() {
        let app = crate::http::tests::app(&[]).await;
        let mut journal = Journal::serving();
        let new = NewRequest {
            params: params(|it| it.max_tokens = 1000),
            ..request("job")
        };
        let (id, stream) = journal.submit(new);
        for index in 0..702 {
            let report = step(&[(id, index, 0)], &[]);
            journal.requests.step(SEAT, &report, journal.now).unwrap();
        }
        stream.mark_delivered(700);
        stream.give_known();
        let job = Job::begin(app, "job".to_owned(), String::new());
        let mut body = EventBody::new(One::new(stream, job, Numbers::default()));
        let mut context = Context::from_waker(Waker::noop());
        let polled = Pin::new(&mut body).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = polled else {
            panic!("{polled:?}");
        };
        let data = frame.into_data().unwrap();
        assert_eq!(data, "700 behind 700;701 behind 700;".as_bytes());
        // Then it waits for the child.
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
    }
}
