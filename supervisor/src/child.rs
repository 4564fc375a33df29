//! One child process: made, heard, written to, and buried.
//!
//! * [`nursery`] children in the making: [`spawn`] the thread that makes processes, [`confinement`] what a
//!   process is allowed, [`socket`] the private place where a child connects, [`custody`] the other one, for descriptors,
//!   [`flight_recorder`] its stdin, which it writes to and which outlives it; [`leftovers`] such places
//!   of dead supervisors;
//! * [`link`] frames in both directions; [`output`] its stdout and stderr, as log lines;
//! * [`reap`] the process itself, its death and its group; [`oom`] whose SIGKILL it was;
//! * [`probe`] what its program says of a device before there is any child;
//! * [`succession`] how a child lives on when its supervisor becomes another program.
//!
//! [`Child`] puts them together for the driver: [`Child::next`] says what happened next, and
//! nothing here ever waits for the child without the driver being able to do something else.
//!
//! Deliberately absent: decisions. What a sign means is the lifecycle's business.

pub(crate) mod confinement;
pub(crate) mod custody;
pub(crate) mod flight_recorder;
mod leftovers;
pub(crate) mod link;
pub(crate) mod nursery;
mod oom;
pub(crate) mod output;
pub(crate) mod probe;
pub(crate) mod reap;
pub(crate) mod socket;
pub(crate) mod spawn;
pub(crate) mod succession;

use crate::child::custody::{Custody, Mailbox};
use crate::child::link::{Link, LinkError, is_hang_up};
use crate::child::output::Outputs;
use crate::child::reap::Process;
use crate::child::socket::Door;
use crate::child::succession::Said;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use tracing::warn;
use worker_orcd_ipc::{Command, FdKind, Generation};
use worker_orcd_lifecycle::{Exit, Signal};

/// A child of one generation, from the moment its process exists.
#[derive(Debug)]
pub(crate) struct Child {
    pub generation: Generation,
    pub pid: u32,
    process: Process,
    line: Line,
    custody: Option<Custody>,
    mailbox: Option<Mailbox>,
    outputs: Outputs,
    /// All its threads are ending; what it has said before is still to be read.
    is_ending: bool,
    /// What it says once, in frames.
    said: Said,
    /// What it has said to another supervisor behind its hello, to be heard when it is told to load.
    retold: Option<Vec<u8>>,
    /// There is something to hear that no socket tells of.
    is_stirred: bool,
}

#[derive(Debug)]
enum Line {
    /// A door at which nobody has connected yet.
    Waiting(Door),
    Open(Link),
    Closed,
}

/// Things that can be noticed about a child, besides its words.
#[derive(Debug)]
pub(crate) enum Sign {
    /// Bytes came or left; [`Child::next_word`] may have something.
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
        custody: Option<Custody>,
        outputs: Outputs,
    ) -> Self {
        let pid = process.pid();
        Self {
            generation,
            pid,
            process,
            line: Line::Waiting(door),
            custody,
            mailbox: None,
            outputs,
            is_ending: false,
            said: Said::default(),
            retold: None,
            is_stirred: false,
        }
    }

    /// What it handed over next, if anything; does not wait.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when it is nothing that is kept.
    pub(crate) fn take(&mut self) -> io::Result<Option<(FdKind, OwnedFd)>> {
        match &mut self.custody {
            Some(custody) => custody.take(self.pid),
            None => Ok(None),
        }
    }

    /// Gives it something of an earlier child; does not wait.
    ///
    /// # Errors
    /// When there is nobody to take it.
    pub(crate) fn hand_out(&mut self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        match &mut self.custody {
            Some(custody) => custody.hand_out(self.pid, article, descriptor),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Gives it the end of a socket through which it gets more while it serves; does not wait.
    ///
    /// # Errors
    /// When there is nobody to take it.
    pub(crate) fn open_mailbox(&mut self) -> io::Result<()> {
        let (ours, theirs) = Mailbox::open()?;
        self.hand_out(FdKind::SecondSocket, &theirs)?;
        self.mailbox = Some(ours);
        Ok(())
    }

    /// Puts something of another child there; does not wait. The child is to be told.
    ///
    /// # Errors
    /// When it has no mailbox, or that is full.
    pub(crate) fn put(&self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        let mailbox = self.mailbox.as_ref();
        let none = || io::Error::from(io::ErrorKind::NotConnected);
        mailbox.ok_or_else(none)?.put(article, descriptor)
    }

    /// Nothing more is handed over or out here: from now on the socket for descriptors tells of the child's end.
    pub(crate) fn watch_custody(&mut self) {
        if let Some(custody) = &mut self.custody
            && let Err(error) = custody.watch(self.pid)
        {
            warn!(%error, "custody_socket_not_watched");
        }
    }

    /// Waits for the next sign. Cancel-safe: a sign that was not returned is not lost.
    ///
    /// A connection is reported before an exit that came after it: without one by then, there
    /// will never be one.
    pub(crate) async fn next(&mut self) -> Sign {
        if std::mem::take(&mut self.is_stirred) {
            return Sign::Stirred;
        }
        if !self.is_ending {
            tokio::select! {
                biased;
                sign = self.line.next(self.pid) => return sign,
                outcome = ended(self.custody.as_ref()) => match outcome {
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

    /// The next whole message that has been read, undecoded.
    ///
    /// # Errors
    /// When what the child sent is not a frame of this protocol.
    pub(crate) fn next_word(&mut self) -> Result<Option<&[u8]>, LinkError> {
        match &mut self.line {
            Line::Open(link) => link.next_frame(),
            Line::Waiting(_) | Line::Closed => Ok(None),
        }
    }

    /// Queues a command; never blocks. Without a link there is nobody to hear it, which the
    /// lifecycle knows or will be told.
    ///
    /// # Errors
    /// When more is queued than any honest reader would leave unread.
    pub(crate) fn send(&mut self, command: &Command) -> Result<(), LinkError> {
        match &mut self.line {
            Line::Open(link) => link.send(command),
            Line::Waiting(_) | Line::Closed => Ok(()),
        }
    }

    /// Sends commands as they come, as far as the child keeps up with reading; when there is room
    /// for more, [`Self::next`] has a sign. Without a link they go where those of [`Self::send`] go.
    ///
    /// # Errors
    /// As those of [`Self::send`].
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

    /// The moment at which the bytes that wait to be written will have waited too long.
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
        self.process.kill(signal);
    }

    /// True for a child that SIGSTOP or a debugger has stopped.
    #[must_use]
    pub(crate) fn is_stopped(&self) -> bool {
        self.process.is_stopped()
    }
}

/// Never, where there is no socket to tell it.
async fn ended(custody: Option<&Custody>) -> io::Result<()> {
    match custody {
        Some(custody) => custody.ended().await,
        None => std::future::pending().await,
    }
}

impl Line {
    async fn next(&mut self, pid: u32) -> Sign {
        match self {
            Self::Waiting(door) => match door.accept(pid).await.map(Link::new) {
                Ok(link) => {
                    // The door is dropped here: nobody else connects, and its name is gone.
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

    /// What is left of the words of a child that is ending, and then their end; without waiting.
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
            // How a socket ends when its owner is killed with unread commands.
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
    use crate::child::socket::PrivateDir;
    use crate::child::succession::Once;
    use crate::engine::testing::load_order;
    use crate::estate::living::{LivingChild, Terms};
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt as _;
    use std::time::Duration;
    use worker_orcd_ipc::{Preamble, frame};

    /// A child whose ends of both sockets are the test's, and another process that stays alive.
    async fn child() -> (Child, UnixStream, UnixStream) {
        let (generation, me) = (Generation(1), std::process::id());
        let dir = PrivateDir::create().unwrap();
        let door = dir.open_door(generation).unwrap();
        let control = UnixStream::connect(door.path()).unwrap();
        let link = Link::new(door.accept(me).await.unwrap());
        let custody = dir.open_custody(generation).unwrap();
        let line = UnixStream::connect(custody.path().unwrap()).unwrap();
        let sleeper = std::process::Command::new("sleep")
            .arg("3600")
            .process_group(0)
            .spawn();
        let mut child = Child {
            generation,
            pid: me,
            process: Process::new(sleeper.unwrap()).unwrap(),
            line: Line::Open(link),
            custody: Some(custody),
            mailbox: None,
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
        child.watch_custody();
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
        // Seen before the words are: both came between two looks.
        child.is_ending = true;
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), Some(&b"last word"[..]));
        assert!(matches!(next(&mut child).await, Sign::LinkClosed));
        child.kill(Signal::Kill);
    }

    #[tokio::test]
    async fn one_that_is_left_alive_says_again_what_it_said_once_and_then_what_nobody_has_heard() {
        let (mut child, mut control, line) = child().await;
        // The test's own process is no child of it.
        child.pid = child.process.pid();
        let terms = Terms::new(load_order(), true);
        let frame = |word: &[u8]| {
            let mut frame = Vec::new();
            frame::write_frame(&mut frame, word).unwrap();
            frame
        };
        assert!(!child.may_leave(), "it is not ready");
        child.note_word(Once::Hello, b"hello");
        child.note_word(Once::Ready, b"ready");
        let cut = frame(b"a beat");
        let sent = [&Preamble::OURS.to_bytes()[..], &cut[..6]].concat();
        control.write_all(&sent).unwrap();
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), None, "it is not whole");
        assert!(child.may_leave());
        let left = child.leave(terms).unwrap();
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
        assert_eq!(child.next_word().unwrap(), Some(&b"ready"[..]));
        assert!(matches!(next(&mut child).await, Sign::Stirred));
        assert_eq!(child.next_word().unwrap(), Some(&b"a beat"[..]));
        drop(line);
        // A socket may stir once more than it has words.
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
