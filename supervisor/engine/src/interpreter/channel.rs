//! Frames over a socket pair, for plain threads, with deadlines.

#![expect(clippy::disallowed_methods, reason = "an order has a deadline")]

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use thiserror::Error;
use worker_orcd_ipc::frame::{FrameError, FrameReader, Preamble, write_frame};
use worker_orcd_ipc::{CodecError, decode, encode};

const READ_BYTES: usize = 64 << 10;

#[derive(Debug, Error)]
pub(super) enum ChannelError {
    #[error("it took too long")]
    Late,
    #[error("the other side is gone")]
    Closed,
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Codec(#[from] CodecError),
}

/// One end of the socket pair.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    reader: FrameReader,
    greeted: bool,
}

/// Serializes a message as a frame.
pub(super) fn frame<T: Serialize>(message: &T) -> Result<Vec<u8>, ChannelError> {
    let payload = encode(message)?;
    let mut frame = Vec::with_capacity(payload.len() + 4);
    write_frame(&mut frame, &payload)?;
    Ok(frame)
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            reader: FrameReader::new(),
            greeted: false,
        }
    }

    /// Writes a [`frame`]. Without a deadline it may block forever.
    pub(super) fn send(
        &mut self,
        frame: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), ChannelError> {
        if !self.greeted {
            self.write(&Preamble::OURS.to_bytes(), deadline)?;
            self.greeted = true;
        }
        self.write(frame, deadline)
    }

    /// Receives the next message.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<T, ChannelError> {
        let mut chunk = vec![0; READ_BYTES];
        loop {
            if let Some(payload) = self.reader.next_frame()? {
                return Ok(decode(payload)?);
            }
            self.stream
                .set_read_timeout(left_until(deadline)?)
                .map_err(ChannelError::Io)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(count) => self.reader.push(&chunk[..count]),
                Err(error) => wait_or_fail(error)?,
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8], deadline: Option<Instant>) -> Result<(), ChannelError> {
        while !bytes.is_empty() {
            self.stream
                .set_write_timeout(left_until(deadline)?)
                .map_err(ChannelError::Io)?;
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => wait_or_fail(error)?,
            }
        }
        Ok(())
    }
}

/// Timeout for a socket operation. The socket reads zero as no timeout, so zero is an error: the deadline has passed.
fn left_until(deadline: Option<Instant>) -> Result<Option<std::time::Duration>, ChannelError> {
    match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
        Some(left) if left.is_zero() => Err(ChannelError::Late),
        left => Ok(left),
    }
}

/// Ignores a timeout, which the deadline check handles.
fn wait_or_fail(error: io::Error) -> Result<(), ChannelError> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Err(ChannelError::Closed),
        _ => Err(ChannelError::Io(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn messages_of_any_size_go_through_whole() {
        let (one, other) = UnixStream::pair().unwrap();
        let long = "é".repeat(1 << 20);
        let text = long.clone();
        let sender = std::thread::spawn(move || {
            let mut channel = Channel::new(one);
            for message in ["", &text, "short"] {
                let frame = frame(&message).unwrap();
                channel.send(&frame, None).unwrap();
            }
        });
        let mut channel = Channel::new(other);
        for expected in ["", &long, "short"] {
            assert_eq!(channel.receive::<String>(None).unwrap(), expected);
        }
        sender.join().unwrap();
        assert!(matches!(
            channel.receive::<String>(None),
            Err(ChannelError::Closed)
        ));
    }

    #[test]
    fn a_peer_that_neither_speaks_nor_reads_is_late() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(one);
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        assert!(matches!(
            channel.receive::<String>(soon()),
            Err(ChannelError::Late)
        ));
        let much = frame(&"x".repeat(4 << 20)).unwrap();
        assert!(matches!(
            channel.send(&much, soon()),
            Err(ChannelError::Late)
        ));
    }
}
