//! Outcomes of a child's failure: it is replaced, and its streams end or go on. Each function starts a worker with a
//! first child that fails by the script.

use crate::script::scripted_text;
use crate::worker::request;
use crate::{Script, Worker, wait};

/// Label of the last death's cause.
#[must_use]
pub fn last_cause(worker: &Worker) -> Option<String> {
    let health = worker.client().health();
    health["faults"]["last_death"]["label"]
        .as_str()
        .map(str::to_owned)
}

/// Asserts that the next child serves after a failure with no request in flight.
pub fn is_replaced(script: Script, cause: &str) {
    is_replaced_in(Worker::scripted(script).listening(), cause);
}

pub fn is_replaced_in(mut worker: Worker, cause: &str) {
    let seen = wait::until("the first child's death", || last_cause(&worker));
    assert_eq!(seen, cause, "{}", worker.log.text());
    worker.wait_ready();
    // A recovering worker is ready while there is no child yet.
    let is_next = |generation: &u64| *generation >= 2;
    wait::until("the next child", || worker.generation().filter(is_next));
    worker.assert_serves();
}

/// Asserts that a failure in the middle of a stream, with `--on-fault fail`, ends the stream with one retriable error,
/// and that the next child serves.
pub fn ends_the_stream(script: Script, cause: &str) {
    let script = script.token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--on-fault", "fail").start();
    let first = worker.child_pid();
    let transcript = worker
        .client()
        .execute(&request("in flight", 200))
        .transcript();
    transcript.assert_well_formed();
    assert_eq!(transcript.last().name, "error", "{:?}", transcript.last());
    let error = transcript.last().json();
    assert_eq!(error["retriable"], true, "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{error}"
    );
    worker.assert_serves();
    assert_eq!(
        last_cause(&worker).as_deref(),
        Some(cause),
        "{}",
        worker.log.text()
    );
    assert_ne!(worker.child_pid(), first);
    worker.wait_one_child();
}

/// Asserts that with `--on-fault resume` the stream equals that of a run without the fault.
pub fn is_not_noticed(script: Script, cause: &str) {
    let worker = Worker::scripted(script.token_interval_ms(20)).start();
    let transcript = worker
        .client()
        .execute(&request("in flight", 40))
        .transcript();
    let end = transcript.end();
    assert_eq!(transcript.text(), scripted_text("in flight", 40));
    assert_eq!(end["tokens_out"], 40);
    assert_eq!(end["recoveries"], 1, "{end}");
    assert_eq!(
        last_cause(&worker).as_deref(),
        Some(cause),
        "{}",
        worker.log.text()
    );
}
