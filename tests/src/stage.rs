//! Files of an upgrade test: a program at a path that the upgrade executes, a directory of sockets, and programs that
//! fail the upgrade.

use crate::worker::binary;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Path of the supervisor's built program.
#[must_use]
pub fn real() -> PathBuf {
    binary("tested-worker-orcd")
}

#[derive(Debug)]
pub struct Stage {
    directory: tempfile::TempDir,
    pub program: PathBuf,
    /// Link to the directory of sockets.
    pub runtime: PathBuf,
    pub taken: TcpListener,
    _admin: UnixListener,
}

impl Stage {
    /// Creates a directory below `directory`, on a file system that permits execution.
    #[must_use]
    pub fn below(directory: impl AsRef<Path>) -> Self {
        let directory = tempfile::tempdir_in(directory).expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("sockets")).expect("a directory");
        symlink(path("sockets"), path("runtime")).expect("a link");
        let made = Command::new("mkfifo").arg(path("fifo")).status();
        assert!(made.expect("it is a part of coreutils").success());
        let stage = Self {
            program: path("worker-orcd"),
            runtime: path("runtime"),
            taken: TcpListener::bind("127.0.0.1:0").expect("a port"),
            _admin: UnixListener::bind(path("admin")).expect("a socket"),
            directory,
        };
        stage.place_real();
        stage
    }

    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn place(&self, bytes: &[u8]) {
        let next = self.path("next");
        fs::write(&next, bytes).expect("written");
        fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).expect("ours");
        fs::rename(&next, &self.program).expect("replaced");
    }

    pub fn place_real(&self) {
        let next = self.path("next");
        fs::copy(real(), &next).expect("copied");
        fs::rename(&next, &self.program).expect("replaced");
    }

    /// Places the real program, with additional arguments.
    pub fn place_with(&self, words: &str) {
        let real = real();
        self.place(format!("#!/bin/sh\nexec {} \"$@\" {words}\n", real.display()).as_bytes());
    }

    /// Places a program that rehearses like the real one, and then runs `start`.
    pub fn place_after_rehearsal(&self, start: &str) {
        let script = format!(
            "#!/bin/sh\nreal={}\nif [ \"$1\" = rehearses ]; then exec $real \"$@\"; fi\n{start}\n",
            real().display()
        );
        self.place(script.as_bytes());
    }

    pub fn lead_sockets_to(&self, target: &Path) {
        fs::remove_file(&self.runtime).expect("it is a link");
        symlink(target, &self.runtime).expect("a link");
    }
}
