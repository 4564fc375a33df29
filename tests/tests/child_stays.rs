//! Children that ignore the shutdown, or leave a process behind: the worker ends nevertheless.

use nix::sys::signal::Signal;
use worker_orcd_tests::aftermath::ends_the_stream;
use worker_orcd_tests::worker::{describe, request};
use worker_orcd_tests::{Act, Moment, Script, Unreapable, Worker, process, wait};

#[test]
fn a_grandchild_that_holds_the_pipes_holds_nobody_up() {
    let script = Script {
        fork: true,
        ..Script::once(Moment::MidStream(5), Act::Signal(9))
    };
    ends_the_stream(script, "signalled");
}

/// Shutdown, SIGTERM, SIGKILL.
#[test]
fn a_child_that_ignores_sigterm_is_killed() {
    let script = Script {
        ignore_sigterm: true,
        ignore_shutdown: true,
        faulty_generations: u32::MAX,
        ..Script::behave()
    };
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    let blocked = process::blocked_signals(child);
    assert_ne!(blocked & 1 << (15 - 1), 0, "SIGTERM of {blocked:#x}");
    worker.signal(Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(0), "{}", worker.log.text());
    let kills = worker.log.events("child_kill");
    let signals: Vec<_> = kills.iter().map(|kill| &kill["signal"]).collect();
    assert_eq!(signals, ["Term", "Kill"], "{kills:?}");
    assert!(!process::is_alive(child));
}

#[test]
fn a_worker_ends_though_its_child_ignores_everything() {
    let script = Script {
        ignore_sigterm: true,
        ignore_shutdown: true,
        faulty_generations: u32::MAX,
        fork: true,
        ..Script::behave()
    };
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    worker.signal(Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(
        status.code(),
        Some(0),
        "{}: {}",
        describe(status),
        worker.log.text()
    );
    assert!(!process::is_alive(child));
}

/// The worker can only report it and end: the child's memory may not be free. The stream ends, the worker ends with a
/// code of its own, and another one serves.
#[test]
fn a_child_that_cannot_be_reaped_ends_the_worker() {
    let script = Script::behave().token_interval_ms(20);
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    let stream = worker.client().execute(&request("in flight", 1000));
    wait::until("the request to run", || {
        (worker.client().health()["load"]["running"] == 1).then_some(())
    });

    let held = Unreapable::hold(child);
    process::signal(child, Signal::SIGKILL);
    worker.log.wait_for("failover");
    wait::until("the child to be dead, and not waited for", || {
        (process::state(child) == Some('Z')).then_some(())
    });

    let error = stream.transcript().error("WORKER_UNHEALTHY");
    assert!(error.to_string().contains("reboot"), "{error}");
    let status = worker.wait_exit();
    assert_eq!(
        status.code(),
        Some(83),
        "{}: {}",
        describe(status),
        worker.log.text()
    );
    drop(held);
    let reports = worker.crash_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        reports[0]["timeline"]["reaped_ms"].is_null(),
        "{}",
        reports[0]
    );
    assert_eq!(reports[0]["requests"]["count"], 1, "{}", reports[0]);

    Worker::scripted(Script::behave()).start().assert_serves();
}
