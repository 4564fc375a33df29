//! Answer in memory, with its room.
//!
//! It is sent in slices, so that a connection copies only as much as its client reads. The room is returned after the
//! last slice is sent.

use super::body::Room;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

const SLICE_BYTES: usize = 64 << 10;

struct Held(Bytes);

struct WithRoom {
    bytes: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for WithRoom {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn body(bytes: Vec<u8>, room: Room) -> Body {
    let held = WithRoom { bytes, _room: room };
    Body::new(Held(Bytes::from_owner(held)))
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.0.len().min(SLICE_BYTES);
        let slice = self.0.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body::{Bodies, BodyLimits};
    use http_body_util::BodyExt as _;
    use std::time::Duration;
    use worker_orcd_engine::interpreter::MAX_RENDERED_BYTES;

    #[tokio::test]
    async fn room_is_taken_until_the_last_slice_is_gone() {
        let bodies = Bodies::new(BodyLimits {
            bytes: 0,
            time: Duration::ZERO,
            together: 0,
        });
        let room = bodies.room_for_answer(MAX_RENDERED_BYTES).unwrap();
        let mut body = body(vec![7; SLICE_BYTES + 1], room);
        assert_eq!(body.size_hint().exact(), Some(SLICE_BYTES as u64 + 1));
        let is_free = || bodies.room_for_answer(MAX_RENDERED_BYTES).is_ok();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), SLICE_BYTES);
        drop(first);
        assert!(!is_free(), "one byte waits");
        let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.frame().await.is_none());
        drop(body);
        assert!(!is_free(), "the last slice is on its way");
        assert_eq!(last.len(), 1);
        drop(last);
        assert!(is_free());
    }
}
