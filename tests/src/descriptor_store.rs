//! Service manager that stores a worker's descriptors and passes them to the next one, like systemd's descriptor store.

use crate::process;
use crate::worker::{Worker, WorkerBuilder, binary};
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// 300 ms of silence end the storing.
const SILENCE: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub struct DescriptorStore {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Default for DescriptorStore {
    fn default() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        let silence = Some(SILENCE);
        socket.set_read_timeout(silence).expect("a socket takes it");
        Self { folder, socket }
    }
}

impl DescriptorStore {
    /// Worker that stores its state here.
    #[must_use]
    pub fn of(&self, worker: WorkerBuilder) -> WorkerBuilder {
        worker.env("NOTIFY_SOCKET", &self.socket().display().to_string())
    }

    /// Socket for sd_notify(3).
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("notify")
    }

    /// Kills the worker, and starts the next one with the stored descriptors.
    #[must_use]
    pub fn succeed(&self, worker: Worker, next: WorkerBuilder) -> Worker {
        let kept = self.stored();
        process::signal(worker.pid(), Signal::SIGKILL);
        drop(worker);
        self.of(next).program_at(self.successor(&kept)).start()
    }

    /// Descriptor that was stored last.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    pub fn stored(&self) -> OwnedFd {
        let mut last = None;
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut words = [IoSliceMut::new(&mut bytes)];
            // A program that is started later inherits it, too.
            let received = recvmsg(&self.socket, &mut words, &mut control, RecvFlags::empty());
            if received.is_err() {
                return last.expect("something is stored");
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    last = descriptors.last().or(last);
                }
            }
        }
    }

    /// Program that starts the worker with the stored descriptors, by sd_listen_fds(3).
    ///
    /// # Panics
    /// It cannot be written.
    #[must_use]
    pub fn successor(&self, kept: &OwnedFd) -> PathBuf {
        let path = self.folder.path().join("successor");
        let text = format!(
            "#!/bin/bash\nexec 3<&{}\nexport LISTEN_FDS=1 LISTEN_PID=$$\nexec '{}' \"$@\"\n",
            kept.as_raw_fd(),
            binary("tested-worker-orcd").display()
        );
        fs::write(&path, text).expect("the folder is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        path
    }
}
