//! Handoff through `exec`: a memfd as descriptor 0, and descriptors that stay open.
//!
//! ```text
//! descriptor 0 ─► ┌───────┬──────────────────────────────────────────┬──────────┐
//!   (a memfd)     │ magic │ label: numbers of the descriptors, as    │ document │
//!                 │       │ they are in this process before and after│          │
//!                 └───────┴──────────────────────────────────────────┴──────────┘
//! ```
//!
//! No descriptor is sent, so the kernel's limit of descriptors in flight per user does not limit the handoff.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::unistd::close;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::Duration;

const MAGIC: [u8; 8] = *b"orcdpass";

/// Length of the magic and of the label's length.
const HEAD_BYTES: usize = 16;

/// Descriptors in flight at one time while a program takes ownership of its own by number.
const AT_ONCE: usize = 32;

/// Maximum number of pauses while other processes of the user have too many descriptors in flight.
const PAUSES: usize = 200;

const PAUSE: Duration = Duration::from_millis(5);

/// Data for the next program besides the document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// True if the first descriptor is the old program, for a return if the next one cannot continue.
    pub has_program: bool,
    /// Number of connections, which are the last descriptors.
    pub connections: usize,
    /// Arguments and environment with which the old program was started.
    pub arguments: Vec<OsString>,
    pub variables: Vec<(OsString, OsString)>,
    /// Reason why the next program did not continue. Only the old program reads it, after its return.
    pub undone: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Numbered {
    label: Label,
    numbers: Vec<RawFd>,
}

/// Handoff as received.
#[derive(Debug)]
pub struct Passage {
    pub label: Label,
    pub document: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Creates a memfd for descriptor 0 of the next program.
///
/// # Errors
/// If the kernel has no memory or no descriptor.
pub fn pack(label: &Label, document: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let numbered = Numbered {
        label: label.clone(),
        numbers: descriptors.iter().map(|it| it.as_raw_fd()).collect(),
    };
    let numbered = serde_json::to_vec(&numbered)?;
    let mut memory = File::from(memfd_create("worker-orcd-passage", MemfdFlags::CLOEXEC)?);
    memory.write_all(&MAGIC)?;
    memory.write_all(&(numbered.len() as u64).to_le_bytes())?;
    memory.write_all(&numbered)?;
    memory.write_all(document)?;
    Ok(memory.into())
}

/// Sets whether descriptors stay open across `exec`.
///
/// # Errors
/// If a descriptor is invalid.
pub fn keep_open(descriptors: &[BorrowedFd<'_>], is_kept: bool) -> io::Result<()> {
    for descriptor in descriptors {
        let mut flags = fcntl_getfd(descriptor)?;
        flags.set(FdFlags::CLOEXEC, !is_kept);
        fcntl_setfd(descriptor, flags)?;
    }
    Ok(())
}

/// Reads the handoff of the previous program. `None`: the descriptor has other content. The descriptors of the handoff
/// are close-on-exec from here on.
///
/// # Errors
/// If the handoff is incomplete.
pub fn unpack(memory: &File) -> io::Result<Option<Passage>> {
    let metadata = memory.metadata()?;
    let mut head = [0; HEAD_BYTES];
    if !metadata.is_file() || metadata.len() < HEAD_BYTES as u64 {
        return Ok(None);
    }
    memory.read_exact_at(&mut head, 0)?;
    let (magic, length) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return Ok(None);
    }
    let read = |from: u64, length: u64| -> io::Result<Vec<u8>> {
        let too_long = |_| io::Error::from(ErrorKind::InvalidData);
        let mut bytes = vec![0; usize::try_from(length).map_err(too_long)?];
        memory.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    };
    let length = length.iter().rev();
    let length = length.fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let label_end = (HEAD_BYTES as u64).saturating_add(length);
    let document_bytes = metadata.len().checked_sub(label_end);
    let document_bytes = document_bytes.ok_or(ErrorKind::UnexpectedEof)?;
    let numbered: Numbered = serde_json::from_slice(&read(HEAD_BYTES as u64, length)?)?;
    let document = read(label_end, document_bytes)?;
    Ok(Some(Passage {
        label: numbered.label,
        document,
        descriptors: own(&numbered.numbers)?,
    }))
}

/// Takes ownership of descriptors of this process by number.
fn own(numbers: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    let (sender, receiver) = UnixDatagram::pair()?;
    let mut owned = Vec::with_capacity(numbers.len());
    for some in numbers.chunks(AT_ONCE) {
        send(&sender, some)?;
        let received = receive(&receiver)?;
        if received.len() != some.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        owned.extend(received);
        // The kernel has created duplicates.
        for number in some {
            close(*number)?;
        }
    }
    Ok(owned)
}

fn send(socket: &UnixDatagram, numbers: &[RawFd]) -> io::Result<()> {
    let message = [ControlMessage::ScmRights(numbers)];
    for _ in 0..PAUSES {
        let (bytes, flags) = ([IoSlice::new(&[0])], MsgFlags::MSG_DONTWAIT);
        match sendmsg::<()>(socket.as_raw_fd(), &bytes, &message, flags, None) {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::ETOOMANYREFS) => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Err(nix::errno::Errno::ETOOMANYREFS.into())
}

fn receive(socket: &UnixDatagram) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut [0])],
        &mut control,
        flags,
    )?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(rustix::io::Errno::MFILE.into()),
        false => Ok(descriptors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::{AsFd as _, IntoRawFd as _};

    #[test]
    fn descriptors_are_found_by_their_numbers_and_closed_to_other_programs() {
        let mut writers = Vec::new();
        let mut readers = Vec::new();
        for _ in 0..100 {
            let (reader, writer) = io::pipe().unwrap();
            readers.push(OwnedFd::from(reader));
            writers.push(writer);
        }
        let borrowed: Vec<_> = readers.iter().map(|it| it.as_fd()).collect();
        keep_open(&borrowed, true).unwrap();
        let label = Label {
            connections: 7,
            ..Label::default()
        };
        let document = vec![b'a'; 3 << 20];
        let memory = File::from(pack(&label, &document, &borrowed).unwrap());
        // Descriptors without an owner, as after `exec`.
        for reader in readers {
            let _ = reader.into_raw_fd();
        }

        let passage = unpack(&memory).unwrap().expect("a passage");
        assert_eq!(passage.label, label);
        assert!(passage.document == document);
        for (number, (mut writer, reader)) in
            (0_u8..).zip(writers.into_iter().zip(passage.descriptors))
        {
            let flags = fcntl_getfd(&reader).unwrap();
            assert!(flags.contains(FdFlags::CLOEXEC));
            writer.write_all(&[number]).unwrap();
            drop(writer);
            let mut read = Vec::new();
            File::from(reader).read_to_end(&mut read).unwrap();
            assert_eq!(read, [number]);
        }
    }

    #[test]
    fn what_is_no_passage_is_left_alone_and_one_that_is_not_whole_is_refused() {
        assert!(unpack(&File::open("/dev/null").unwrap()).unwrap().is_none());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a file from another process").unwrap();
        assert!(unpack(&file).unwrap().is_none());
        let mut cut = tempfile::tempfile().unwrap();
        cut.write_all(&MAGIC).unwrap();
        cut.write_all(&1000_u64.to_le_bytes()).unwrap();
        assert!(unpack(&cut).is_err());
    }
}
