//! The document at `/openapi.json` against a running worker: what it says is what is there.

mod oracle;

use std::io::Write as _;
use worker_orcd_tests::{Worker, process, wait};

/// Valid OpenAPI 3.1, the routes that people are told, examples that are accepted, and no answer
/// of another status, type or shape than it names.
#[test]
fn the_document_says_what_is_served() {
    let mut keys = tempfile::NamedTempFile::new().expect("a temporary file");
    writeln!(keys, "operator").expect("the file is ours");
    let worker = Worker::real()
        .arg("--api-key-file", keys.path().display())
        .start();
    let operator = worker.client().with_key("operator");
    // A child that died leaves a report to ask for.
    let child = &operator.health()["child"]["pid"];
    let child = child.as_u64().expect("a child serves") as u32;
    process::signal(child, nix::sys::signal::Signal::SIGKILL);
    wait::until("the next child, and the report of the first", || {
        let health = operator.health();
        let reports = operator.get("/crashes").json();
        let is_there = reports["crashes"][0].is_object() && health["status"] == "healthy";
        is_there.then_some(())
    });
    let url = format!("http://{}", operator.address);
    oracle::run("openapi_document.py", &[url.as_ref(), "operator".as_ref()]);
}
