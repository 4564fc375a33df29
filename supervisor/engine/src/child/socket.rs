//! Control socket of a child, in a directory that only this user can enter. It accepts one connection, from the spawned
//! process.

use crate::child::fd_socket::FdSocket;
use crate::child::leftovers;
use interprocess::local_socket::tokio::{Listener, Stream};
use interprocess::local_socket::traits::StreamCommon as _;
use interprocess::local_socket::traits::tokio::Listener as _;
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName as _};
use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tracing::warn;
use worker_orcd_ipc::Generation;

/// The kernel's limit in bytes for a socket path, without the final zero.
const LONGEST_PATH: usize = 107;
/// Bytes added to the directory's path, at most: a slash, a generation, a dot and an extension.
const LONGEST_NAME: usize = 16;

/// Directory of mode 0700, removed with its content when dropped.
#[derive(Debug)]
pub struct PrivateDir {
    dir: TempDir,
    /// Lock that marks the directory as in use. `None` on a file system without locks, where no other process can lock
    /// it and remove it as a leftover.
    _claim: Option<OwnedFd>,
}

/// Attempts to claim a new directory before another cause is assumed.
const CLAIMS: usize = 16;

impl PrivateDir {
    /// Creates a directory in systemd's runtime directory, else in the user's, else in the temporary one: the first
    /// that is writable.
    ///
    /// # Errors
    /// If none is writable, with the reason for each.
    pub fn create() -> io::Result<Self> {
        let runtime_dirs = ["RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"];
        let parents = runtime_dirs
            .into_iter()
            .filter_map(|name| Some((name, PathBuf::from(std::env::var_os(name)?))));
        let mut refusals = Vec::new();
        let mut kind = io::ErrorKind::NotFound;
        for (name, parent) in parents.chain([("TMPDIR", std::env::temp_dir())]) {
            leftovers::clear(&parent);
            match Self::create_in(&parent) {
                Ok(dir) => return Ok(dir),
                Err(error) => {
                    kind = error.kind();
                    refusals.push(format!("{name} ({}): {error}", parent.display()));
                }
            }
        }
        let refusals = refusals.join("; ");
        let message = format!("no directory for the child's socket can be made: {refusals}");
        Err(io::Error::new(kind, message))
    }

    /// True if the directory exists. A cleaner of temporary files may have removed it.
    #[must_use]
    pub(crate) fn exists(&self) -> bool {
        self.dir.path().is_dir()
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        for _ in 0..CLAIMS {
            let dir = tempfile::Builder::new()
                .prefix(leftovers::PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(parent)?;
            let length = dir.path().as_os_str().len() + LONGEST_NAME;
            if length > LONGEST_PATH {
                let excess = length - LONGEST_PATH;
                let message = format!("too long for a socket's path by {excess} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidFilename, message));
            }
            match leftovers::claim(dir.path()) {
                Ok(None) => {}
                claim => {
                    return Ok(Self {
                        dir,
                        _claim: claim.ok().flatten(),
                    });
                }
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Creates the descriptor socket of the child of this generation.
    ///
    /// # Errors
    /// As [`open_door`](Self::open_door).
    pub(crate) fn open_fd_socket(&self, generation: Generation) -> io::Result<FdSocket> {
        FdSocket::open(self.dir.path().join(format!("{generation}.fds")))
    }

    /// Listens for the child of this generation.
    ///
    /// # Errors
    /// If the socket cannot be created: the directory is gone, or there is no free descriptor.
    pub(crate) fn open_door(&self, generation: Generation) -> io::Result<Door> {
        let path = self.dir.path().join(format!("{generation}.sock"));
        let name = path.as_path().to_fs_name::<GenericFilePath>()?;
        let listener = ListenerOptions::new().name(name).create_tokio()?;
        Ok(Door { listener, path })
    }
}

/// Listener of one child. Removes its name when dropped.
pub(crate) struct Door {
    listener: Listener,
    path: PathBuf,
}

impl Door {
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Connection of process `pid`. All other processes are rejected.
    ///
    /// # Errors
    /// If the socket itself fails.
    pub(crate) async fn accept(&self, pid: u32) -> io::Result<Stream> {
        loop {
            let stream = self.listener.accept().await?;
            match check_peer(&stream, pid) {
                Ok(()) => return Ok(stream),
                Err(why) => warn!(%why, "child_peer_rejected"),
            }
        }
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn check_peer(stream: &Stream, pid: u32) -> Result<(), String> {
    let peer = stream
        .peer_creds()
        .map_err(|error| format!("no peer credentials: {error}"))?;
    let ours = rustix::process::geteuid().as_raw();
    if peer.euid() != Some(ours) {
        return Err(format!("user {:?} is not user {ours}", peer.euid()));
    }
    let peer_pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
    if peer_pid != Some(pid) {
        return Err(format!(
            "process {peer_pid:?} is not the child, which is {pid}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use interprocess::local_socket::ConnectOptions;

    async fn connect(path: &Path) -> Stream {
        let name = path.to_fs_name::<GenericFilePath>().unwrap();
        ConnectOptions::new()
            .name(name)
            .connect_tokio()
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn the_expected_process_comes_in_and_the_directory_is_private_and_temporary() {
        let dir = PrivateDir::create().unwrap();
        let mode = std::fs::metadata(dir.dir.path())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        let door = dir.open_door(Generation(1)).unwrap();
        let path = door.path().to_owned();
        let _client = connect(&path).await;
        door.accept(std::process::id()).await.unwrap();
        drop(door);
        assert!(!path.exists());
        let parent = dir.dir.path().to_owned();
        drop(dir);
        assert!(!parent.exists());
    }

    #[test]
    fn a_directory_in_which_no_socket_could_be_made_is_refused_with_its_reason() {
        let long = tempfile::tempdir().unwrap();
        let deep = long.path().join("d".repeat(90));
        std::fs::create_dir(&deep).unwrap();
        let error = PrivateDir::create_in(&deep).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename, "{error}");
        assert_eq!(
            std::fs::read_dir(&deep).unwrap().count(),
            0,
            "nothing stays"
        );
        let missing = PrivateDir::create_in(&long.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn another_process_is_turned_away_and_the_door_stays_open() {
        let dir = PrivateDir::create().unwrap();
        let door = dir.open_door(Generation(1)).unwrap();
        let _stranger = connect(door.path()).await;
        let nobody = door.accept(std::process::id() + 1);
        let patience = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(patience, nobody).await.is_err());
    }
}
