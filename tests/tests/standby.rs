//! Standby: a second child with the weights of the first, which takes over from it.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use tempfile::TempDir;
use worker_orcd_tests::mappings::{ORDERS, holders_of, kv_caches_of, mapped_by, weights_of};
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Bystander, Worker, WorkerBuilder, process, wait};

fn with_standby() -> WorkerBuilder {
    Worker::shallow().flag("--standby")
}

fn body() -> Value {
    json!({"prompt": "Tell me of the sea.", "max_tokens": 300, "temperature": 0.7, "seed": 3,
           "ignore_eos": true})
}

/// Standby in `/health`.
fn standby(worker: &Worker) -> Value {
    wait::until("a child to stand by", || {
        let health = worker.client().health();
        let standby = health["standby"].clone();
        let both_ready = health["state"] == "serving" && standby["state"] == "standing_by";
        both_ready.then(|| standby["child"].clone())
    })
}

fn pid(child: &Value) -> u32 {
    child["pid"].as_u64().expect("a process") as u32
}

#[test]
fn it_goes_on_with_the_streams_of_the_dead_and_has_the_next_one_behind_it() {
    let worker = with_standby().start();
    let bystander = Bystander::new(worker.client(), body());
    let alone = bystander.alone();
    let mut stream = bystander.begin();
    stream.more(5);
    for death in 1..=3 {
        let standby = standby(&worker);
        assert_eq!(standby["role"], "standby");
        worker.kill_child();
        wait::until("it to serve", || {
            (worker.child_pid() == Some(pid(&standby))).then_some(())
        });
        let health = worker.client().health();
        assert_eq!(health["child"]["role"], "active");
        assert_eq!(health["faults"]["restarts"], death);
        stream.more(5);
    }
    let (text, end) = stream.end();
    assert_eq!(text, alone);
    assert_eq!(end["recoveries"], 3);
    let reports = worker.crash_reports();
    assert_eq!(reports.len(), 3);
    for report in &reports {
        let first_token = &report["timeline"]["first_token_ms"];
        assert!(first_token.is_f64(), "{report}");
    }
}

#[test]
fn it_maps_the_memory_of_the_child_that_serves() {
    let worker = with_standby().start();
    let standby = standby(&worker);
    let weights = weights_of(pid(&standby)).expect("the weights");
    assert_eq!(weights.rights, "r--p");
    assert_eq!(weights_of(worker.child_pid().unwrap()), Some(weights));
    let health = worker.client().health();
    let of_standby = health["standby"]["memory_bytes"].as_u64();
    assert!(
        of_standby > health["vram"]["weights_bytes"].as_u64(),
        "{health}"
    );
}

#[test]
fn its_death_costs_no_stream_anything() {
    let worker = with_standby().start();
    let bystander = Bystander::new(worker.client(), body());
    let alone = bystander.alone();
    let first = standby(&worker);
    let mut stream = bystander.begin();
    stream.more(5);
    process::signal(pid(&first), Signal::SIGKILL);
    wait::until("the next one", || {
        (standby(&worker)["pid"] != first["pid"]).then_some(())
    });
    let (text, end) = stream.end();
    assert_eq!((text, &end["recoveries"]), (alone, &json!(0)));
    let health = worker.client().health();
    assert_eq!(health["child"]["generation"], 1);
    assert_eq!(health["faults"]["deaths_by_cause"]["signalled"], 1);
    assert_eq!(
        health["faults"]["deaths_in_window"], 0,
        "it counts against nobody"
    );
    assert_eq!(health["faults"]["restarts"], 0);
}

#[test]
fn a_new_child_takes_over_by_order_and_nobody_died() {
    for builder in [Worker::shallow(), with_standby()] {
        let worker = builder.start();
        let client = worker.client();
        let keeps_one = !client.health()["standby"].is_null();
        let before = if keeps_one {
            standby(&worker)
        } else {
            Value::Null
        };
        let first = worker.child_pid();
        let bystander = Bystander::new(client.clone(), body());
        let alone = bystander.alone();
        let mut stream = bystander.begin();
        stream.more(5);
        assert_eq!(client.post("/restart", &json!({})).status, 202);
        let next = wait::until("another child to serve", || {
            worker.child_pid().filter(|pid| Some(*pid) != first)
        });
        assert_ne!(
            u64::from(next),
            before["pid"].as_u64().unwrap_or(0),
            "one of this binary"
        );
        assert_eq!(stream.end().0, alone);
        let health = client.health();
        assert_eq!(health["status"], "healthy");
        assert_eq!(health["faults"]["deaths_in_window"], 0);
        let reports = worker.crash_reports();
        assert!(reports.is_empty(), "nobody died: {reports:?}");
        match keeps_one {
            true => drop(standby(&worker)),
            false => assert!(health["standby"].is_null()),
        }
    }
}

/// Copy of the child's program.
fn copied_program() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("worker-orcd-gpu");
    std::fs::copy(binary("tested-worker-orcd-gpu"), &program).expect("a copy");
    (directory, program)
}

/// An upgrade replaces the file of the program.
#[test]
fn a_program_that_was_replaced_takes_over_by_itself_and_no_stream_notices() {
    let (directory, program) = copied_program();
    let worker = with_standby().with_child(&program).start();
    let first = worker.child_pid();
    standby(&worker);
    let bystander = Bystander::new(worker.client(), body());
    let alone = bystander.alone();
    let mut stream = bystander.begin();
    stream.more(5);
    let next = directory.path().join("next");
    std::fs::copy(&program, &next).expect("another copy");
    std::fs::rename(&next, &program).expect("replaced");
    wait::until("another child to serve", || {
        worker.child_pid().filter(|pid| Some(*pid) != first)
    });
    assert_eq!(stream.end().0, alone);
    assert_eq!(worker.crash_reports().len(), 0, "nobody died");
    let standby = pid(&standby(&worker));
    let running = std::fs::read_link(format!("/proc/{standby}/exe")).expect("a program");
    assert_eq!(running, program, "not one that was replaced");
}

/// A child of another version would be refused, which would waste the standby.
#[test]
fn a_program_of_another_version_is_told_in_the_log_and_left_alone() {
    let (directory, program) = copied_program();
    let worker = with_standby().with_child(&program).start();
    let pids = || (worker.child_pid(), pid(&standby(&worker)));
    let before = pids();
    let bystander = Bystander::new(worker.client(), body());
    let alone = bystander.alone();
    let next = directory.path().join("next");
    std::fs::write(&next, "#!/bin/sh\necho worker-orcd-gpu 9.9.9\n").expect("written");
    std::fs::set_permissions(&next, Permissions::from_mode(0o700)).expect("executable");
    std::fs::rename(&next, &program).expect("replaced");
    let told = worker.log.wait_for("child_program_of_another_version");
    assert_eq!(told["said"], "9.9.9", "{told}");
    assert_eq!(bystander.alone(), alone);
    assert_eq!(pids(), before);
    assert_eq!(worker.log.events("child_program_changed").len(), 0);
    assert_eq!(worker.crash_reports().len(), 0);
}

#[test]
fn one_that_dies_too_often_is_given_up_with_the_reason_until_another_child_serves() {
    let worker = Worker::shallow()
        .flag("--standby")
        .arg("--max-restarts", 0)
        .start();
    let client = worker.client();
    let is_ready = |figure| {
        let metrics = client.get("/metrics").text();
        metrics.contains(&format!("worker_orcd_standby_ready {figure}"))
    };
    let first = standby(&worker);
    assert!(is_ready(1));
    process::signal(pid(&first), Signal::SIGABRT);
    let given_up = wait::until("it to be given up", || {
        let standby = client.health()["standby"].clone();
        (standby["state"] == "given_up").then_some(standby)
    });
    let reason = given_up["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("killed by signal 6"), "{given_up}");
    assert!(given_up["child"].is_null(), "{given_up}");
    assert!(is_ready(0));
    worker.assert_serves();
    assert_eq!(client.post("/restart", &json!({})).status, 202);
    wait::until("another one to stand by", || {
        (standby(&worker)["pid"] != first["pid"]).then_some(())
    });
    assert!(is_ready(1));
}

#[test]
fn a_drain_ends_it_too() {
    let mut worker = with_standby().start();
    let left = pid(&standby(&worker));
    worker.signal(Signal::SIGTERM);
    assert!(worker.wait_exit().success());
    assert_eq!(weights_of(left), None);
}

#[test]
fn killed_in_any_order_they_leave_no_process_and_no_memory() {
    for order in ORDERS {
        let worker = with_standby().start();
        let pids = [
            worker.pid(),
            worker.child_pid().expect("a child serves"),
            pid(&standby(&worker)),
        ];
        let weights = weights_of(pids[1]).expect("the weights").inode;
        let mapped: BTreeSet<_> = mapped_by(&weights).into_iter().collect();
        assert_eq!(mapped, BTreeSet::from([pids[1], pids[2]]));
        let caches = kv_caches_of(pids[0]);
        assert_eq!(caches.len(), 2, "of each child");
        assert_eq!(holders_of(&caches).len(), 3);
        for victim in order {
            process::signal(pids[victim], Signal::SIGKILL);
        }
        // Children that started in between die with the supervisor.
        wait::until("the memory to be nobody's", || {
            let is_nobody_s = mapped_by(&weights).is_empty() && holders_of(&caches).is_empty();
            is_nobody_s.then_some(())
        });
    }
}
