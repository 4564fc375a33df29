//! Handoff bundle: a document and descriptors in the queue of a socket, for the socket's next owner.
//!
//! ```text
//! sender ── magic, count + document (a memfd), descriptors ──►┌────────┐
//!        ── more descriptors ────────────────────────────────►│ socket │──► its next owner
//!                                                             └────────┘
//! ```
//!
//! The queue outlives the sender's end and the sender. One descriptor thus carries any number of others, including
//! kinds that only a socket can transfer.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixDatagram;

const MAGIC: [u8; 8] = *b"orcdbndl";

/// Descriptors in one message. The kernel's limit is 253 (`SCM_MAX_FD`).
const PER_MESSAGE: usize = 250;

/// Maximum document size in bytes. Actual documents have some kilobytes, but a sparse file could claim any size.
const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Bundle as received.
#[derive(Debug)]
pub struct Bundle {
    pub document: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Puts duplicates of the descriptors, and the document, into a socket.
///
/// # Errors
/// If the kernel has no memory or no descriptor.
pub fn pack(document: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<UnixDatagram> {
    let (sender, bundle) = UnixDatagram::pair()?;
    let mut memory = File::from(memfd_create("worker-orcd-bundle", MemfdFlags::CLOEXEC)?);
    memory.write_all(document)?;
    let all: Vec<_> = [memory.as_fd()]
        .into_iter()
        .chain(descriptors.iter().copied())
        .collect();
    let count = (all.len() as u64).to_le_bytes();
    let mut label = &[MAGIC, count].concat()[..];
    for some in all.chunks(PER_MESSAGE) {
        send(&sender, label, some)?;
        label = &[0];
    }
    Ok(bundle)
}

/// Reads the bundle of a socket. A bundle of one message stays in the queue, for the next process if this one ends
/// before it has made another bundle.
///
/// # Errors
/// [`ErrorKind::WouldBlock`] if the queue is empty, and [`ErrorKind::InvalidData`] for anything but a complete bundle.
pub fn unpack(bundle: &UnixDatagram) -> io::Result<Bundle> {
    let invalid = |what| io::Error::new(ErrorKind::InvalidData, what);
    let mut label = [0; 16];
    let (bytes, mut descriptors) = receive(bundle, &mut label, RecvFlags::PEEK)?;
    let (magic, count) = label.split_at(MAGIC.len());
    if bytes != label.len() || magic != MAGIC {
        return Err(invalid("no bundle of this program"));
    }
    let count = count
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if descriptors.len() as u64 != count {
        descriptors = receive(bundle, &mut label, RecvFlags::empty())?.1;
    }
    while (descriptors.len() as u64) < count {
        let (_, some) = receive(bundle, &mut [0], RecvFlags::empty())?;
        if some.is_empty() {
            return Err(invalid("a bundle that is not whole"));
        }
        descriptors.extend(some);
    }
    if descriptors.is_empty() {
        return Err(invalid("a bundle without a document"));
    }
    let memory = File::from(descriptors.remove(0));
    let length = memory.metadata()?.len();
    if length > MAX_DOCUMENT_BYTES {
        return Err(invalid("a bundle whose document is too long"));
    }
    let length = usize::try_from(length).map_err(|_| invalid("too long"))?;
    let mut document = vec![0; length];
    memory.read_exact_at(&mut document, 0)?;
    Ok(Bundle {
        document,
        descriptors,
    })
}

fn send(socket: &UnixDatagram, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no space for descriptors"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

fn receive(
    socket: &UnixDatagram,
    bytes: &mut [u8],
    how: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = how | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _};

    #[test]
    fn everything_arrives_although_the_sender_is_gone() {
        let files: Vec<File> = (0..600)
            .map(|number| {
                let mut file = tempfile::tempfile().unwrap();
                write!(file, "{number}").unwrap();
                file
            })
            .collect();
        let descriptors: Vec<_> = files.iter().map(File::as_fd).collect();
        let document = vec![b'a'; 3 << 20];
        let bundle = pack(&document, &descriptors).unwrap();
        drop(files);

        let Bundle {
            document: read,
            descriptors,
        } = unpack(&bundle).unwrap();
        assert!(read == document);
        let contents = descriptors.into_iter().map(|descriptor| {
            let mut file = File::from(descriptor);
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            text
        });
        assert!(contents.eq((0..600).map(|number: u32| number.to_string())));
    }

    #[test]
    fn a_small_one_is_there_again_for_the_next() {
        let file = tempfile::tempfile().unwrap();
        let bundle = pack(b"a document", &[file.as_fd()]).unwrap();
        for _ in 0..3 {
            let read = unpack(&bundle).unwrap();
            assert_eq!(read.document, b"a document");
            assert_eq!(read.descriptors.len(), 1);
        }
    }

    #[test]
    fn a_document_that_is_sparse_and_too_long_is_refused_and_not_read() {
        let (sender, bundle) = UnixDatagram::pair().unwrap();
        let memory = tempfile::tempfile().unwrap();
        memory.set_len(1 << 40).unwrap();
        let label = [MAGIC, 1_u64.to_le_bytes()].concat();
        send(&sender, &label, &[memory.as_fd()]).unwrap();
        let error = unpack(&bundle).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn what_is_no_bundle_is_refused_and_nothing_is_waited_for() {
        let (sender, socket) = UnixDatagram::pair().unwrap();
        assert_eq!(unpack(&socket).unwrap_err().kind(), ErrorKind::WouldBlock);
        sender.send(b"hello").unwrap();
        assert_eq!(unpack(&socket).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
