//! The socket, shared with checks while hyper owns it.

use super::client::Client;
use crate::http::handover::{Answer, ConnectionNote};
use crate::http::resume::HandedOver;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const END_OF_HEAD: &[u8; 4] = b"\r\n\r\n";

pub(super) struct Wire {
    client: Arc<Client>,
    /// The client has the head of the next answer. The number of bytes matched so far of the head's end, while it is
    /// omitted.
    leaves_out: Option<usize>,
}

impl Wire {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            leaves_out: None,
        }
    }

    /// Restores the state of an earlier supervisor. The next request is for the rest of the answer, if there is one.
    pub(super) fn go_on(&mut self, note: ConnectionNote) -> Option<HandedOver> {
        let request = note.answer.as_ref().map(Answer::request);
        *self.client.unread.lock() = [request.unwrap_or_default(), note.unread].concat();
        let answer = note.answer?;
        self.leaves_out = answer.sent.as_ref().map(|_| 0);
        Some(HandedOver { sent: answer.sent })
    }

    fn read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.client.socket.poll_read_ready(cx))?;
            match self.client.socket.try_read_buf(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }

    /// Number of bytes that belong to a head that the client has.
    fn left_out(&mut self, slices: &[IoSlice<'_>]) -> usize {
        let mut count = 0;
        for byte in slices.iter().flat_map(|slice| slice.iter()) {
            let Some(seen) = &mut self.leaves_out else {
                break;
            };
            count += 1;
            *seen = match *byte == END_OF_HEAD[*seen] {
                true => *seen + 1,
                false => usize::from(*byte == END_OF_HEAD[0]),
            };
            if *seen == END_OF_HEAD.len() {
                self.leaves_out = None;
            }
        }
        count
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut unread = self.client.unread.lock();
        if !unread.is_empty() {
            let bytes = unread.len().min(buffer.remaining());
            buffer.put_slice(&unread[..bytes]);
            unread.drain(..bytes);
            return Poll::Ready(Ok(()));
        }
        drop(unread);
        if !self.client.begins_to_read() {
            // A change of the stage wakes the connection's task.
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = self.read(cx, buffer);
        if buffer.filled().len() == before {
            self.client.has_read(&mut self.client.turn.lock());
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let left_out = self.left_out(slices);
        if left_out > 0 {
            return Poll::Ready(Ok(left_out));
        }
        let mut turn = self.client.turn.lock();
        turn.writing = true;
        if turn.is_handed_over {
            let before = turn.unsent.len();
            for slice in slices {
                turn.unsent.extend_from_slice(slice);
            }
            return Poll::Ready(Ok(turn.unsent.len() - before));
        }
        drop(turn);
        loop {
            ready!(self.client.socket.poll_write_ready(cx))?;
            match self.client.socket.try_write_vectored(slices) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut turn = self.client.turn.lock();
        if turn.is_handed_over {
            turn.closed = true;
            return Poll::Ready(Ok(()));
        }
        drop(turn);
        let done = rustix::net::shutdown(&self.client.socket, rustix::net::Shutdown::Write);
        Poll::Ready(done.map_err(io::Error::from))
    }
}
