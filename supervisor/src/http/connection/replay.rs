//! A request in progress, as bytes that another supervisor can read again.

use axum::body::Bytes;
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Request, Uri, Version};
use hyper::body::{Body as _, Frame, Incoming};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The parsed head, and the body so far.
pub(super) struct Replay {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    body: Arc<Mutex<Incoming>>,
    heard: Vec<Bytes>,
    pub(super) is_whole: bool,
}

impl Replay {
    pub(super) fn of(request: &Request<Arc<Mutex<Incoming>>>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            headers: request.headers().clone(),
            body: Arc::clone(request.body()),
            heard: Vec::new(),
            is_whole: false,
        }
    }

    pub(super) fn heard(&mut self, frame: &Frame<Bytes>) {
        self.heard.extend(frame.data_ref().cloned());
    }

    /// The body's length is unknown until it is complete.
    pub(super) fn is_chunked(&self) -> bool {
        self.headers.contains_key(TRANSFER_ENCODING)
    }

    /// The bytes so far. `None` for a partial chunked body: only hyper can interpret its read-ahead bytes.
    pub(super) fn into_bytes(mut self) -> Option<Vec<u8>> {
        if self.is_chunked() {
            if !self.is_whole {
                return None;
            }
            let length: usize = self.heard.iter().map(Bytes::len).sum();
            self.headers.remove(TRANSFER_ENCODING);
            self.headers.insert(CONTENT_LENGTH, length.into());
        } else {
            self.hear_the_rest();
        }
        let mut bytes = self.head();
        self.heard.iter().for_each(|it| bytes.extend_from_slice(it));
        Some(bytes)
    }

    /// Adds the part of the body that hyper has read and the handler has not.
    fn hear_the_rest(&mut self) {
        let body = Arc::clone(&self.body);
        let mut body = body.lock();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut *body).poll_frame(&mut context) {
            self.heard(&frame);
        }
    }

    fn head(&self) -> Vec<u8> {
        let version = match self.version {
            Version::HTTP_10 => "1.0",
            _ => "1.1",
        };
        let mut head = format!("{} {} HTTP/{version}\r\n", self.method, self.uri).into_bytes();
        for (name, value) in &self.headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        head
    }
}
