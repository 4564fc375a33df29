//! Frames to and from a child, without blocking.
//!
//! Reads are bounded by one frame. Writes go into a buffer that the socket drains at its own pace. A child that leaves
//! it full for [`WRITE_DEADLINE`] counts as hung.

#![expect(
    clippy::disallowed_methods,
    reason = "a socket that takes nothing is timed where it is written"
)]

use interprocess::local_socket::tokio::Stream;
use interprocess::os::unix::uds_local_socket::tokio::Stream as UdStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::UnixStream;
use worker_orcd_ipc::{Command, FrameError, FrameReader, Preamble, encode, frame};

/// A dedicated thread of the child reads commands, so the socket's buffer is empty within a scheduling delay.
pub(crate) const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Unwritten bytes above which a link requests no further commands. After the death of another child, commands may
/// carry all prompts of a long queue.
const ENOUGH_UNWRITTEN_BYTES: usize = 4 << 20;

/// Maximum number of unwritten bytes. Only [`Link::send`] can reach it, not [`Link::send_what_fits`].
const MAX_UNWRITTEN_BYTES: usize = 64 << 20;

/// Size of a read. The kernel's default buffer of a Unix socket is 208 KiB. Smaller reads cost system calls, larger
/// ones gain nothing.
const READ_BYTES: usize = 128 << 10;

#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("the control socket failed: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0} bytes of commands are unread")]
    Overfull(usize),
    #[error("a command cannot be encoded: {0}")]
    Encode(String),
}

pub(crate) struct Link {
    stream: Stream,
    reader: FrameReader,
    read_buffer: Box<[u8]>,
    outgoing: Outgoing,
}

/// Unwritten bytes to the child.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// Time of the last write, or of the last empty buffer.
    progress_at: Option<Instant>,
}

impl Link {
    /// Creates a link, with our preamble as the first output.
    #[must_use]
    pub(crate) fn new(stream: Stream) -> Self {
        let mut outgoing = Outgoing::default();
        outgoing.push(&Preamble::OURS.to_bytes());
        Self {
            stream,
            reader: FrameReader::new(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            outgoing,
        }
    }

    /// Link to an inherited child that has sent `heard` to another supervisor. The preamble is exchanged already.
    ///
    /// # Errors
    /// If the runtime does not accept the socket.
    pub(crate) fn resume(socket: OwnedFd, heard: &[u8]) -> io::Result<Self> {
        let mut link = Self {
            stream: Stream::UdSocket(UdStream::try_from(socket)?),
            reader: FrameReader::new(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            outgoing: Outgoing::default(),
        };
        link.reader.push(&Preamble::OURS.to_bytes());
        link.hear_again(heard);
        Ok(link)
    }

    /// Adds further bytes that the child has sent to another supervisor.
    pub(crate) fn hear_again(&mut self, heard: &[u8]) {
        self.reader.push(heard);
    }

    /// Socket, and bytes read from it that are no complete frame yet. `None` while commands are unwritten.
    pub(crate) fn hand_over(&self) -> Option<(OwnedFd, &[u8])> {
        let socket = socket(&self.stream).as_fd().try_clone_to_owned();
        let is_quiet = self.outgoing.is_empty();
        Some((socket.ok().filter(|_| is_quiet)?, self.reader.rest()))
    }

    #[must_use]
    pub(crate) fn is_quiet(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Queues one command.
    ///
    /// # Errors
    /// [`LinkError::Overfull`] if too many bytes are unread.
    pub(crate) fn send(&mut self, command: &Command) -> Result<(), LinkError> {
        let payload = encode(command).map_err(|error| LinkError::Encode(error.to_string()))?;
        let unwritten = self.outgoing.len() + payload.len();
        if unwritten > MAX_UNWRITTEN_BYTES {
            return Err(LinkError::Overfull(unwritten));
        }
        let mut framed = Vec::with_capacity(payload.len() + 4);
        frame::write_frame(&mut framed, &payload)?;
        self.outgoing.push(&framed);
        // The socket nearly always has room, and a write here saves the child a scheduling round.
        self.write()
    }

    /// Sends the commands of `next` while there is room. Further commands stay in place until the child has read.
    /// [`Self::stir`] returns when there is room again.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) fn send_what_fits(
        &mut self,
        mut next: impl FnMut() -> Option<Command>,
    ) -> Result<(), LinkError> {
        while self.outgoing.len() < ENOUGH_UNWRITTEN_BYTES
            && let Some(command) = next()
        {
            self.send(&command)?;
        }
        Ok(())
    }

    #[must_use]
    pub(crate) fn write_deadline(&self) -> Option<Instant> {
        self.outgoing.progress_at.map(|at| at + WRITE_DEADLINE)
    }

    /// Waits until bytes are read or written. `false`: the child has closed its end. Cancel-safe: bytes move only
    /// without waiting in between.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn stir(&mut self) -> Result<bool, LinkError> {
        let interest = match self.outgoing.is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        let ready = socket(&self.stream).ready(interest).await?;
        if ready.is_writable() {
            self.write()?;
        }
        if ready.is_readable() {
            self.read()
        } else {
            Ok(true)
        }
    }

    /// Reads the child's remaining bytes, without waiting. `false`: no bytes are left.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) fn read_the_rest(&mut self) -> Result<bool, LinkError> {
        // The runtime's readiness may be older than the last bytes, so the socket is read directly.
        let flags = RecvFlags::DONTWAIT;
        match recv(socket(&self.stream), &mut self.read_buffer[..], flags) {
            Ok((0, _)) | Err(Errno::AGAIN) => Ok(false),
            Ok((count, _)) => {
                self.reader.push(&self.read_buffer[..count]);
                Ok(true)
            }
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// Next complete payload that has been read.
    ///
    /// # Errors
    /// If the bytes are not frames of this protocol.
    pub(crate) fn next_frame(&mut self) -> Result<Option<&[u8]>, LinkError> {
        Ok(self.reader.next_frame()?)
    }

    fn read(&mut self) -> Result<bool, LinkError> {
        match socket(&self.stream).try_read(&mut self.read_buffer) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.reader.push(&self.read_buffer[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&mut self) -> Result<(), LinkError> {
        let socket = socket(&self.stream);
        Ok(self.outgoing.write_to(|bytes| socket.try_write(bytes))?)
    }
}

fn socket(stream: &Stream) -> &UnixStream {
    let Stream::UdSocket(stream) = stream;
    stream.inner()
}

/// True if the peer is gone. A write to a Unix socket then usually fails with EPIPE, or with ECONNRESET if the peer is
/// killed between two checks of the same `sendmsg`. A read fails with ECONNRESET if the peer has left messages unread.
pub(crate) fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

impl Outgoing {
    fn push(&mut self, bytes: &[u8]) {
        if self.is_empty() {
            self.progress_at = Some(Instant::now());
        }
        // Written bytes are removed once that moves fewer bytes than it frees.
        if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes as many bytes as the socket accepts. A hang-up is no error here: the reader finds it after the remaining
    /// messages.
    fn write_to(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while !self.is_empty() {
            match write(self.rest()) {
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if is_hang_up(&error) => *self = Self::default(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        if self.written == self.bytes.len() {
            *self = Self::default();
        } else {
            self.progress_at = Some(Instant::now());
        }
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    fn len(&self) -> usize {
        self.rest().len()
    }

    fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("outgoing_bytes", &self.outgoing.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::socket::PrivateDir;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream as StdStream;
    use worker_orcd_ipc::{Generation, PREAMBLE_BYTES, RequestId, decode, encode};

    async fn pair() -> (Link, StdStream) {
        let dir = PrivateDir::create().unwrap();
        let door = dir.open_door(Generation(1)).unwrap();
        let child = StdStream::connect(door.path()).unwrap();
        let stream = door.accept(std::process::id()).await.unwrap();
        let mut link = Link::new(stream);
        // The preamble is written, and the socket is known to be writable from here on.
        assert!(link.stir().await.unwrap());
        (link, child)
    }

    fn cancel(request: u64) -> Command {
        Command::Cancel {
            request: RequestId(request),
        }
    }

    #[tokio::test]
    async fn commands_arrive_behind_the_preamble_in_order() {
        let (mut link, mut child) = pair().await;
        link.send(&cancel(1)).unwrap();
        link.send(&cancel(2)).unwrap();
        assert_eq!(link.write_deadline(), None, "all of it was taken at once");
        let mut reader = FrameReader::new();
        let mut bytes = [0; 64];
        let count = child.read(&mut bytes).unwrap();
        reader.push(&bytes[..count]);
        for request in [1, 2] {
            let frame = reader.next_frame().unwrap().expect("a whole frame");
            assert_eq!(decode::<Command>(frame).unwrap(), cancel(request));
        }
    }

    #[tokio::test]
    async fn a_reader_that_stops_makes_a_deadline_and_reading_on_lifts_it() {
        let (mut link, mut child) = pair().await;
        let mut sent = PREAMBLE_BYTES;
        while link.write_deadline().is_none() {
            link.send(&cancel(u64::MAX)).unwrap();
            sent += 4 + encode(&cancel(u64::MAX)).unwrap().len();
        }
        let deadline = link.write_deadline();
        link.send(&cancel(1)).unwrap();
        sent += 4 + encode(&cancel(1)).unwrap().len();
        assert_eq!(
            link.write_deadline(),
            deadline,
            "more to write is no progress"
        );
        let read_on = std::thread::spawn(move || child.read_exact(&mut vec![0; sent]));
        while link.write_deadline().is_some() {
            assert!(link.stir().await.unwrap());
        }
        read_on.join().unwrap().unwrap();
    }

    /// A submission of five mebibytes on the wire.
    fn long_submission() -> Command {
        Command::Submit(Box::new(worker_orcd_ipc::Submission {
            request: RequestId(1),
            prompt: vec![worker_orcd_ipc::TokenId(u32::MAX); 1 << 20],
            ..worker_orcd_ipc::Submission::default()
        }))
    }

    #[tokio::test]
    async fn commands_that_nobody_reads_are_refused_before_they_fill_the_memory() {
        let (mut link, _child) = pair().await;
        let command = long_submission();
        let outcome = (0..64).try_for_each(|_| link.send(&command));
        assert!(matches!(outcome, Err(LinkError::Overfull(_))));
    }

    #[tokio::test]
    async fn a_long_queue_goes_out_as_it_is_read_and_is_not_kept() {
        const QUEUE: usize = 32;
        let (mut link, mut child) = pair().await;
        let command = long_submission();
        let bytes = PREAMBLE_BYTES + QUEUE * (4 + encode(&command).unwrap().len());
        assert!(bytes > 2 * MAX_UNWRITTEN_BYTES);
        let reader = std::thread::spawn(move || {
            let mut rest = (&mut child).take(bytes as u64);
            io::copy(&mut rest, &mut io::sink())
        });
        let mut queue = vec![command; QUEUE];
        link.send_what_fits(|| queue.pop()).unwrap();
        while !link.outgoing.is_empty() {
            let kept = link.outgoing.bytes.capacity();
            assert!(kept < MAX_UNWRITTEN_BYTES / 2, "{kept} bytes");
            assert!(link.stir().await.unwrap());
            link.send_what_fits(|| queue.pop()).unwrap();
        }
        assert_eq!(reader.join().unwrap().unwrap(), bytes as u64);
    }

    #[tokio::test]
    async fn words_in_pieces_become_frames_and_the_end_is_seen_after_them() {
        let (mut link, mut child) = pair().await;
        let mut bytes = Preamble::OURS.to_bytes().to_vec();
        frame::write_frame(&mut bytes, b"word").unwrap();
        let (first, second) = bytes.split_at(10);
        child.write_all(first).unwrap();
        assert!(link.stir().await.unwrap());
        assert_eq!(link.next_frame().unwrap(), None);
        child.write_all(second).unwrap();
        drop(child);
        while link.next_frame().unwrap().is_none() {
            assert!(link.stir().await.unwrap());
        }
        while link.stir().await.unwrap_or(false) {}
    }

    /// The kernel returns ECONNRESET only if the child dies in the middle of the system call.
    #[test]
    fn a_child_that_dies_while_it_is_written_to_has_hung_up() {
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe] {
            let mut outgoing = Outgoing::default();
            outgoing.push(b"command");
            outgoing.write_to(|_| Err(kind.into())).expect("a hang-up");
            assert!(outgoing.is_empty(), "{kind}");
        }
        let mut outgoing = Outgoing::default();
        outgoing.push(b"command");
        let failed = outgoing.write_to(|_| Err(io::ErrorKind::OutOfMemory.into()));
        assert!(failed.is_err());
    }

    #[tokio::test]
    async fn the_rest_is_read_without_waiting_for_more() {
        let (mut link, mut child) = pair().await;
        let mut bytes = Preamble::OURS.to_bytes().to_vec();
        frame::write_frame(&mut bytes, b"last word").unwrap();
        child.write_all(&bytes).unwrap();
        assert!(link.read_the_rest().unwrap());
        assert_eq!(link.next_frame().unwrap(), Some(&b"last word"[..]));
        assert!(!link.read_the_rest().unwrap(), "nothing more is there");
        drop(child);
    }

    #[tokio::test]
    async fn another_protocol_version_is_refused_by_name() {
        let (mut link, mut child) = pair().await;
        child
            .write_all(&Preamble { version: 999 }.to_bytes())
            .unwrap();
        while link.stir().await.is_ok() {
            if let Err(LinkError::Frame(error)) = link.next_frame() {
                assert!(matches!(error, FrameError::Version { theirs: 999, .. }));
                return;
            }
        }
        panic!("accepted");
    }
}
