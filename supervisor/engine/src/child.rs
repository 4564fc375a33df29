//! One child process: its creation, its messages and its end.
//!
//! * [`pending_spawns`]: pending spawns. [`spawn`]: the thread that creates processes. [`confinement`]: permissions of a
//!   process. [`socket`]: control socket. [`fd_socket`]: socket for descriptors. [`flight_recorder`]: its stdin, which
//!   outlives it. `leftovers`: socket directories of dead supervisors.
//! * [`link`]: frames in both directions. [`output`]: stdout and stderr as log lines.
//! * [`handover`]: handover of a child when the supervisor executes another program.
//!
//! [`Child`] combines them with a process of `worker_orcd_process` for the driver. [`Child::next`] returns the next
//! sign. No call blocks the driver on the child.
//!
//! Deliberately absent: decisions. The lifecycle interprets the signs.

pub(crate) mod confinement;
pub(crate) mod fd_socket;
pub(crate) mod flight_recorder;
pub(crate) mod handover;
mod leftovers;
pub(crate) mod link;
pub(crate) mod output;
pub(crate) mod pending_spawns;
pub mod socket;
pub mod spawn;

use crate::child::fd_socket::{FdSocket, LateFdSocket};
use crate::child::handover::Said;
use crate::child::link::{Link, LinkError, is_hang_up};
use crate::child::output::Outputs;
use crate::child::socket::Door;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use tracing::warn;
use worker_orcd_ipc::{Command, FdKind, Generation};
use worker_orcd_lifecycle::{Exit, Signal};
use worker_orcd_process::reap::Process;

/// Child of one generation. Its process exists.
#[derive(Debug)]
pub(crate) struct Child {
    pub generation: Generation,
    pub pid: u32,
    process: Process,
    line: Line,
    fd_socket: Option<FdSocket>,
    late_fd_socket: Option<LateFdSocket>,
    outputs: Outputs,
    /// True once all threads of the child are ending. Its earlier messages are still to be read.
    is_ending: bool,
    /// Frames of the messages that the child sends only once.
    said: Said,
    /// Messages after `Hello` to another supervisor. They are replayed at the load order.
    retold: Option<Vec<u8>>,
    /// True if there are messages to read for which no socket becomes readable.
    is_stirred: bool,
}

#[derive(Debug)]
enum Line {
    /// Listener without a connection yet.
    Waiting(Door),
    Open(Link),
    Closed,
}

/// Observed event of a child, apart from its messages.
#[derive(Debug)]
pub(crate) enum Sign {
    /// Bytes were read or written; [`Child::next_word`] may have a message.
    Stirred,
    LinkClosed,
    LinkFailed(LinkError),
    Exited(Exit),
}

impl Child {
    #[must_use]
    pub(crate) fn new(
        generation: Generation,
        process: Process,
        door: Door,
        fd_socket: Option<FdSocket>,
        outputs: Outputs,
    ) -> Self {
        let pid = process.pid();
        Self {
            generation,
            pid,
            process,
            line: Line::Waiting(door),
            fd_socket,
            late_fd_socket: None,
            outputs,
            is_ending: false,
            said: Said::default(),
            retold: None,
            is_stirred: false,
        }
    }

    /// Takes the next descriptor that the child has handed over, if any. Does not wait.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for an unknown descriptor.
    pub(crate) fn take(&mut self) -> io::Result<Option<(FdKind, OwnedFd)>> {
        match &mut self.fd_socket {
            Some(fd_socket) => fd_socket.take(self.pid),
            None => Ok(None),
        }
    }

    /// Sends a descriptor of an earlier child. Does not wait.
    ///
    /// # Errors
    /// If the child is not connected or the socket is full.
    pub(crate) fn hand_out(&mut self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        match &mut self.fd_socket {
            Some(fd_socket) => fd_socket.hand_out(self.pid, article, descriptor),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends the child's end of a second socket, for descriptors while it serves. Does not wait.
    ///
    /// # Errors
    /// If the child is not connected or the socket is full.
    pub(crate) fn open_late_fd_socket(&mut self) -> io::Result<()> {
        let (ours, theirs) = LateFdSocket::open()?;
        self.hand_out(FdKind::SecondSocket, &theirs)?;
        self.late_fd_socket = Some(ours);
        Ok(())
    }

    /// Sends a descriptor of another child through the second socket. Does not wait. A command must announce it.
    ///
    /// # Errors
    /// If there is no second socket, or it is full.
    pub(crate) fn put(&self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        let late_fd_socket = self.late_fd_socket.as_ref();
        let none = || io::Error::from(io::ErrorKind::NotConnected);
        late_fd_socket.ok_or_else(none)?.put(article, descriptor)
    }

    /// Ends the exchange of descriptors. From now on the end of their socket indicates the end of the child.
    pub(crate) fn watch_fd_socket(&mut self) {
        if let Some(fd_socket) = &mut self.fd_socket
            && let Err(error) = fd_socket.watch(self.pid)
        {
            warn!(%error, "fd_socket_not_watched");
        }
    }

    /// Waits for the next sign. Cancel-safe: no sign is lost.
    ///
    /// A connection is reported before a later exit, because after the exit there can be none.
    pub(crate) async fn next(&mut self) -> Sign {
        if std::mem::take(&mut self.is_stirred) {
            return Sign::Stirred;
        }
        if !self.is_ending {
            tokio::select! {
                biased;
                sign = self.line.next(self.pid) => return sign,
                outcome = ended(self.fd_socket.as_ref()) => match outcome {
                    Ok(()) => self.is_ending = true,
                    Err(error) => return self.line.fail(error.into()),
                },
                exit = self.process.exited() => return Sign::Exited(exit),
            }
        }
        match self.line.end() {
            Some(sign) => sign,
            None => Sign::Exited(self.process.exited().await),
        }
    }

    #[must_use]
    pub(crate) fn has_connected(&self) -> bool {
        !matches!(self.line, Line::Waiting(_))
    }

    /// Next complete message that has been read, undecoded.
    ///
    /// # Errors
    /// If the child's bytes are not a frame of this protocol.
    pub(crate) fn next_word(&mut self) -> Result<Option<&[u8]>, LinkError> {
        match &mut self.line {
            Line::Open(link) => link.next_frame(),
            Line::Waiting(_) | Line::Closed => Ok(None),
        }
    }

    /// Queues a command. Never blocks. Without a link the command is dropped, and the lifecycle learns of the lost link
    /// by a sign.
    ///
    /// # Errors
    /// If the queue is longer than any correct reader leaves unread.
    pub(crate) fn send(&mut self, command: &Command) -> Result<(), LinkError> {
        match &mut self.line {
            Line::Open(link) => link.send(command),
            Line::Waiting(_) | Line::Closed => Ok(()),
        }
    }

    /// Sends commands while the child keeps up with reading. [`Self::next`] returns a sign once there is room for more.
    /// Without a link they are dropped, as by [`Self::send`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(crate) fn send_what_fits(
        &mut self,
        mut next: impl FnMut() -> Option<Command>,
    ) -> Result<(), LinkError> {
        match &mut self.line {
            Line::Open(link) => link.send_what_fits(next),
            Line::Waiting(_) | Line::Closed => {
                while next().is_some() {}
                Ok(())
            }
        }
    }

    /// Time at which the unwritten bytes exceed their write deadline.
    #[must_use]
    pub(crate) fn write_deadline(&self) -> Option<Instant> {
        match &self.line {
            Line::Open(link) => link.write_deadline(),
            Line::Waiting(_) | Line::Closed => None,
        }
    }

    pub(crate) fn close_link(&mut self) {
        self.line = Line::Closed;
    }

    pub(crate) fn kill(&self, signal: Signal) {
        match signal {
            Signal::Term => self.process.terminate(),
            Signal::Kill => self.process.kill(),
        }
    }

    /// True if SIGSTOP or a debugger has stopped the child.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.process.is_stopped()
    }
}

/// Waits for the child's end of the socket to close. Pending forever without a socket.
async fn ended(fd_socket: Option<&FdSocket>) -> io::Result<()> {
    match fd_socket {
        Some(fd_socket) => fd_socket.ended().await,
        None => std::future::pending().await,
    }
}

impl Line {
    async fn next(&mut self, pid: u32) -> Sign {
        match self {
            Self::Waiting(door) => match door.accept(pid).await.map(Link::new) {
                Ok(link) => {
                    // The listener is dropped here, so no other process can connect, and its name is removed.
                    *self = Self::Open(link);
                    Sign::Stirred
                }
                Err(error) => self.fail(error.into()),
            },
            Self::Open(link) => match link.stir().await {
                Ok(true) => Sign::Stirred,
                Ok(false) => {
                    *self = Self::Closed;
                    Sign::LinkClosed
                }
                Err(error) => self.fail(error),
            },
            Self::Closed => std::future::pending().await,
        }
    }

    /// Remaining messages of an ending child, then their end. Does not wait.
    fn end(&mut self) -> Option<Sign> {
        let rest = match self {
            Self::Open(link) => link.read_the_rest(),
            Self::Waiting(_) => Ok(false),
            Self::Closed => return None,
        };
        Some(match rest {
            Ok(true) => Sign::Stirred,
            Ok(false) => {
                *self = Self::Closed;
                Sign::LinkClosed
            }
            Err(error) => self.fail(error),
        })
    }

    fn fail(&mut self, error: LinkError) -> Sign {
        *self = Self::Closed;
        match error {
            // A socket ends this way if its peer is killed with unread commands.
            LinkError::Io(error) if is_hang_up(&error) => Sign::LinkClosed,
            error => {
                warn!(%error, "control_socket_failed");
                Sign::LinkFailed(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::handover::Once;
    use crate::child::socket::PrivateDir;
    use crate::engine::testing::load_order;
    use crate::handoff::living::{LivingChild, Terms};
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt as _;
    use std::time::Duration;
    use worker_orcd_ipc::{Preamble, frame};

    /// A child with both socket peers in the test, and another process that stays alive.
    async fn child() -> (Child, UnixStream, UnixStream) {
        let (generation, me) = (Generation(1), std::process::id());
        let dir = PrivateDir::create().unwrap();
        let door = dir.open_door(generation).unwrap();
        let control = UnixStream::connect(door.path()).unwrap();
        let link = Link::new(door.accept(me).await.unwrap());
        let fd_socket = dir.open_fd_socket(generation).unwrap();
        let line = UnixStream::connect(fd_socket.path().unwrap()).unwrap();
        let sleeper = std::process::Command::new("sleep")
            .arg("3600")
            .process_group(0)
            .spawn();
        let mut child = Child {
            generation,
            pid: me,
            process: Process::new(sleeper.unwrap()).unwrap(),
            line: Line::Open(link),
            fd_socket: Some(fd_socket),
            late_fd_socket: None,
            outputs: Outputs::default(),
            is_ending: false,
            said: Said::default(),
            retold: None,
            is_stirred: false,
        };
        assert!(
            matches!(next(&mut child).await, Sign::Stirred),
            "our preamble"
        );
        child.watch_fd_socket();
        (child, control, line)
    }

    async fn next(child: &mut Child) -> Sign {
        let sign = tokio::time::timeout(Duration::from_secs(30), child.next()).await;
        sign.expect("a sign")
    }

    #[tokio::test]
    async fn the_end_of_the_sentinel_is_that_of_the_link() {
        let (mut child, _control, line) = child().await;
        drop(line);
        assert!(matches!(next(&mut child).await, Sign::LinkClosed));
        child.kill(Signal::Kill);
        assert!(
            matches!(next(&mut child).await, Sign::Exited(_)),
            "it was alive"
        );
    }

    #[tokio::test]
    async fn the_last_words_of_a_child_that_is_ending_come_before_its_end() {
        let (mut child, mut control, _line) = child().await;
        let mut bytes = Preamble::OURS.to_bytes().to_vec();
        frame::write_frame(&mut bytes, b"last word").unwrap();
        control.write_all(&bytes).unwrap();
        // The end is noticed before the message, because both arrived between two polls.
        child.is_ending = true;
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), Some(&b"last word"[..]));
        assert!(matches!(next(&mut child).await, Sign::LinkClosed));
        child.kill(Signal::Kill);
    }

    #[tokio::test]
    async fn one_that_is_left_alive_says_again_what_it_said_once_and_then_what_nobody_has_heard() {
        let (mut child, mut control, line) = child().await;
        // The process of the test is not its own child.
        child.pid = child.process.pid();
        let terms = Terms::new(load_order(), true);
        let frame = |word: &[u8]| {
            let mut frame = Vec::new();
            frame::write_frame(&mut frame, word).unwrap();
            frame
        };
        child.note_word(Once::Hello, b"hello");
        // Each message is kept once, however often a broken child sends it.
        for _ in 0..2 {
            child.note_word(Once::DraftModelStopped, b"no draft model");
        }
        assert!(!child.may_hand_over(), "it is not ready");
        child.note_word(Once::Ready, b"ready");
        let cut = frame(b"a beat");
        let sent = [&Preamble::OURS.to_bytes()[..], &cut[..6]].concat();
        control.write_all(&sent).unwrap();
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), None, "it is not whole");
        assert!(child.may_hand_over());
        let left = child.hand_over(terms).unwrap();
        control.write_all(&cut[6..]).unwrap();

        let note = left.note.clone();
        let descriptors = left
            .descriptors()
            .map(|it| it.try_clone_to_owned().unwrap());
        let descriptors: Vec<_> = descriptors.collect();
        let too_few = LivingChild::from_parts(note.clone(), &mut std::iter::empty());
        assert!(too_few.is_err());
        let found = LivingChild::from_parts(note, &mut descriptors.into_iter()).unwrap();
        drop(left);
        let mut child = Child::resume(found).unwrap();
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), Some(&b"hello"[..]));
        assert_eq!(
            child.next_word().unwrap(),
            None,
            "no order to load was sent"
        );
        child.retell();
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        for expected in [&b"ready"[..], b"no draft model", b"a beat"] {
            loop {
                if let Some(word) = child.next_word().unwrap() {
                    assert_eq!(word, expected);
                    break;
                }
                assert!(matches!(next(&mut child).await, Sign::Stirred));
            }
        }
        drop(line);
        // A socket may become ready once more without a message.
        let mut sign = next(&mut child).await;
        while matches!(sign, Sign::Stirred) {
            sign = next(&mut child).await;
        }
        assert!(matches!(sign, Sign::LinkClosed), "{sign:?}");
        child.kill(Signal::Kill);
        assert!(matches!(next(&mut child).await, Sign::Exited(_)));
    }

    #[tokio::test]
    async fn a_word_on_the_socket_for_descriptors_is_a_failure() {
        let (mut child, _control, mut line) = child().await;
        line.write_all(b"word").unwrap();
        assert!(matches!(next(&mut child).await, Sign::LinkFailed(_)));
        child.kill(Signal::Kill);
    }
}
