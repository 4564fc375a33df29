//! Full file system without root: mounted in a mount namespace, and accessed through a process in it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const SCRIPT: &str =
    "mount -t tmpfs -o size=64k,nr_inodes=100 tmpfs \"$0\" && echo mounted && exec sleep 600";

/// More files than there are inodes.
const INODES: usize = 101;

/// File system of 64 KiB, unmounted on drop.
#[derive(Debug)]
pub struct FullDisk {
    resident: Child,
    path: PathBuf,
    _mount_point: TempDir,
}

impl FullDisk {
    /// Full file system; prints a notice and returns `None` where namespaces are not permitted.
    #[must_use]
    pub fn mount() -> Option<Self> {
        let disk = Self::with_room()?;
        disk.fill();
        Some(disk)
    }

    /// Empty file system, to be filled later.
    #[must_use]
    pub fn with_room() -> Option<Self> {
        let mount_point = TempDir::new().expect("a temporary directory");
        let resident = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT])
            .arg(mount_point.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut resident = resident.expect("unshare is a part of util-linux");
        let mut said = String::new();
        let stdout = resident.stdout.take().expect("piped");
        let _ = BufReader::new(stdout).read_line(&mut said);
        let root = format!("/proc/{}/root", resident.id());
        let inside = mount_point.path().strip_prefix("/");
        let disk = Self {
            path: Path::new(&root).join(inside.expect("an absolute path")),
            resident,
            _mount_point: mount_point,
        };
        if said.is_empty() {
            eprintln!("SKIPPED: a file system cannot be mounted here");
            return None;
        }
        Some(disk)
    }

    /// Uses every byte.
    pub fn fill(&self) {
        let filled = fs::write(self.filler(), vec![0; 128 << 10]);
        assert!(filled.is_err(), "it has room");
    }

    /// Uses every inode, so that no file can be created.
    pub fn take_inodes(&self) {
        let made = self.inodes().map(|path| fs::write(path, ""));
        assert!(
            made.take_while(Result::is_ok).count() < INODES,
            "it has room"
        );
    }

    /// Reverses [`Self::fill`] and [`Self::take_inodes`].
    pub fn free(&self) {
        for path in self.inodes().chain([self.filler()]) {
            // Some were not created.
            let _ = fs::remove_file(path);
        }
    }

    fn inodes(&self) -> impl Iterator<Item = PathBuf> {
        (0..INODES).map(|number| self.path.join(format!("inode-{number}")))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// File that uses all bytes.
    #[must_use]
    pub fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = self.resident.kill();
        let _ = self.resident.wait();
    }
}
