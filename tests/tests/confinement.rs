//! Confinement of children and interpreters, as the kernel and the worker report it. `escapes.rs` tests what it blocks.

use std::fs;
use worker_orcd_tests::{Worker, process, wait};

/// Line of the status of each thread of a process.
fn of_each_thread(pid: u32, name: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let statuses = threads.flatten().filter_map(|thread| {
        // A thread may end meanwhile.
        fs::read_to_string(thread.path().join("status")).ok()
    });
    let value = |status: String| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    statuses.filter_map(value).collect()
}

fn assert_each_thread(pid: u32, name: &str, expected: &str) {
    let found = of_each_thread(pid, name);
    assert!(!found.is_empty());
    assert!(
        found.iter().all(|value| value == expected),
        "{name} of {pid}: {found:?}"
    );
}

#[test]
fn each_thread_of_each_child_is_confined_and_no_interpreter_gains_privileges() {
    const FILTERED: &str = "2";
    let worker = Worker::shallow().flag("--standby").start();
    wait::until("the standby to be ready", || {
        let standby = worker.client().health()["standby"].clone();
        (standby["state"] == "standing_by").then_some(())
    });
    let children = process::model_children(worker.pid());
    assert_eq!(children.len(), 2, "one that serves and one that stands by");
    for child in children {
        assert_each_thread(child, "NoNewPrivs", "1");
        assert_each_thread(child, "Seccomp", FILTERED);
        let limits = fs::read_to_string(format!("/proc/{child}/limits")).expect("limits");
        let cores = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let words: Vec<_> = cores.expect("a line").split_whitespace().collect();
        assert_eq!(words[4..6], ["0", "0"], "{limits}");
    }
    for interpreter in process::interpreters(worker.pid()) {
        assert_each_thread(interpreter, "NoNewPrivs", "1");
    }
}

#[test]
fn a_child_that_is_not_to_be_confined_is_not() {
    let worker = Worker::shallow().arg("--child-confinement", "off").start();
    let child = worker.child_pid().expect("a child serves");
    assert_each_thread(child, "NoNewPrivs", "0");
    assert_each_thread(child, "Seccomp", "0");
}
