//! Effects of signals, and leftovers of a worker that ended by one.

use nix::libc;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd::exit::WorkerExit;
use worker_orcd_tests::stage::Stage;
use worker_orcd_tests::worker::{binary, describe, request};
use worker_orcd_tests::{Bystander, Script, Worker, WorkerBuilder, on_the_beat, process, wait};

fn slow() -> WorkerBuilder {
    Worker::scripted(Script::behave().token_interval_ms(20))
}

#[test]
fn sigterm_behind_shutdown_hurries_it() {
    let mut worker = slow().arg("--drain-timeout", "1s").start();
    let mut stream = worker.client().execute(&request("abc", 2000));
    stream.wait_for("token");
    assert_eq!(
        worker
            .client()
            .post("/shutdown", &serde_json::json!({}))
            .status,
        202
    );
    let start = Instant::now();
    worker.signal(Signal::SIGTERM);
    assert_eq!(stream.last().expect("a terminal event").name, "error");
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(84), "{}", describe(status));
    // Undisturbed, the stream would have taken forty seconds.
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn sigquit_ends_what_runs_with_an_error_and_waits_for_nothing() {
    let mut worker = slow().arg("--drain-timeout", "1h").start();
    let mut stream = worker.client().execute(&request("abc", 2000));
    stream.wait_for("token");
    let start = Instant::now();
    worker.signal(Signal::SIGQUIT);
    let last = stream.last().expect("a terminal event");
    assert_eq!(
        (last.name.as_str(), &last.json()["code"]),
        ("error", &"WORKER_UNHEALTHY".into())
    );
    assert_eq!(worker.wait_exit().code(), Some(84));
    assert!(start.elapsed() < Duration::from_secs(20));

    let mut worker = slow().start();
    worker.signal(Signal::SIGQUIT);
    assert_eq!(worker.wait_exit().code(), Some(0), "nothing was left");
}

#[test]
fn a_signal_beside_an_upgrade_neither_ends_the_worker_nor_is_lost() {
    let script = Script::behave().token_interval_ms(20);
    let worker = Worker::scripted(script).start();
    let mut stream = worker.client().execute(&request("job", 400));
    stream.wait_for("token");
    let others = [Signal::SIGUSR2, Signal::SIGHUP, Signal::SIGUSR1];
    let mut reloads = 0;
    for (turn, other) in (1_u64..=12).zip(others.into_iter().cycle()) {
        let before = worker.log.events("upgrade").len();
        worker.signal(Signal::SIGUSR2);
        thread::sleep(Duration::from_millis(turn * 7 % 60));
        worker.signal(other);
        wait::until("an upgrade", || {
            // The previous upgrade may be in progress, or the worker still starting.
            worker.signal(Signal::SIGUSR2);
            thread::sleep(Duration::from_millis(100));
            (worker.log.events("upgrade").len() > before).then_some(())
        });
        if other == Signal::SIGHUP {
            reloads += 1;
            worker.log.wait_for_many("reload", reloads);
        }
    }
    let numbers = stream.by_ref().take_while(|event| event.name == "token");
    let numbers: Vec<_> = numbers.map(|event| event.json()["i"].clone()).collect();
    assert!(numbers.into_iter().eq((1..400).map(Value::from)));
}

#[test]
fn sigterm_beside_an_upgrade_drains_and_a_second_one_ends() {
    let script = || Script::behave().token_interval_ms(20);
    for pause in [0, 15, 40, 80] {
        let mut worker = Worker::scripted(script()).start();
        let mut stream = worker.client().execute(&request("job", 100));
        stream.wait_for("token");
        worker.signal(Signal::SIGUSR2);
        thread::sleep(Duration::from_millis(pause));
        worker.signal(Signal::SIGTERM);
        assert_eq!(stream.last().expect("an end").name, "end", "{pause}");
        assert_eq!(worker.wait_exit().code(), Some(0), "{pause}");
    }
    let stage = Stage::below(env!("CARGO_TARGET_TMPDIR"));
    let mut worker = Worker::scripted(script())
        .program_at(&stage.program)
        .start();
    let mut stream = worker.client().execute(&request("job", 2000));
    stream.wait_for("token");
    stage.place(b"#!/bin/sh\nexec sleep 600\n");
    let children = process::children(worker.pid()).len();
    worker.signal(Signal::SIGUSR2);
    wait::until("the rehearsal", || {
        (process::children(worker.pid()).len() > children).then_some(())
    });
    worker.signal(Signal::SIGTERM);
    worker.log.wait_for("upgrade_refused");
    worker.log.wait_for("shutdown");
    let asked_at = Instant::now();
    worker.signal(Signal::SIGTERM);
    assert_eq!(stream.last().expect("an end").name, "error");
    worker.wait_exit();
    assert!(asked_at.elapsed() < Duration::from_secs(20));
}

// === Leftovers ===

/// Socket directories below `parent`.
fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).unwrap().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with("worker-orcd-")
        })
        .collect();
    found.sort();
    found
}

fn below(builder: WorkerBuilder, parent: &Path) -> WorkerBuilder {
    builder.env("XDG_RUNTIME_DIR", parent.to_str().unwrap())
}

#[test]
fn an_exit_leaves_no_directory_behind() {
    let parent = tempfile::tempdir().unwrap();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
    ] {
        let mut worker = below(slow(), parent.path()).start();
        assert_eq!(directories(parent.path()).len(), 1);
        worker.signal(signal);
        assert_eq!(worker.wait_exit().code(), Some(0));
        assert_eq!(directories(parent.path()), [] as [PathBuf; 0], "{signal}");
    }
}

#[test]
fn the_next_worker_removes_what_a_killed_one_left_and_nothing_that_is_in_use() {
    let parent = tempfile::tempdir().unwrap();
    let living = below(slow(), parent.path()).start();
    let in_use = directories(parent.path());
    let mut killed = below(slow(), parent.path()).start();
    killed.signal(Signal::SIGKILL);
    killed.wait_exit();
    assert_eq!(directories(parent.path()).len(), 2);
    let mut next = below(slow(), parent.path()).start();
    wait::until("the log to say what was removed", || {
        let removed = next.log.events("leftovers_removed");
        let of_parent = |event: &&Value| event["parent"] == parent.path().to_str().unwrap();
        let event = removed.iter().find(of_parent)?;
        assert_eq!(event["count"], 1, "{event}");
        Some(())
    });
    assert_eq!(
        directories(parent.path()).len(),
        2,
        "its own, and the living one's"
    );
    next.signal(Signal::SIGTERM);
    next.wait_exit();
    assert_eq!(directories(parent.path()), in_use);
    // Its directory is still usable for another child.
    let child = living.child_pid().unwrap();
    process::signal(child, Signal::SIGKILL);
    wait::until("the next child", || {
        living.child_pid().filter(|pid| *pid != child)
    });
    living.assert_serves();
}

// === Exit codes ===

/// Numbers and meanings of a table, extracted from its lines by `columns`.
fn codes<'a>(
    text: &'a str,
    columns: impl Fn(&'a str) -> Option<(&'a str, &'a str)>,
) -> BTreeMap<u8, &'a str> {
    text.lines()
        .filter_map(columns)
        .filter_map(|(code, meaning)| Some((code.trim().parse().ok()?, meaning.trim())))
        .collect()
}

#[test]
fn help_groups_its_options_and_gives_examples_with_and_without_the_word_serve() {
    for words in [&["--help"][..], &["serve", "--help"]] {
        let output = Command::new(binary("tested-worker-orcd"))
            .args(words)
            .output();
        let help = String::from_utf8(output.unwrap().stdout).unwrap();
        for heading in ["\nModel and device:\n", "\nListening and access:\n"] {
            assert!(help.contains(heading), "{heading} in {help}");
        }
        assert_eq!(help.starts_with("Examples:"), words.len() == 1, "{help}");
    }
}

#[test]
fn every_exit_code_is_in_help() {
    let output = Command::new(binary("tested-worker-orcd"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, help) = help
        .split_once("Exit codes:")
        .expect("the section is there");
    let helped = codes(help, |line| line.trim().split_once("  "));
    let all = WorkerExit::all().into_iter();
    let known: BTreeMap<_, _> = all.map(|exit| (exit.code(), exit.meaning())).collect();
    assert_eq!(helped, known);
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn no_other_signal_ends_the_worker_and_each_is_said_once() {
        let mut worker = Worker::scripted(on_the_beat()).start();
        let named = [
            Signal::SIGUSR1,
            Signal::SIGALRM,
            Signal::SIGPIPE,
            Signal::SIGVTALRM,
            Signal::SIGPROF,
            Signal::SIGIO,
            Signal::SIGSTKFLT,
            Signal::SIGPWR,
            Signal::SIGXCPU,
            Signal::SIGXFSZ,
        ];
        let mut rounds = 0;
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            for _ in 0..30 {
                for signal in named {
                    worker.signal(signal);
                }
                for number in [libc::SIGRTMIN(), libc::SIGRTMAX()] {
                    let words = [format!("-{number}"), worker.pid().to_string()];
                    assert!(Command::new("kill").args(words).status().unwrap().success());
                }
                rounds += 1;
                worker.signal(Signal::SIGHUP);
                worker.log.wait_for_many("reload", rounds);
            }
        });
        worker.signal(Signal::SIGTERM);
        assert_eq!(worker.wait_exit().code(), Some(0), "{}", worker.log.text());
        let said = worker.log.events("signal_ignored");
        assert_eq!(said.len(), named.len() + 2, "{said:#?}");
    }
}
