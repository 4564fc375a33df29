//! A running child that outlives the exec of its supervisor: it remains a child of the same process.
//!
//! Its handoff includes the messages that it sends only once.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use worker_orcd_ipc::{Generation, LoadOrder, PROTOCOL_VERSION};

#[derive(Debug)]
pub(crate) struct LivingChild {
    pub(crate) note: ChildNote,
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildNote {
    pub(crate) pid: u32,
    pub(crate) generation: Generation,
    pub(crate) terms: Terms,
    /// Length of the `Hello` frame in [`Part::Words`]. Its `Ready` frame and unread bytes follow; the last frame may be
    /// incomplete.
    pub(crate) hello_bytes: u64,
    parts: Vec<Part>,
}

/// Settings of a child's start. A supervisor with different terms starts a new child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) protocol: u16,
    /// Load order of all children of its supervisor.
    pub(crate) load: LoadOrder,
    pub(crate) confined: bool,
}

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Words,
    Control,
    FdSocket,
    LateFdSocket,
    Recorder,
    Stdout,
    Stderr,
}

impl Terms {
    /// Terms of this supervisor's children.
    #[must_use]
    pub(crate) fn new(load: LoadOrder, confined: bool) -> Self {
        Self {
            protocol: PROTOCOL_VERSION,
            load,
            confined,
        }
    }
}

impl LivingChild {
    /// # Errors
    /// If the kernel has no memory or no descriptor for the frames.
    pub(crate) fn new(
        pid: u32,
        generation: Generation,
        terms: Terms,
        [hello, rest]: [&[u8]; 2],
    ) -> io::Result<Self> {
        let mut words = File::from(memfd_create("worker-orcd-words", MemfdFlags::CLOEXEC)?);
        words.write_all(hello)?;
        words.write_all(rest)?;
        let note = ChildNote {
            pid,
            generation,
            terms,
            hello_bytes: hello.len() as u64,
            parts: vec![Part::Words],
        };
        Ok(Self {
            note,
            descriptors: vec![words.into()],
        })
    }

    pub(crate) fn add(&mut self, part: Part, descriptor: OwnedFd) {
        self.note.parts.push(part);
        self.descriptors.push(descriptor);
    }

    /// # Errors
    /// [`ErrorKind::NotFound`] if no descriptor of this kind is left.
    pub(crate) fn take(&mut self, part: Part) -> io::Result<OwnedFd> {
        let place = self.note.parts.iter().position(|it| *it == part);
        let place = place.ok_or(ErrorKind::NotFound)?;
        self.note.parts.remove(place);
        Ok(self.descriptors.remove(place))
    }

    /// `Hello` frame, and all later bytes.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) fn take_words(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let words = File::from(self.take(Part::Words)?);
        let too_long = |_| io::Error::from(ErrorKind::InvalidData);
        let length = usize::try_from(words.metadata()?.len()).map_err(too_long)?;
        let mut hello = vec![0; length];
        words.read_exact_at(&mut hello, 0)?;
        let hello_bytes = usize::try_from(self.note.hello_bytes).map_err(too_long)?;
        let is_there = hello_bytes <= hello.len();
        let rest = is_there.then(|| hello.split_off(hello_bytes));
        Ok((hello, rest.ok_or(ErrorKind::InvalidData)?))
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.iter().map(|it| it.as_fd())
    }

    /// # Errors
    /// If there are fewer descriptors than the note requires.
    pub(crate) fn from_parts(
        note: ChildNote,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let descriptors: Vec<_> = descriptors.take(note.parts.len()).collect();
        match descriptors.len() == note.parts.len() {
            true => Ok(Self { note, descriptors }),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Kills a child that is not taken over. Returns its process id for the wait.
    pub(crate) fn kill(self) -> u32 {
        let pid = i32::try_from(self.note.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The process is not waited for yet, so the id is its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.note.pid
    }
}
