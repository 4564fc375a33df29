//! A child that lives on while its supervisor becomes another program: it is a child of the same process
//! before and after.
//!
//! What it has said of itself goes along, for it says so once.

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
    /// Of the frames that it has sent, those that another supervisor has to hear: its hello, its report that it is
    /// ready, and what nobody has heard yet, of which the last may not be whole.
    pub(crate) hello_bytes: u64,
    parts: Vec<Part>,
}

/// What a child was made for. Another supervisor that asks for anything else makes a new one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) protocol: u16,
    /// As every child of its supervisor is ordered to.
    pub(crate) load: LoadOrder,
    pub(crate) confined: bool,
}

/// The meaning of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Words,
    Control,
    Custody,
    Mailbox,
    Recorder,
    Stdout,
    Stderr,
}

impl Terms {
    /// Those of children of this supervisor.
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
    /// When the kernel has no memory or no descriptor for what it has said.
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
    /// [`ErrorKind::NotFound`] when it has no such part, or not any more.
    pub(crate) fn take(&mut self, part: Part) -> io::Result<OwnedFd> {
        let place = self.note.parts.iter().position(|it| *it == part);
        let place = place.ok_or(ErrorKind::NotFound)?;
        self.note.parts.remove(place);
        Ok(self.descriptors.remove(place))
    }

    /// Its hello, and everything behind it.
    ///
    /// # Errors
    /// When they cannot be read.
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
    /// When there are fewer descriptors than the note says.
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

    /// Ends it, where nobody goes on with it. Who waits for it is told by its process id.
    pub(crate) fn kill(self) -> u32 {
        let pid = i32::try_from(self.note.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It is not waited for yet, so the number is its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.note.pid
    }
}
