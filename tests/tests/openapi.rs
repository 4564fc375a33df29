//! The document at `/openapi.json` against a running worker: what it says is what is there.

use nix::sys::signal::Signal;
use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use tempfile::NamedTempFile;
use worker_orcd_tests::facts::CHAT_TEMPLATE;
use worker_orcd_tests::oracle;
use worker_orcd_tests::worker::WorkerBuilder;
use worker_orcd_tests::{Client, Script, Worker, process, wait};

/// How long Schemathesis asks; `cargo xtask schemathesis` sets both.
const SECONDS_VARIABLE: &str = "OPENAPI_TEST_SECONDS";
const SEED_VARIABLE: &str = "OPENAPI_TEST_SEED";

/// Short, so that a prompt of that length is soon read.
const MAX_PROMPT_CHARS: u32 = 1000;

fn with_keys(keys: &NamedTempFile) -> WorkerBuilder {
    Worker::real()
        .arg("--api-key-file", keys.path().display())
        .arg("--pooling", "last")
}

fn keys() -> NamedTempFile {
    let mut keys = NamedTempFile::new().expect("a temporary file");
    writeln!(keys, "operator\nclient").expect("the file is ours");
    keys
}

/// The operator of a worker in which a child died, and left a report to ask for.
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

/// Valid OpenAPI 3.1, the routes that people are told, examples that are accepted, and no answer
/// of another status, type or shape than it names.
#[test]
fn the_document_says_what_is_served() {
    let keys = keys();
    let worker = with_keys(&keys).start();
    let operator = with_a_report(&worker);
    let url = format!("http://{}", operator.address);
    oracle::run("openapi_document.py", &[url.as_ref(), "operator".as_ref()]);
}

/// Whatever the document allows and whatever it does not: no 5xx, no answer that is not in the
/// document, nothing valid refused, nothing invalid taken, no hang, and no child dies of it. The
/// client's key is not the operator's, so `/shutdown` and `/restart` are asked, and forbidden.
#[test]
fn schemathesis_finds_nothing() {
    let seconds = env::var(SECONDS_VARIABLE).unwrap_or_else(|_| "60".to_owned());
    let keys = keys();
    schemathesis_asks(with_keys(&keys), &seconds);
}

/// What the document says is of the model that is served: here of one that knows tools.
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
    // A hang is an error, and so is an answer that takes too long.
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
    // The one that we killed.
    assert_eq!(health["faults"]["restarts"], 1, "{health}");
}
