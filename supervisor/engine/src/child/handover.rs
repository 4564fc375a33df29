//! Handover of a child when its supervisor executes another program. The child and its sockets remain those of the same
//! process.
//!
//! The next supervisor sees a child that sends `Hello`, and `Ready` as soon as it is ordered to load.

use super::fd_socket::{FdSocket, LateFdSocket};
use super::link::Link;
use super::output::Outputs;
use super::{Child, Line};
use crate::handoff::living::{LivingChild, Part, Terms};
use std::io;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_process::reap::Process;

/// Messages that a child sends only once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Once {
    Hello,
    Ready,
    DraftModelStopped,
}

/// Frames of those messages.
#[derive(Debug, Default)]
pub(super) struct Said {
    hello: Vec<u8>,
    ready: Vec<u8>,
    /// Follows `Ready`.
    draft_model_stopped: Vec<u8>,
}

impl Child {
    /// Stores a message that the child sends only once, for [`hand_over`](Self::hand_over).
    pub(crate) fn note_word(&mut self, word: Once, payload: &[u8]) {
        let mut frame = Vec::with_capacity(payload.len() + 4);
        // The payload came in a frame, so it fits into one.
        drop(write_frame(&mut frame, payload));
        match word {
            Once::Hello => self.said.hello = frame,
            Once::Ready => self.said.ready = frame,
            Once::DraftModelStopped => self.said.draft_model_stopped = frame,
        }
    }

    /// True if no command is unwritten and the child has sent `Ready`.
    #[must_use]
    pub(crate) fn may_hand_over(&self) -> bool {
        let is_quiet = matches!(&self.line, Line::Open(link) if link.is_quiet());
        is_quiet && !self.is_ending && !self.said.ready.is_empty()
    }

    /// Hands the child over to another supervisor, alive.
    ///
    /// # Errors
    /// If the kernel has no descriptor, or the child [may not be handed over](Self::may_hand_over). The child ends then.
    pub(crate) fn hand_over(self, terms: Terms) -> io::Result<LivingChild> {
        let open = match &self.line {
            Line::Open(link) => link.hand_over(),
            Line::Waiting(_) | Line::Closed => None,
        };
        let (control, unheard) = open.ok_or(io::ErrorKind::NotConnected)?;
        let rest = [&self.said.ready, &self.said.draft_model_stopped, unheard].concat();
        let words: [&[u8]; 2] = [&self.said.hello, &rest];
        let mut living = LivingChild::new(self.pid, self.generation, terms, words)?;
        living.add(Part::Control, control);
        let fd_socket = self.fd_socket.as_ref().and_then(FdSocket::hand_over);
        let others = [
            (Part::FdSocket, fd_socket),
            (
                Part::LateFdSocket,
                self.late_fd_socket.map(LateFdSocket::hand_over),
            ),
            (Part::Stdout, self.outputs.stdout),
            (Part::Stderr, self.outputs.stderr),
        ];
        for (part, descriptor) in others {
            if let Some(descriptor) = descriptor {
                living.add(part, descriptor);
            }
        }
        self.process.hand_over();
        Ok(living)
    }

    /// Takes over a child of this process.
    ///
    /// # Errors
    /// If a part is missing, or the kernel does not allow a watch on the child. The child ends then.
    pub(crate) fn resume(mut living: LivingChild) -> io::Result<Self> {
        let (generation, pid) = (living.note.generation, living.note.pid);
        // Any failure from here on kills the child.
        let process = match Process::resume(pid) {
            Ok(process) => process,
            Err(error) => {
                living.kill();
                return Err(error);
            }
        };
        let (hello, retold) = living.take_words()?;
        let link = Link::resume(living.take(Part::Control)?, &hello)?;
        let fd_socket = living.take(Part::FdSocket).and_then(FdSocket::resume);
        let outputs = Outputs {
            stdout: living.take(Part::Stdout).ok(),
            stderr: living.take(Part::Stderr).ok(),
        };
        outputs.log(generation)?;
        Ok(Self {
            generation,
            pid,
            process,
            line: Line::Open(link),
            fd_socket: fd_socket.ok(),
            late_fd_socket: living
                .take(Part::LateFdSocket)
                .ok()
                .map(LateFdSocket::resume),
            outputs,
            is_ending: false,
            said: Said::default(),
            retold: Some(retold),
            is_stirred: true,
        })
    }

    /// True if the child has loaded under another supervisor.
    #[must_use]
    pub(crate) fn has_loaded(&self) -> bool {
        self.retold.is_some()
    }

    /// Replays the child's `Ready`, and what followed it.
    pub(crate) fn retell(&mut self) {
        if let (Some(retold), Line::Open(link)) = (self.retold.take(), &mut self.line) {
            link.hear_again(&retold);
            self.is_stirred = true;
        }
    }
}
