//! What may come of a child that goes wrong: it is replaced, its streams end or go on. Each of these
//! starts a worker whose first child does what the script says.

use crate::script::scripted_text;
use crate::worker::request;
use crate::{Script, Worker, wait};

/// The lifecycle's label for the cause of the last death.
#[must_use]
pub fn last_cause(worker: &Worker) -> Option<String> {
    let health = worker.client().health();
    health["faults"]["last_death"]["label"]
        .as_str()
        .map(str::to_owned)
}

/// Goes wrong with no request in flight; the next child serves.
pub fn is_replaced(script: Script, cause: &str) {
    is_replaced_in(Worker::scripted(script).listening(), cause);
}

pub fn is_replaced_in(mut worker: Worker, cause: &str) {
    let seen = wait::until("the first child's death", || last_cause(&worker));
    assert_eq!(seen, cause, "{}", worker.log.text());
    worker.wait_ready();
    // A worker that recovers calls itself ready while there is no child yet.
    let is_next = |generation: &u64| *generation >= 2;
    wait::until("the next child", || worker.generation().filter(is_next));
    worker.assert_serves();
}

/// Goes wrong in the middle of a stream: with `--on-fault fail` the stream ends with one
/// retriable error, and the next child serves.
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

/// As above, but with `--on-fault resume`: the stream is the one of a run without the fault.
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
