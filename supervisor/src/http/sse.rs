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

use super::choices::Choices;
use super::error::ApiError;
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
use worker_orcd_api::render::Render;

/// Time between two checks of a silent stream.
const TICK: Duration = Duration::from_secs(1);
/// Silence after which a comment is sent; shorter than the timeouts of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Response whose head is sent at once. `begun`: the client already has it.
pub(super) fn respond_at_once<R: Render>(choices: Choices<R>, begun: bool) -> Response {
    let mut body = EventBody::new(choices);
    (body.begins_at_once, body.begun) = (!begun, begun);
    respond_with(body)
}

/// Response with the rest of a stream that began in another supervisor.
pub(super) fn go_on<R: Render>(choices: Choices<R>) -> Response {
    let mut body = EventBody::new(choices);
    // A client without any part of the answer has received the head alone.
    body.begun = body.choices.has_delivered();
    respond_with(body)
}

/// Response that starts with the first events, once they are known. Liveness probes are sent during a long wait.
///
/// # Errors
/// If the first event is a failure.
pub(super) async fn respond_when_known<R: Render>(
    mut choices: Choices<R>,
) -> Result<Response, ApiError> {
    // Cancel-safe: the body reads later events.
    let known = poll_fn(|cx| choices.poll_new(cx));
    let _ = tokio::time::timeout(KEEP_ALIVE, known).await;
    match choices.first_failure() {
        Some(failure) => Err(ApiError::of_failure(&failure)),
        None => Ok(respond_with(EventBody::new(choices))),
    }
}

fn respond_with<R: Render>(body: EventBody<R>) -> Response {
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(R::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables nginx's buffering of the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct EventBody<R> {
    choices: Choices<R>,
    begins_at_once: bool,
    begun: bool,
    ended: bool,
    tick: Pin<Box<Sleep>>,
    last_write: Instant,
    /// The client was informed of this pause.
    pause_told: bool,
}

impl<R: Render> EventBody<R> {
    fn new(choices: Choices<R>) -> Self {
        Self {
            choices,
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
            self.choices.begin(out);
        }
    }

    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        loop {
            match self.choices.poll_new(cx) {
                Poll::Pending => return,
                Poll::Ready(false) => {
                    self.ended = true;
                    return;
                }
                Poll::Ready(true) => {}
            }
            self.begin(out);
            self.ended |= self.choices.write(out);
            // A part that the client already has produces no output, and the waker is registered only after a read to
            // the present end.
            if self.ended || !out.is_empty() {
                return;
            }
        }
    }

    /// Registers for the next tick and writes a comment if one is due.
    fn poll_silence(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) {
        let recovering = self.choices.recovering();
        if recovering && !self.pause_told && self.begun {
            self.choices.sign_of_life(true, out);
        }
        self.pause_told = recovering;
        while self.tick.as_mut().poll(cx).is_ready() {
            self.tick.as_mut().reset(tokio::time::Instant::now() + TICK);
            let silent_for = self.last_write.elapsed();
            if recovering && silent_for >= TICK && out.is_empty() {
                self.choices.sign_of_life(true, out);
            } else if silent_for >= KEEP_ALIVE {
                self.choices.sign_of_life(false, out);
            }
            if !out.is_empty() {
                return;
            }
        }
    }
}

impl<R: Render> HttpBody for EventBody<R> {
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
    use crate::http::generation::Accepted;
    use crate::http::job::Job;
    use std::task::Waker;
    use worker_orcd_api::choices::Layout;
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, params, request, step};
    use worker_orcd_requests::{Completion, Failure, Piece};

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
        let accepted = Accepted {
            tokens_in: stream.tokens_in(),
            job: Job::begin(app, "job".to_owned(), String::new()),
            stream,
        };
        let choices = Choices::new([(accepted, Numbers::default())], Layout::default());
        let mut body = EventBody::new(choices);
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
