//! Loss of a stream beside deaths, a crowd of prompts, and failures of files, disks, memory and transfers: no byte, and
//! of 100 gaps between its tokens at most the one of a death.
//!
//! The files named after an attack assert its other effects. Here nothing else runs on the machine: with a real model a
//! gap depends on a free core.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use worker_orcd_tests::beside::GAPS;
use worker_orcd_tests::hub::{pull, pulled};
use worker_orcd_tests::model::shallow_model;
use worker_orcd_tests::worker::{request, unique};
use worker_orcd_tests::{
    Bystander, ControlGroup, FakeHub, FullDisk, Held, ModelCopy, Worker, WorkerBuilder,
    a_beat_a_step, process, wait,
};

/// Tokens after a death: a third more than needed, for delays of a busy machine.
const GAPS_A_DEATH: usize = GAPS + GAPS / 3;

const MIB: u64 = 1 << 20;

const INSUFFICIENT_MEMORY: i32 = 66;

/// Deadline of workers with a low priority, beside busy processes.
const PATIENCE_WITH_LOADS: Duration = Duration::from_secs(120);

static ALONE: Mutex<()> = Mutex::new(());

/// Lock of the machine, held until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Request for real models.
fn body() -> Value {
    json!({
        "prompt": "The lighthouse keeper counted the ships", "max_tokens": 2 * GAPS_A_DEATH,
        "temperature": 0.8, "seed": 7, "ignore_eos": true,
    })
}

/// Worker that restarts children quickly after any number of deaths.
fn mortal(worker: WorkerBuilder) -> WorkerBuilder {
    worker.arg("--max-restart-delay", "200ms")
}

/// Kills the child and returns when it is dead.
fn strike(worker: &Worker, signal: Signal) {
    let child = worker.child_pid().expect("a child serves");
    wait::until("the child's death", || {
        // Rust's own handler for SIGSEGV ignores the signal the first time.
        process::signal(child, signal);
        (!process::is_alive(child)).then_some(())
    });
}

#[test]
fn a_model_file_that_is_replaced_and_removed() {
    let _alone = alone();
    let copy = ModelCopy::new();
    let worker = mortal(Worker::with_model(&copy.path)).start();
    let bystander = Bystander::new(worker.client(), body()).that_outlives_deaths();
    bystander.keeps_pace_beside(|| {
        copy.replace_by_other_weights();
        strike(&worker, Signal::SIGKILL);
        bystander.wait_tokens(GAPS_A_DEATH);
        copy.remove();
        strike(&worker, Signal::SIGKILL);
        bystander.wait_tokens(GAPS_A_DEATH);
    });
}

/// Forty prompts of 3,000 tokens are 240 steps of 512.
#[test]
fn forty_long_prompts_and_a_short_one_behind_them() {
    const CROWD: u64 = 40;
    let _alone = alone();
    let worker = a_beat_a_step().arg("--max-running", 64).start();
    let client = worker.client();
    let bystander = Bystander::of_a_script(worker.client());
    bystander.keeps_pace_beside(|| {
        let long = |n| request(&format!("{n}{}", "long ".repeat(600)), 1);
        let crowd: Vec<_> = (0..CROWD).map(|n| client.execute(&long(n))).collect();
        bystander.wait_tokens(5);
        let asked = bystander.tokens();
        client
            .execute(&request("a short prompt", 1))
            .wait_for("token");
        // A step is a token of the bystander. Two are needed, and a busy machine reads late.
        let steps = bystander.tokens() - asked;
        assert!(steps <= 12, "{steps} steps until its first token");
        bystander.wait_tokens(GAPS);
        let load = &client.health()["load"];
        let waiting = load["waiting"].as_u64();
        assert!(waiting > Some(CROWD / 4), "still a crowd: {load}");
        drop(crowd);
    });
}

#[test]
fn random_faults_of_the_machine_and_their_innocents() {
    const DEATHS: usize = 4;
    let _alone = alone();
    let worker = mortal(a_beat_a_step()).start();
    // Each stream is affected by every death.
    let max_tokens = (DEATHS * GAPS_A_DEATH + GAPS / 3) as u32;
    let bystander = Bystander::new(worker.client(), request("an innocent prompt", max_tokens))
        .among(4)
        .that_outlives_deaths();
    bystander.keeps_pace_beside(|| {
        for _ in 0..DEATHS {
            strike(&worker, Signal::SIGSEGV);
            bystander.wait_tokens(GAPS_A_DEATH);
        }
    });
    let faults = &worker.client().health()["faults"];
    assert!(faults["deaths_by_cause"]["signalled"].as_u64() >= Some(DEATHS as u64));
    assert_eq!(faults["quarantined"], json!([]), "{faults}");
    assert_eq!(faults["on_probation"], 0, "{faults}");
}

/// The trace is full from the start, so is the directory of crash reports where a full disk can be mounted, and the
/// directory of the socket is removed at each death.
#[test]
fn full_disks_and_directories_that_are_gone() {
    let _alone = alone();
    let calm = Worker::real().start();
    let full = FullDisk::mount();
    let temporary = TempDir::new().unwrap();
    let sockets = temporary.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let mut worker = mortal(Worker::real())
        .arg("--trace-logits", "/dev/full")
        .env("RUNTIME_DIRECTORY", "/no/such/dir")
        .env("XDG_RUNTIME_DIR", "/no/such/dir")
        .env("TMPDIR", sockets.to_str().unwrap());
    if let Some(disk) = &full {
        worker = worker.arg("--crash-dir", disk.path().display());
    }
    let worker = worker.start();
    let bystander = Bystander::new(worker.client(), body())
        .compared_with(calm.client())
        .that_outlives_deaths();
    bystander.keeps_pace_beside(|| {
        for _ in 0..2 {
            fs::remove_dir_all(&sockets).unwrap();
            strike(&worker, Signal::SIGKILL);
            fs::create_dir(&sockets).unwrap();
            bystander.wait_tokens(GAPS_A_DEATH);
        }
    });
    let impaired = worker.client().health()["impaired"].to_string();
    assert!(impaired.contains("logits_trace"), "{impaired}");
    assert_eq!(
        impaired.contains("crash_reports"),
        full.is_some(),
        "{impaired}"
    );
}

/// The group's memory is used up, and two more workers start: one in the same group, one in a group that is too small
/// for it.
#[test]
fn memory_that_is_taken_and_starts_beside_it() {
    let _alone = alone();
    let calm = Worker::real().start();
    let group = ControlGroup::limited_to(320 * MIB);
    let small = ControlGroup::limited_to(60 * MIB);
    let bounded = match &group {
        Some(group) => group.worker(),
        None => Worker::real().arg("--kv-cache-size", "40MiB"),
    };
    let greedy = match &small {
        Some(group) => group.worker(),
        None => Worker::real().arg("--kv-cache-size", "4TiB"),
    };
    let worker = bounded.clone().start();
    fill_cache(&worker);
    let bystander = Bystander::new(worker.client(), body()).compared_with(calm.client());
    let left = bystander.keeps_pace_beside(|| {
        // They give way, so a load takes as long as other processes are busy.
        let greedy = greedy.clone().patience(PATIENCE_WITH_LOADS);
        greedy.ends_with(INSUFFICIENT_MEMORY, &["bytes required"]);
        let left = cache_bytes(&bounded.clone().patience(PATIENCE_WITH_LOADS).start());
        bystander.wait_tokens(GAPS);
        left
    });
    let taken = cache_bytes(&worker);
    assert!(group.is_none() || left < taken / 2, "{left} beside {taken}");
    let faults = &worker.client().health()["faults"];
    assert_eq!(faults["deaths_by_cause"], json!({}), "{faults}");
}

fn cache_bytes(worker: &Worker) -> u64 {
    let vram = &worker.client().health()["vram"];
    vram["kv_capacity_bytes"].as_u64().expect("a cache")
}

/// Sends requests until they allocate no more memory.
fn fill_cache(worker: &Worker) {
    let child = worker.child_pid().expect("a child serves");
    let taken = || process::anonymous_rss_bytes(child).expect("it lives");
    let mut before = 0;
    for n in 0..40 {
        let prompt =
            format!("{n} numbers. ") + &"The history of numbers is a long one. ".repeat(45);
        let body = json!({
            "job_id": format!("filler-{}", unique()), "prompt": prompt, "max_tokens": 1,
            "temperature": 0.0,
        });
        worker.client().execute(&body).transcript().end();
        if taken() < before + MIB {
            return;
        }
        before = taken();
    }
    panic!("the cache takes more and more");
}

/// The model of the worker was pulled. Transfers break off and send wrong bytes, its file is removed, another one is
/// pulled to its path, and then the child dies.
#[test]
fn transfers_that_break_off_and_lie_and_another_model_under_the_same_name() {
    const NAME: &str = "some/model:m.gguf";
    const CUT: usize = 30 << 20;
    let _alone = alone();
    let cache = TempDir::new().unwrap();
    let whole = fs::read(shallow_model()).unwrap();
    let hub = FakeHub::start(vec![Held::new("some/model", "m.gguf", &whole)]);
    let path = pulled(&pull(&hub, cache.path(), NAME));
    let worker = mortal(Worker::with_model(NAME))
        .env("XDG_CACHE_HOME", cache.path().to_str().unwrap())
        .start();
    let other = ModelCopy::new();
    other.replace_by_other_weights();
    let other = Held::new("some/model", "m.gguf", &fs::read(&other.path).unwrap());
    let lie = Held::new("some/model", "lie.gguf", b"GGUF promised").but_sends(b"GGUF anything");
    let bystander = Bystander::new(worker.client(), body()).that_outlives_deaths();
    bystander.keeps_pace_beside(|| {
        fs::remove_file(&path).unwrap();
        // Its threads inherit the low priority.
        let hub = FakeHub::start(vec![other.clone().cut_after(CUT), lie.clone()]);
        for fails in [NAME, "some/model:lie.gguf"] {
            assert!(!pull(&hub, cache.path(), fails).status.success());
        }
        hub.hold(vec![other.clone()]);
        assert_eq!(pulled(&pull(&hub, cache.path(), NAME)), path);
        assert_eq!(hub.starts()[..], [0, 0, CUT]);
        strike(&worker, Signal::SIGKILL);
        bystander.wait_tokens(GAPS_A_DEATH);
    });
}
