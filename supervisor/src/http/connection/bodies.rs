//! Request and response bodies that record the progress of a request.

use super::client::Client;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use worker_orcd_api::render::{EVENT_STREAM, LINES, SPACE};

const COMMENT: &[u8] = b":\n\n";

/// Liveness probe of a stream, which its clients ignore. `None`: the body is no stream.
pub(super) fn probe_of(content_type: &[u8]) -> Option<&'static [u8]> {
    match content_type {
        it if it == EVENT_STREAM.as_bytes() => Some(COMMENT),
        it if it == LINES.as_bytes() => Some(SPACE),
        _ => None,
    }
}

/// Request body, which records its completion.
pub(super) struct Sent {
    body: Arc<Mutex<Incoming>>,
    client: Option<Arc<Client>>,
}

impl Sent {
    pub(super) fn new(body: Arc<Mutex<Incoming>>, client: Arc<Client>) -> Self {
        let is_whole = body.lock().is_end_stream();
        let mut sent = Self {
            body,
            client: Some(client),
        };
        if is_whole {
            sent.is_whole();
        }
        sent
    }

    fn is_whole(&mut self) {
        if let Some(client) = self.client.take() {
            client.request_is_whole();
        }
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let mut body = self.body.lock();
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let is_whole = frame.is_none() || body.is_end_stream();
        drop(body);
        if let (Some(client), Some(Ok(frame))) = (&self.client, &frame) {
            client.heard(frame);
        }
        if is_whole {
            self.is_whole();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.lock().size_hint()
    }
}

/// Response body, which records its progress, and sends a liveness probe if one is requested.
pub(super) struct TrackedBody {
    pub(super) body: Body,
    pub(super) client: Arc<Client>,
    /// See [`probe_of`].
    pub(super) probe: Option<&'static [u8]>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // The rest of the answer is sent by another supervisor.
        if self.probe.is_some() && self.client.turn.lock().is_handed_over {
            return Poll::Pending;
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let Some(probe) = self.probe else {
            return Poll::Pending;
        };
        let mut turn = self.client.turn.lock();
        if std::mem::take(&mut turn.wanted) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(probe)))));
        }
        turn.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.client.turn.lock().complete = true;
    }
}
