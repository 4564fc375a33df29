//! Full disks, and missing or unusual directories: each disables its own function, which `/health` reports, and no
//! stream loses a byte.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{
    Bystander, Client, FullDisk, Script, Worker, WorkerBuilder, process, wait,
};

/// `Exit::Usage`.
const USAGE: i32 = 2;

fn directory() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

fn bystander(worker: &Worker) -> Bystander {
    let body = json!({
        "prompt": "The lighthouse keeper counted the ships", "max_tokens": 40,
        "temperature": 0.8, "seed": 7, "ignore_eos": true,
    });
    Bystander::new(worker.client(), body)
}

/// Text of an undisturbed worker.
fn undisturbed() -> String {
    bystander(&Worker::shallow().start()).alone()
}

/// Text and recoveries of a stream that `happen` disturbs.
fn disturbed(worker: &Worker, happen: impl FnOnce(u32)) -> (String, Value) {
    let stream = bystander(worker).begin();
    happen(worker.child_pid().expect("a child serves"));
    let (text, end) = stream.end();
    (text, end["recoveries"].clone())
}

fn kill(child: u32) {
    process::signal(child, Signal::SIGKILL);
}

fn impairment(client: &Client, what: &str) -> Option<Value> {
    let impaired = client.health()["impaired"].clone();
    let found = impaired.as_array()?.iter().find(|it| it["what"] == what);
    found.cloned()
}

fn wait_impaired(worker: &Worker, what: &str) -> String {
    let found = wait::until("the trouble in /health", || {
        impairment(&worker.client(), what)
    });
    // The log is written after the event.
    let of_this = wait::until("the trouble in the log", || {
        let logged = worker.log.events("impaired").into_iter();
        let of_this: Vec<_> = logged.filter(|line| line["what"] == what).collect();
        (!of_this.is_empty()).then_some(of_this)
    });
    assert_eq!(of_this.len(), 1, "it is said once: {of_this:?}");
    found["because"].as_str().expect("a reason").to_owned()
}

fn deaths(client: &Client) -> Value {
    client.health()["faults"]["deaths_by_cause"].clone()
}

#[test]
fn a_full_disk_under_the_trace_costs_the_trace_alone() {
    let text = undisturbed();
    let worker = Worker::shallow().arg("--trace-logits", "/dev/full").start();
    let client = worker.client();
    assert_eq!(bystander(&worker).alone(), text);
    let because = wait_impaired(&worker, "logits_trace");
    assert!(because.starts_with("/dev/full: "), "{because}");
    assert_eq!(deaths(&client), json!({}));

    assert_eq!(disturbed(&worker, kill), (text, json!(1)));
    worker.assert_serves();
    assert_eq!(deaths(&client), json!({"signalled": 1}), "and no other");
    wait_impaired(&worker, "logits_trace");
}

#[test]
fn a_trace_that_cannot_be_opened_is_named_before_anything_is_loaded() {
    for path in ["/no/such/dir/trace", "/"] {
        let mut worker = Worker::shallow().arg("--trace-logits", path).spawn();
        assert_eq!(worker.wait_exit().code(), Some(USAGE));
        let log = worker.log.text();
        assert!(
            log.contains("--trace-logits") && log.contains(path),
            "{log}"
        );
        assert!(worker.log.events("child_spawn").is_empty(), "{log}");
    }
}

#[test]
fn a_full_crash_directory_keeps_no_draft_and_loses_no_report() {
    let Some(disk) = FullDisk::mount() else {
        return;
    };
    let text = undisturbed();
    let worker = Worker::shallow()
        .arg("--crash-dir", disk.path().display())
        .start();
    let client = worker.client();
    assert_eq!(disturbed(&worker, kill), (text.clone(), json!(1)));
    let because = wait_impaired(&worker, "crash_reports");
    assert!(
        because.contains(disk.path().to_str().expect("UTF-8")),
        "{because}"
    );
    let names = |path: &Path| -> Vec<_> {
        let files = fs::read_dir(path).expect("it is ours");
        files
            .map(|file| file.expect("an entry").file_name())
            .collect()
    };
    assert_eq!(names(disk.path()), ["filler"], "no draft is left");
    let crashes = client.get("/crashes").json();
    let id = crashes["crashes"][0]["id"].as_str().expect("a report");
    let report = client.get(&format!("/crashes/{id}")).json();
    assert_eq!(report["cause"]["signal"], 9, "it is kept in memory");

    fs::remove_file(disk.filler()).expect("it is ours");
    assert_eq!(disturbed(&worker, kill), (text, json!(1)));
    wait::until("the trouble to be over", || {
        impairment(&client, "crash_reports").is_none().then_some(())
    });
    wait::until("the second report's file", || {
        (names(disk.path()).len() == 1).then_some(())
    });
}

#[test]
fn a_fifo_with_a_reports_name_does_not_hold_the_start_up() {
    let directory = directory();
    let fifo = directory.path().join("20260101T000000000Z-1-1.json");
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&fifo, mode).expect("a FIFO of our own");
    let worker = Worker::shallow()
        .arg("--crash-dir", directory.path().display())
        .start();
    assert_eq!(
        worker.client().get("/crashes").json(),
        json!({"crashes": []})
    );
    worker.assert_serves();
}

/// Worker with its sockets below this directory and nowhere else.
fn below(temporary: &Path) -> WorkerBuilder {
    sockets_below(Worker::shallow(), temporary)
}

fn sockets_below(worker: WorkerBuilder, temporary: &Path) -> WorkerBuilder {
    worker
        .env("RUNTIME_DIRECTORY", "/no/such/dir")
        .env("XDG_RUNTIME_DIR", "/no/such/dir")
        .env("TMPDIR", temporary.to_str().expect("UTF-8"))
}

fn private_directory(temporary: &Path) -> std::path::PathBuf {
    let entries = fs::read_dir(temporary).expect("it is ours").flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.next().expect("the worker has one")
}

#[test]
fn a_socket_directory_that_was_cleaned_away_is_made_again() {
    let text = undisturbed();
    let temporary = directory();
    let worker = below(temporary.path()).start();
    let read = disturbed(&worker, |child| {
        fs::remove_dir_all(private_directory(temporary.path())).expect("it is ours");
        kill(child);
    });
    assert_eq!(read, (text, json!(1)));
    assert_eq!(deaths(&worker.client()), json!({"signalled": 1}));
}

#[test]
fn without_a_place_for_a_socket_no_child_dies_and_streams_wait_until_there_is_one() {
    let text = undisturbed();
    let temporary = directory();
    let place = temporary.path().join("place");
    fs::create_dir(&place).expect("it is ours");
    let worker = below(&place).start();
    let client = worker.client();
    let read = disturbed(&worker, |child| {
        fs::remove_dir_all(&place).expect("it is ours");
        kill(child);
        let because = wait_impaired(&worker, "child_socket");
        assert!(
            because.contains(place.to_str().expect("UTF-8")),
            "{because}"
        );
        assert_eq!(client.health()["status"], "recovering");
        fs::create_dir(&place).expect("it is ours");
    });
    assert_eq!(read, (text, json!(1)));
    assert_eq!(deaths(&client), json!({"signalled": 1}), "and no other");
    assert_eq!(impairment(&client, "child_socket"), None);
}

#[test]
fn a_temporary_directory_that_cannot_hold_a_socket_is_a_usage_error_that_names_it() {
    let temporary = directory();
    let long = temporary.path().join("d".repeat(100));
    fs::create_dir(&long).expect("it is ours");
    for unusable in [&temporary.path().join("missing"), &long] {
        let mut worker = below(unusable).spawn();
        assert_eq!(worker.wait_exit().code(), Some(USAGE));
        let log = worker.log.text();
        let named = log.contains("TMPDIR") && log.contains(unusable.to_str().expect("UTF-8"));
        assert!(named, "{log}");
        assert!(worker.log.events("child_spawn").is_empty(), "{log}");
    }
}

/// Reason of a refused upgrade; `None` if the next program serves.
fn upgrade(worker: &Worker) -> Option<String> {
    let (ready, refused) = ("ready", "upgrade_refused");
    worker.wait_ready_in_log();
    let before = [ready, refused].map(|name| worker.log.events(name).len());
    worker.signal(Signal::SIGUSR2);
    wait::until("the upgrade's outcome", || {
        if worker.log.events(ready).len() > before[0] {
            return Some(None);
        }
        let line = worker.log.events(refused).get(before[1])?.clone();
        Some(line["reason"].as_str().map(str::to_owned))
    })
}

#[test]
fn an_upgrade_on_a_full_disk_goes_through_or_is_refused_and_touches_no_stream() {
    let Some(disk) = FullDisk::with_room() else {
        return;
    };
    let crashes = disk.path().join("crashes");
    fs::create_dir(&crashes).expect("it has room");
    let script = Script::behave().token_interval_ms(20);
    let worker = sockets_below(Worker::scripted(script), disk.path())
        .env("XDG_STATE_HOME", disk.path().to_str().expect("UTF-8"))
        .arg("--crash-dir", crashes.display())
        .start();
    let stream = Bystander::new(worker.client(), request("abc", 200)).begin();
    let child = worker.child_pid();

    let path = disk.path().to_str().expect("UTF-8");
    let is_named = |reason: &String| reason.contains(path) && reason.contains("No space left");
    disk.fill();
    // A directory for sockets may or may not need a byte of this file system.
    let refused = upgrade(&worker);
    assert!(refused.as_ref().is_none_or(is_named), "{refused:?}");
    disk.take_inodes();
    let refused = upgrade(&worker);
    assert!(refused.as_ref().is_some_and(is_named), "{refused:?}");
    worker.assert_serves();
    disk.free();
    assert_eq!(upgrade(&worker), None);
    let (text, end) = stream.end();
    assert_eq!(text, scripted_text("abc", 200));
    assert_eq!(end["recoveries"], 0, "{end}");
    assert_eq!(worker.child_pid(), child);
}
