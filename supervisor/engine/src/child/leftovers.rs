//! Socket directories of dead supervisors.
//!
//! A killed supervisor cannot remove its directory, so the next supervisor does. A lock on the directory marks it as in
//! use. The kernel releases the lock at any end of its holder. A directory is removed only if it belongs to this user,
//! has our name pattern and mode, and contains nothing but sockets.

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, open, statat, unlinkat};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use tracing::info;

/// Prefix of the directory names. Six letters or digits follow.
pub(super) const PREFIX: &str = "worker-orcd-";

const RANDOM_CHARS: usize = 6;

/// Marks a directory as in use during the life of the result. `None`: another process took it for a leftover and
/// removed it.
///
/// # Errors
/// If the directory cannot be opened.
pub(super) fn claim(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let lock = match lock(directory) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let held = rustix::fs::fstat(&lock)?;
    let there = statat(rustix::fs::CWD, directory, AtFlags::SYMLINK_NOFOLLOW);
    let is_the_same = there.is_ok_and(|it| (it.st_dev, it.st_ino) == (held.st_dev, held.st_ino));
    Ok(is_the_same.then_some(lock))
}

/// Removes unused directories. Failures are ignored.
pub(super) fn clear(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours_by_name));
    let count = named
        .filter(|entry| clear_one(&entry.path()).is_ok_and(|done| done))
        .count();
    if count > 0 {
        info!(parent = %parent.display(), count, "leftovers_removed");
    }
}

fn is_ours_by_name(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX);
    random
        .is_some_and(|it| it.len() == RANDOM_CHARS && it.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Removes one directory. False: it is in use, or not ours.
fn clear_one(directory: &Path) -> io::Result<bool> {
    let facts = fs::symlink_metadata(directory)?;
    let ours = rustix::process::geteuid().as_raw();
    if !facts.is_dir() || facts.uid() != ours || facts.mode() & 0o777 != 0o700 {
        return Ok(false);
    }
    let Some(lock) = lock(directory)? else {
        return Ok(false);
    };
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_type()?.is_socket() {
            return Ok(false);
        }
        // The name is resolved in the locked directory, independent of the path.
        unlinkat(&lock, entry.file_name(), AtFlags::empty())?;
    }
    fs::remove_dir(directory)?;
    Ok(true)
}

/// Lock on a directory. `None`: another process holds it.
fn lock(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = open(directory, flags, Mode::empty())?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(opened)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn directory(parent: &Path, name: &str, mode: u32) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn what_a_dead_supervisor_left_is_removed_and_nothing_else_is() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let empty = directory(parent, "worker-orcd-aB3dE6", 0o700);
        let with_socket = directory(parent, "worker-orcd-000000", 0o700);
        for name in ["3.sock", "3.fds"] {
            drop(UnixListener::bind(with_socket.join(name)).unwrap());
        }
        let in_use = directory(parent, "worker-orcd-inUse0", 0o700);
        let lock = claim(&in_use).unwrap().expect("no other process has it");
        let with_file = directory(parent, "worker-orcd-filed0", 0o700);
        fs::write(with_file.join("3.sock"), "no socket").unwrap();
        let kept = [
            in_use.clone(),
            with_file,
            directory(parent, "worker-orcd-backup-1", 0o700),
            directory(parent, "worker-orcd-open00", 0o755),
            directory(parent, "other-00000000", 0o700),
        ];
        std::os::unix::fs::symlink(&kept[2], parent.join("worker-orcd-link00")).unwrap();
        clear(parent);
        assert!(!empty.exists() && !with_socket.exists());
        for path in &kept {
            assert!(path.exists(), "{path:?}");
        }
        drop(lock);
        clear(parent);
        assert!(!in_use.exists(), "its holder is gone");
    }

    #[test]
    fn a_directory_that_was_taken_for_left_over_is_not_claimed() {
        let parent = tempfile::tempdir().unwrap();
        let path = directory(parent.path(), "worker-orcd-abcdef", 0o700);
        let cleaner = lock(&path).unwrap().expect("no other process has it");
        assert!(
            claim(&path).unwrap().is_none(),
            "another process removes it now"
        );
        drop(cleaner);
        assert!(claim(&path).unwrap().is_some());
        fs::remove_dir(&path).unwrap();
        assert!(
            claim(&path).unwrap().is_none(),
            "another process has removed it"
        );
    }
}
