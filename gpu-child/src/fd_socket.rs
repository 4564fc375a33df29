//! Descriptor passing between the child and the supervisor: descriptors for the next child go up, those of an earlier
//! child come down.
//!
//! Only the loader uses it; then the [sentinel](crate::sentinel) keeps it open. Descriptors that arrive while the child
//! serves use a second socket of the kind. The end of this socket does not end the process: that of the
//! [control socket](crate::serve) does.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use worker_orcd_ipc::FdKind;

#[derive(Debug)]
pub struct FdSocket {
    stream: UnixStream,
}

impl FdSocket {
    /// Connects to the supervisor.
    ///
    /// # Errors
    /// If there is no listener.
    pub fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(|stream| Self { stream })
    }

    /// The end of a socket that was made for this process.
    #[must_use]
    pub fn of(socket: OwnedFd) -> Self {
        Self {
            stream: socket.into(),
        }
    }

    /// Both ends, for tests.
    #[cfg(test)]
    pub(crate) fn pair() -> (Self, Self) {
        let (one, other) = UnixStream::pair().expect("sockets");
        (Self { stream: one }, Self { stream: other })
    }

    /// A duplicate of this end of the socket.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn line(&self) -> io::Result<OwnedFd> {
        self.stream.try_clone().map(OwnedFd::from)
    }

    /// Sends a duplicate of the descriptor to the supervisor, without waiting for its receipt.
    ///
    /// # Errors
    /// If the socket refuses it.
    pub fn hand_over(&self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(
            control.push(SendAncillaryMessage::ScmRights(&descriptors)),
            "there is space for one"
        );
        let name = [article.to_byte()];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.stream, &[IoSlice::new(&name)], &mut control, flags)?;
        Ok(())
    }

    /// Receives a descriptor that the supervisor sent before the corresponding message.
    ///
    /// # Errors
    /// If there is none, or it is of another kind.
    pub fn take(&self, article: FdKind) -> io::Result<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut name = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = match recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut name)],
            &mut control,
            flags,
        ) {
            Err(Errno::AGAIN) => return Err(io::Error::other("nothing was handed out")),
            outcome => outcome?,
        };
        let mut descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        match (
            message.bytes,
            FdKind::from_byte(name[0]),
            descriptors.next(),
        ) {
            (1, Ok(named), Some(descriptor)) if named == article => Ok(descriptor),
            (bytes, named, descriptor) => Err(io::Error::other(format!(
                "{bytes} bytes that name {named:?}, and {descriptor:?}, instead of {article:?}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_file_crosses_and_outlives_its_name() {
        let (here, there) = FdSocket::pair();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"weights").expect("written");
        here.hand_over(FdKind::ModelFile, file.as_file())
            .expect("handed over");
        file.close().expect("removed");
        let mut taken = File::from(there.take(FdKind::ModelFile).expect("taken"));
        let mut text = String::new();
        taken.rewind().expect("a file");
        taken.read_to_string(&mut text).expect("readable");
        assert_eq!(text, "weights");
    }

    #[test]
    fn what_was_not_handed_out_is_not_waited_for() {
        let (here, there) = FdSocket::pair();
        let error = there.take(FdKind::ModelFile).unwrap_err();
        assert!(error.to_string().contains("nothing was handed out"));
        (&here.stream)
            .write_all(&[1])
            .expect("a name without a descriptor");
        assert!(there.take(FdKind::ModelFile).is_err());
        drop(here);
        assert!(there.take(FdKind::ModelFile).is_err());
    }
}
