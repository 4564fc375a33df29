//! Child across an upgrade: it lives on, unless it was started with other settings.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use worker_orcd_tests::client::{Client, Transcript};
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Worker, process, wait};

/// Request with a prompt that fills many pages of the KV cache.
fn long() -> Value {
    json!({
        "job_id": "long",
        "prompt": "Once upon a time ".repeat(60),
        "max_tokens": 120,
        "temperature": 0.0,
        "seed": 1,
        "ignore_eos": true,
    })
}

fn load(client: &Client, name: &str) -> u64 {
    let load = &client.health()["load"];
    load[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {load}"))
}

/// Text of that request without a disturbance.
fn alone(client: &Client) -> String {
    client.execute(&long()).transcript().text()
}

fn assert_rest(told: &Transcript, expected: &str) {
    assert!(expected.ends_with(&told.text()), "the rest of it");
    assert_eq!(told.last().json()["tokens_out"], 120);
}

/// Writes a settings file with this `max-running`.
fn settings(path: &Path, max_running: u32) {
    fs::write(path, format!("max-running = {max_running}\n")).expect("written");
}

#[test]
fn it_lives_on_and_computes_next_to_nothing_again() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let expected = alone(&client);
    let child = worker.child_pid().expect("a child");
    let mut stream = client.execute(&long());
    stream.wait_for("token");
    let before = load(&client, "prompt_tokens");
    worker.upgrade();
    worker.upgrade();
    assert_rest(&stream.transcript(), &expected);
    assert_eq!(worker.child_pid(), Some(child));
    // Each upgrade sends its tokens to the child again.
    let again = wait::until("the child to tell of them", || {
        let tokens = load(&client, "prompt_tokens").checked_sub(before)?;
        (tokens >= 400).then_some(tokens)
    });
    let hits = load(&client, "prefix_hit_tokens");
    assert!(hits * 10 >= again * 9, "{hits} of {again} tokens");
}

#[test]
fn it_dies_with_the_supervisor_that_went_on_with_it_and_another_one_follows_it() {
    let mut worker = Worker::shallow().start();
    let client = worker.client();
    let expected = alone(&client);
    let mut stream = client.execute(&long());
    stream.wait_for("token");
    worker.upgrade();
    let first = worker.child_pid().expect("a child");
    process::signal(first, Signal::SIGKILL);
    assert_rest(&stream.transcript(), &expected);
    let died = worker.log.wait_for("child_death");
    assert_eq!(died["label"], "signalled", "{died}");
    let reports = worker.crash_reports();
    assert!(
        reports[0]["flight_recorder"]["records"].as_u64() > Some(0),
        "{}",
        reports[0]
    );

    worker.upgrade();
    let second = worker.child_pid().expect("a child");
    assert_ne!(first, second);
    worker.signal(Signal::SIGKILL);
    worker.wait_exit();
    wait::until("the child's end", || {
        (!process::is_alive(second)).then_some(())
    });
}

#[test]
fn where_other_settings_are_asked_for_another_one_adopts_what_it_computed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("settings.toml");
    settings(&path, 3);
    let worker = Worker::shallow()
        .arg("--config", path.display())
        .flag("--standby")
        .start();
    let client = worker.client();
    let expected = alone(&client);
    let child = worker.child_pid().expect("a child");
    let mut stream = client.execute(&long());
    stream.wait_for("token");
    settings(&path, 5);
    worker.upgrade();
    assert_rest(&stream.transcript(), &expected);
    assert_ne!(worker.child_pid(), Some(child));
    assert!(!process::is_alive(child), "it has ended");
    let adopted = wait::until("the child to tell what it adopted", || {
        Some(load(&client, "adopted_tokens")).filter(|tokens| *tokens > 0)
    });
    assert!(adopted >= 200, "{adopted} of the prompt's tokens");
}

#[test]
fn where_its_program_is_another_by_then_one_of_that_takes_its_place_when_it_is_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let (program, next) = (
        directory.path().join("worker-orcd-gpu"),
        directory.path().join("next"),
    );
    fs::copy(binary("tested-worker-orcd-gpu"), &program).expect("copied");
    let worker = Worker::shallow().with_child(&program).start();
    let client = worker.client();
    let expected = alone(&client);
    let child = worker.child_pid().expect("a child");
    let mut stream = client.execute(&long());
    stream.wait_for("token");
    fs::copy(&program, &next).expect("copied");
    fs::rename(&next, &program).expect("replaced");
    worker.upgrade();
    assert_eq!(worker.log.events("child_kept").len(), 1);
    assert_rest(&stream.transcript(), &expected);
    wait::until("the next child to serve alone", || {
        (worker.generation() == Some(2) && !process::is_alive(child)).then_some(())
    });
}
