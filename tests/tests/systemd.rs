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
         --child-binary {child} --log-format json\nWatchdogSec=2s\nRestartSec=100ms\n",
        model.display()
    )
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has one").port()
}

/// What the script said, in lines.
fn run_under_systemd(script: &Path, port: u16) -> Vec<String> {
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
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    let (said, errors, stream) = (read("said"), read("errors"), read("stream"));
    let log = String::from_utf8_lossy(&output.stderr);
    println!("{said}\n{errors}\n{log}");
    assert!(stream.contains("event: end"), "it was drained: {stream}");
    said.lines().map(str::to_owned).collect()
}

#[test]
fn the_unit_is_ready_when_it_serves_and_outlives_its_child_and_its_supervisor() {
    if let Some(lack) = lack() {
        println!("SKIPPED: {lack}");
        return;
    }
    let script = repository_root().join("tests/systemd/life.sh");
    let said = run_under_systemd(&script, free_port());
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
    is("child-killed", "active=active restarts=0 result=success");
    assert!(line("child-killed").contains("killed by signal 9"));
    is("supervisor-stopped", "active=active restarts=1");
    assert_eq!(line("between"), ": 200", "its socket outlives a supervisor");
    is("supervisor-killed", "active=active restarts=2");
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
