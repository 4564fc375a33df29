//! Real systemd for one script: PID 1 of its own namespaces, with the worker's unit in it. Requires root, and a machine
//! without a running systemd.

use crate::model::repository_root;
use nix::unistd::Uid;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Missing prerequisite of this machine, if any.
#[must_use]
pub fn lack() -> Option<String> {
    if !Uid::effective().is_root() {
        return Some("only root may do this".to_owned());
    }
    if Path::new("/run/systemd/system").exists() {
        return Some("the systemd of this machine would share its control groups".to_owned());
    }
    let namespaces = [
        "--fork",
        "--pid",
        "--mount",
        "--uts",
        "--ipc",
        "--mount-proc",
    ];
    let needs: [(&str, &[&str]); 3] = [
        (SYSTEMD, &["--version"]),
        ("curl", &["--version"]),
        ("unshare", &[&namespaces[..], &["true"]].concat()),
    ];
    needs.into_iter().find_map(|(program, arguments)| {
        let output = Command::new(program).args(arguments).output();
        let works = output.is_ok_and(|output| output.status.success());
        (!works).then(|| format!("{program} does not work"))
    })
}

/// Parameters of a run.
#[derive(Debug)]
pub struct Stay<'a> {
    /// Script of `tests/systemd/`. `/mnt` is the directory of its [`Life`].
    pub script: &'a str,
    /// Lines that replace those of the unit's `[Service]`.
    pub service: String,
    /// Variables of the script, as shell lines. `PORT` is added.
    pub variables: String,
    pub seconds: u32,
}

/// Result of the script.
#[derive(Debug)]
pub struct Life {
    /// Output in lines.
    pub said: Vec<String>,
    /// Directory of its files.
    directory: TempDir,
}

impl Life {
    /// Content of a file that it wrote; empty if there is none.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }
}

impl Stay<'_> {
    /// Runs the script and prints the output of the script, the worker and systemd.
    #[must_use]
    pub fn live(&self) -> Life {
        let port = free_port();
        let directory = TempDir::new().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).expect("the directory is ours");
        };
        let to_files = "StandardOutput=append:/mnt/log\nStandardError=append:/mnt/log\n";
        let service = format!("[Service]\n{}{to_files}", self.service);
        write("override.conf", &service);
        let sockets = format!("[Socket]\nListenStream=\nListenStream=127.0.0.1:{port}\n");
        write("socket.conf", &sockets);
        write("environment", &format!("PORT={port}\n{}", self.variables));
        let root = repository_root();
        let output = Command::new("timeout")
            .args(["--kill-after=5", &self.seconds.to_string()])
            .args(["unshare", "--fork", "--kill-child"])
            .args(["--pid", "--mount", "--uts", "--ipc", "--mount-proc"])
            .arg(root.join("tests/systemd/boot.sh"))
            .arg(root.join("systemd/worker-orcd@.service"))
            .arg(root.join("tests/systemd").join(self.script))
            .arg(directory.path())
            .output()
            .expect("it can be started");
        let mut life = Life {
            said: Vec::new(),
            directory,
        };
        let said = life.read("said");
        let of_systemd = String::from_utf8_lossy(&output.stderr);
        println!("{said}\n{}\n{of_systemd}", life.read("errors"));
        life.said = said.lines().map(str::to_owned).collect();
        life
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has one").port()
}
