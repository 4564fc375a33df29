//! Document at `/openapi.json`, compared with a running worker.

use nix::sys::signal::Signal;
use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use tempfile::NamedTempFile;
use worker_orcd_tests::facts::CHAT_TEMPLATE;
use worker_orcd_tests::oracle;
use worker_orcd_tests::worker::WorkerBuilder;
use worker_orcd_tests::{Client, Script, Worker, process, wait};

/// Variable with Schemathesis's duration; `cargo xtask schemathesis` sets both.
const SECONDS_VARIABLE: &str = "OPENAPI_TEST_SECONDS";
const SEED_VARIABLE: &str = "OPENAPI_TEST_SEED";

/// Short, so that a prompt of that length is processed quickly.
const MAX_PROMPT_CHARS: u32 = 1000;

fn with_keys(keys: &NamedTempFile) -> WorkerBuilder {
    Worker::shallow()
        .arg("--api-key-file", keys.path().display())
        .arg("--pooling", "last")
}

fn keys() -> NamedTempFile {
    let mut keys = NamedTempFile::new().expect("a temporary file");
    writeln!(keys, "operator\nclient").expect("the file is ours");
    keys
}

/// Operator's client of a worker after a child's death, with its report.
fn with_a_report(worker: &Worker) -> Client {
    let operator = worker.client().with_key("operator");
    let child = &operator.health()["child"]["pid"];
    let child = child.as_u64().expect("a child serves") as u32;
    process::signal(child, Signal::SIGKILL);
    wait::until("the next child, and the report of the first", || {
        let health = operator.health();
        let reports = operator.get("/crashes").json();
        let is_there = reports["crashes"][0].is_object() && health["status"] == "healthy";
        is_there.then_some(())
    });
    operator
}

/// Valid OpenAPI 3.1, the documented routes, accepted examples, and only responses of documented statuses, types and
/// shapes.
#[test]
fn the_document_says_what_is_served() {
    let keys = keys();
    let worker = with_keys(&keys).start();
    let operator = with_a_report(&worker);
    let url = format!("http://{}", operator.address);
    oracle::run("openapi_document.py", &[url.as_ref(), "operator".as_ref()]);
}

/// Requests that the document permits, and others: no 5xx, no undocumented response, no valid request refused, no
/// invalid one accepted, no hang, and no death of a child. The client's key is not the operator's, so `/shutdown` and
/// `/restart` are called, and forbidden.
#[test]
fn schemathesis_finds_nothing() {
    let seconds = env::var(SECONDS_VARIABLE).unwrap_or_else(|_| "60".to_owned());
    let keys = keys();
    schemathesis_asks(with_keys(&keys), &seconds);
}

/// The document describes the loaded model: here one with tools.
#[test]
fn schemathesis_finds_nothing_of_a_model_that_knows_tools() {
    let keys = keys();
    let tools = "{% if false %}{{ tools }}{{ messages[0].tool_calls }}<tool_call>{% endif %}";
    let script = Script::behave().chat_template(format!("{tools}{CHAT_TEMPLATE}"));
    let worker = Worker::scripted(script).arg("--api-key-file", keys.path().display());
    schemathesis_asks(worker, "30");
}

fn schemathesis_asks(worker: WorkerBuilder, seconds: &str) {
    let worker = worker
        .arg("--max-tokens-out", 4)
        .arg("--max-prompt-chars", MAX_PROMPT_CHARS)
        .start();
    let operator = with_a_report(&worker);
    let url = format!("http://{}/openapi.json", operator.address);
    let header = "Authorization: Bearer client";
    let seed = env::var(SEED_VARIABLE).unwrap_or_else(|_| "1".to_owned());
    let limits = ["--max-time", seconds, "--seed", &seed];
    // A hang is an error, and so is a slow response.
    let patience = ["--request-timeout", "60", "--max-response-time", "60"];
    let max_prompt_chars = MAX_PROMPT_CHARS.to_string();
    let all = [
        &max_prompt_chars,
        "run",
        &url,
        "--header",
        header,
        "--checks",
        "all",
        "--continue-on-failure",
    ];
    let command = [&all[..], &limits, &patience].concat();
    let command: Vec<_> = command.iter().map(OsStr::new).collect();
    oracle::run("schemathesis_run.py", &command);
    let health = operator.health();
    assert_eq!(health["status"], "healthy", "{health}");
    // The one that this test killed.
    assert_eq!(health["faults"]["restarts"], 1, "{health}");
}
