//! The unit, under a real systemd. Needs root, and a machine that no systemd runs already; says what is lacking.

use nix::unistd::Uid;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use worker_orcd_tests::model::{real_model, repository_root};
use worker_orcd_tests::worker::binary;

const SYSTEMD: &str = "/lib/systemd/systemd";

/// What this machine lacks.
fn lack() -> Option<String> {
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

/// The unit with this machine's paths, and times that a test can wait for.
fn override_of_the_unit() -> String {
    let (worker, child) = (
        binary("tested-worker-orcd"),
        binary("tested-worker-orcd-gpu"),
    );
    let (worker, child, model) = (worker.display(), child.display(), real_model());
    format!(
        "[Service]\nExecStart=\nExecStart={worker} --model {} --device cpu \
         --child-binary {child} --log-format json\nWatchdogSec=2s\nRestartSec=100ms\n\
         StandardOutput=append:/mnt/log\nStandardError=append:/mnt/log\n",
        model.display()
    )
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has one").port()
}

/// What came of the script.
struct Life {
    /// What it said, in lines.
    said: Vec<String>,
    /// Holds the streams.
    directory: TempDir,
}

impl Life {
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    /// The `data:` lines of tokens in these streams, in their order.
    fn tokens(&self, names: &[&str]) -> Vec<String> {
        let text: String = names.iter().map(|name| self.read(name)).collect();
        let lines = text.lines().filter(|line| line.starts_with("data: {\"t\""));
        lines.map(str::to_owned).collect()
    }
}

fn run_under_systemd(script: &Path, port: u16) -> Life {
    let directory = TempDir::new().expect("a temporary directory");
    let write = |name: &str, text: &str| {
        fs::write(directory.path().join(name), text).expect("the directory is ours");
    };
    write("override.conf", &override_of_the_unit());
    let sockets = format!("[Socket]\nListenStream=\nListenStream=127.0.0.1:{port}\n");
    write("socket.conf", &sockets);
    write("environment", &format!("PORT={port}\n"));
    let root = repository_root();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", "unshare", "--fork", "--kill-child"])
        .args(["--pid", "--mount", "--uts", "--ipc", "--mount-proc"])
        .arg(root.join("tests/systemd/boot.sh"))
        .arg(root.join("systemd/worker-orcd@.service"))
        .arg(script)
        .arg(directory.path())
        .output()
        .expect("it can be started");
    let mut life = Life {
        said: Vec::new(),
        directory,
    };
    let said = life.read("said");
    let (errors, log) = (life.read("errors"), life.read("log"));
    let of_systemd = String::from_utf8_lossy(&output.stderr);
    println!("{said}\n{errors}\n{log}\n{of_systemd}");
    life.said = said.lines().map(str::to_owned).collect();
    life
}

#[test]
fn the_unit_is_ready_when_it_serves_and_outlives_its_child_and_its_supervisor() {
    if let Some(lack) = lack() {
        println!("SKIPPED: {lack}");
        return;
    }
    let script = repository_root().join("tests/systemd/life.sh");
    let life = run_under_systemd(&script, free_port());
    let said = &life.said;
    let line = |moment: &str| {
        let mut lines = said.iter().filter_map(|it| it.strip_prefix(moment));
        lines
            .next()
            .unwrap_or_else(|| panic!("{moment}"))
            .to_owned()
    };
    let is = |moment: &str, facts: &str| {
        let line = line(moment);
        assert!(line.starts_with(&format!(": {facts}")), "{moment}{line}");
    };
    is("started", "active=active restarts=0 result=success");
    is(
        "served",
        "active=active restarts=0 result=success status=serving: ",
    );
    let confined = line("confined");
    for fact in [
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "; 2 users",
    ] {
        assert!(confined.contains(fact), "{confined}");
    }
    is("child-killed", "active=active restarts=0 result=success");
    assert!(line("child-killed").contains("killed by signal 9"));
    is("supervisor-stopped", "active=active restarts=1");
    assert_eq!(line("between"), ": 200", "its socket outlives a supervisor");
    is("supervisor-killed", "active=active restarts=2");
    assert_eq!(line("stored"), ": 1", "what it would leave");
    is("upgraded", "active=active restarts=2");
    let calm = life.tokens(&["calm"]);
    assert_eq!(calm.len(), 200);
    assert_eq!(life.tokens(&["killed", "killed-rest"]), calm);
    assert!(!life.read("killed-rest").contains("event: started"));
    assert_eq!(life.tokens(&["upgraded"]), calm);
    is("upgraded-and-killed", "active=active restarts=3");
    assert_eq!(line("stored then"), ": 1", "one parcel in place of another");
    assert_eq!(life.tokens(&["again", "again-rest"]), calm);
    let restored = life.read("log");
    let mut restored = restored
        .lines()
        .filter(|line| line.contains("requests_restored"));
    let kept = |line: &str| line.contains("\"weights_kept\":true");
    assert!(restored.next().is_some_and(kept) && restored.next().is_some_and(kept));
    let stream = life.read("stream");
    assert!(stream.contains("event: end"), "it was drained: {stream}");
    is("stopped", "active=inactive restarts=0 result=success");
    assert!(!said.iter().any(|it| it.starts_with("in vain")), "{said:?}");
    let behind: Vec<_> = said
        .iter()
        .skip_while(|it| !it.starts_with("stopped"))
        .collect();
    assert_eq!(
        behind[1], "0",
        "a clean exit, and nobody is left: {behind:?}"
    );
    let exposure = behind.last().expect("a line");
    assert!(exposure.contains("exposure level"), "{behind:?}");
    assert_eq!(behind.len(), 3, "{behind:?}");
}
