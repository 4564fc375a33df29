//! Socket for descriptors: a child hands over the files and memory that a later child needs.
//!
//! ```text
//! control socket      messages, no descriptors   polled by the driver
//! descriptor socket   descriptors, no messages   read after a message that announces them
//! ```
//!
//! The sockets are separate, so a flaw in the message parser gives no access to descriptors. Both accept only the
//! child's own process. No call waits: a child connects before its `Hello` and hands over before its `Ready`, so later
//! descriptors cannot come, and the descriptors sent to it fit into the socket's buffer.
//!
//! This process neither reads nor writes nor maps a retained descriptor.
//!
//! In a ready child only a thread of its own holds the other end (`gpu-child/src/sentinel.rs`). A kill ends that thread
//! before the kernel frees the process's memory. The end of this socket is therefore the first sign of a death by a
//! signal, by milliseconds.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tracing::warn;
use worker_orcd_ipc::FdKind;

/// Descriptor socket of one child. Removes its name when dropped.
#[derive(Debug)]
pub(crate) struct FdSocket {
    /// Path of the socket if this supervisor created it.
    path: Option<PathBuf>,
    line: Line,
}

/// State of the socket. Each has one descriptor.
#[derive(Debug)]
enum Line {
    Listening(UnixListener),
    Connected(UnixStream),
    /// The exchange is over. Only the end is still to come.
    Watched(tokio::net::UnixStream),
}

impl FdSocket {
    /// Creates the socket at `path`.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            path: Some(path),
            line: Line::Listening(listener),
        })
    }

    /// Socket of a child that was ready under another supervisor, to be [watched](Self::ended).
    ///
    /// # Errors
    /// If the runtime does not accept it.
    pub(crate) fn resume(watched: OwnedFd) -> io::Result<Self> {
        let stream = tokio::net::UnixStream::from_std(UnixStream::from(watched))?;
        Ok(Self {
            path: None,
            line: Line::Watched(stream),
        })
    }

    /// Descriptor for [`resume`](Self::resume). `None`: the socket is not watched.
    pub(crate) fn hand_over(&self) -> Option<OwnedFd> {
        match &self.line {
            Line::Watched(stream) => stream.as_fd().try_clone_to_owned().ok(),
            Line::Listening(_) | Line::Connected(_) => None,
        }
    }

    #[must_use]
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Next descriptor that process `pid` has handed over, if any. Does not wait.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for an unknown descriptor, [`Errno::MFILE`] if this process has no free
    /// descriptor number for it.
    pub(crate) fn take(&mut self, pid: u32) -> io::Result<Option<(FdKind, OwnedFd)>> {
        let Some(connection) = self.connection(pid)? else {
            return Ok(None);
        };
        let Some((name, descriptor)) = receive(connection)? else {
            return Ok(None);
        };
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
        let (Ok(article), Some(descriptor)) = (FdKind::from_byte(name), descriptor) else {
            return Err(invalid(format!(
                "a name of {name} instead of something that is kept"
            )));
        };
        // Only the type is checked, not the content.
        let file = File::from(descriptor);
        if article == FdKind::ModelFile && !file.metadata()?.is_file() {
            let message = "the model file that was handed over is not a regular file";
            return Err(invalid(message.to_owned()));
        }
        Ok(Some((article, file.into())))
    }

    /// Sends a duplicate to process `pid`.
    ///
    /// # Errors
    /// If the process has not connected, or the socket is full.
    pub(crate) fn hand_out(
        &mut self,
        pid: u32,
        article: FdKind,
        descriptor: &impl AsFd,
    ) -> io::Result<()> {
        let Some(connection) = self.connection(pid)? else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        send(connection, article, descriptor)
    }

    /// Starts the watch of [`ended`](Self::ended) on the child's end of the socket. Called when the child is ready.
    ///
    /// # Errors
    /// If the runtime does not accept the socket. The end is then not noticed here.
    pub(crate) fn watch(&mut self, pid: u32) -> io::Result<()> {
        let Some(connection) = self.connection(pid)? else {
            return Ok(());
        };
        let connection = connection.try_clone()?;
        connection.set_nonblocking(true)?;
        self.line = Line::Watched(tokio::net::UnixStream::from_std(connection)?);
        Ok(())
    }

    /// Waits for the child to close its end. Cancel-safe.
    ///
    /// # Errors
    /// If the child sends data instead.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        let Line::Watched(stream) = &self.line else {
            return std::future::pending().await;
        };
        loop {
            let readable = stream.readable().await;
            let outcome = readable.and_then(|()| stream.try_read(&mut [0]));
            let nothing_yet = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            match outcome {
                Ok(1..) => {
                    let message = "a word on the socket for descriptors, after Ready";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                Err(error) if nothing_yet(&error) => {}
                Ok(0) | Err(_) => return Ok(()),
            }
        }
    }

    /// Connection of process `pid`, if it has connected. All other processes are rejected.
    fn connection(&mut self, pid: u32) -> io::Result<Option<&UnixStream>> {
        while let Line::Listening(listener) = &self.line {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            let peer = sockopt::socket_peercred(&stream)?;
            let (peer, uid) = (peer.pid.as_raw_nonzero().get(), peer.uid);
            if u32::try_from(peer) == Ok(pid) && uid == rustix::process::geteuid() {
                self.line = Line::Connected(stream);
            } else {
                warn!(pid = peer, "fd_socket_peer_rejected");
            }
        }
        match &self.line {
            Line::Connected(stream) => Ok(Some(stream)),
            Line::Listening(_) | Line::Watched(_) => Ok(None),
        }
    }
}

impl Drop for FdSocket {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // The directory is removed later with its content.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// This process's end of the second socket, for descriptors to a serving child.
#[derive(Debug)]
pub(crate) struct LateFdSocket(UnixStream);

impl LateFdSocket {
    /// Creates the pair and returns the child's end too.
    ///
    /// # Errors
    /// If the kernel has no socket.
    pub(crate) fn open() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self(ours), theirs.into()))
    }

    /// Takes over the socket of another supervisor.
    pub(crate) fn resume(socket: OwnedFd) -> Self {
        Self(socket.into())
    }

    /// Descriptor for [`resume`](Self::resume).
    pub(crate) fn hand_over(self) -> OwnedFd {
        self.0.into()
    }

    /// Sends a duplicate. The child takes it at the command that announces it.
    ///
    /// # Errors
    /// If the socket is full.
    pub(crate) fn put(&self, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
        send(&self.0, article, descriptor)
    }
}

fn send(connection: &UnixStream, article: FdKind, descriptor: &impl AsFd) -> io::Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no space for a descriptor"));
    }
    let name = [article.to_byte()];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(connection, &[IoSlice::new(&name)], &mut control, flags)?;
    Ok(())
}

/// A name byte and its descriptor. `None`: nothing has arrived.
fn receive(connection: &UnixStream) -> io::Result<Option<(u8, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut buffers = [IoSliceMut::new(&mut name)];
    let received = match recvmsg(connection, &mut buffers, &mut control, flags) {
        Err(Errno::AGAIN) => return Ok(None),
        outcome => outcome?,
    };
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptor = descriptors.next();
    // The kernel drops a descriptor without a free number or without space.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    Ok((received.bytes > 0).then_some((name[0], descriptor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};

    fn fd_socket() -> (tempfile::TempDir, FdSocket, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let fd_socket = FdSocket::open(dir.path().join("1.fds")).unwrap();
        let child = UnixStream::connect(fd_socket.path().unwrap()).unwrap();
        (dir, fd_socket, child)
    }

    fn hand_over(child: &UnixStream, name: u8, descriptor: impl std::os::fd::AsFd) {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(
            child,
            &[IoSlice::new(&[name])],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }

    #[test]
    fn a_file_is_kept_beyond_its_name_and_handed_out_again() {
        let (_dir, mut fd_socket, child) = fd_socket();
        let me = std::process::id();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"weights").unwrap();
        hand_over(&child, 1, file.as_file());
        file.close().unwrap();
        let (article, kept) = fd_socket.take(me).unwrap().expect("handed over");
        assert_eq!(article, FdKind::ModelFile);
        assert!(fd_socket.take(me).unwrap().is_none(), "once");
        for _ in 0..2 {
            fd_socket.hand_out(me, article, &kept).unwrap();
            let (name, descriptor) = receive(&child).unwrap().expect("handed out");
            assert_eq!(name, 1);
            let mut file = File::from(descriptor.expect("a descriptor"));
            let mut text = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "weights");
        }
    }

    #[tokio::test]
    async fn the_end_is_seen_behind_what_was_handed_over_and_no_sooner() {
        let (dir, mut fd_socket, mut child) = fd_socket();
        let me = std::process::id();
        let file = File::create(dir.path().join("file")).unwrap();
        hand_over(&child, 1, &file);
        assert!(fd_socket.take(me).unwrap().is_some());
        fd_socket.watch(me).unwrap();
        let patience = std::time::Duration::from_millis(50);
        let too_soon = tokio::time::timeout(patience, fd_socket.ended()).await;
        assert!(too_soon.is_err(), "the child is there");
        child.write_all(b"words").unwrap();
        let words = fd_socket.ended().await.unwrap_err();
        assert_eq!(words.kind(), io::ErrorKind::InvalidData);
        let mut rest = [0; 4];
        let Line::Watched(stream) = &fd_socket.line else {
            panic!("it is watched");
        };
        assert_eq!(stream.try_read(&mut rest).unwrap(), rest.len());
        drop(child);
        fd_socket.ended().await.unwrap();
    }

    #[tokio::test]
    async fn a_child_that_has_not_connected_is_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let mut fd_socket = FdSocket::open(dir.path().join("1.fds")).unwrap();
        fd_socket.watch(std::process::id()).unwrap();
        let patience = std::time::Duration::from_millis(50);
        let ended = tokio::time::timeout(patience, fd_socket.ended()).await;
        assert!(ended.is_err());
    }

    #[test]
    fn what_is_not_there_is_not_waited_for() {
        let (_dir, mut fd_socket, child) = fd_socket();
        assert!(fd_socket.take(std::process::id()).unwrap().is_none());
        drop(child);
        assert!(fd_socket.take(std::process::id()).unwrap().is_none());
    }

    #[test]
    fn another_process_is_neither_heard_nor_given_anything() {
        let (dir, mut fd_socket, child) = fd_socket();
        let file = File::create(dir.path().join("file")).unwrap();
        hand_over(&child, 1, &file);
        let other = std::process::id() + 1;
        assert!(fd_socket.take(other).unwrap().is_none());
        let refused = fd_socket.hand_out(other, FdKind::ModelFile, &file);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn a_descriptor_without_a_place_is_no_lie_of_the_child() {
        let (dir, mut fd_socket, child) = fd_socket();
        let me = std::process::id();
        let file = File::create(dir.path().join("file")).unwrap();
        // Descriptors beyond the space of the message are dropped, like one without a free number.
        let descriptors = [file.as_fd(); 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let name = [IoSlice::new(&[1])];
        sendmsg(&child, &name, &mut control, SendFlags::empty()).unwrap();
        let error = fd_socket.take(me).expect_err("dropped");
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }

    #[test]
    fn what_is_none_of_the_articles_is_refused() {
        let (dir, mut fd_socket, mut child) = fd_socket();
        let me = std::process::id();
        let file = File::create(dir.path().join("file")).unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        hand_over(&child, 1, &pipe);
        hand_over(&child, 9, &file);
        child.write_all(&[1]).unwrap();
        for what in ["a pipe", "another name", "a name alone"] {
            let error = fd_socket.take(me).expect_err(what);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{what}: {error}");
        }
    }
}
