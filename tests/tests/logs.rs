//! Log for operators: a stalled reader, both formats, and untrusted text.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::gguf_builder::GgufBuilder;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::log::Log;
use worker_orcd_tests::worker::{binary, request};
use worker_orcd_tests::{Bystander, Client, Script, Worker, on_the_beat, wait};

// === Stalled reader ===

/// Cancels unknown jobs, each with a long log line, until lines are dropped.
fn log_more_than_fits(client: &Client) {
    let long = json!({ "job_id": "\u{1f980}".repeat(128) });
    let before = figure(client, DROPPED);
    // The client gets little time beside other work.
    wait::within(Duration::from_secs(120), "lines to be dropped", || {
        for _ in 0..200 {
            assert_eq!(client.post("/cancel", &long).status, 202);
        }
        (figure(client, DROPPED) > before).then_some(())
    });
}

const DROPPED: &str = "worker_orcd_log_lines_dropped_total";

fn figure(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.trim().parse().expect("a number")
}

#[test]
fn sigterm_ends_a_worker_whose_log_nobody_reads() {
    let mut worker = Worker::scripted(Script::behave()).start();
    worker.log.hold();
    log_more_than_fits(&worker.client());
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0));
}

// === Formats ===

#[test]
fn text_in_a_pipe_has_no_colours_and_names_its_worker() {
    let id = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";
    let worker = Worker::scripted(Script::behave())
        .arg("--worker-id", id)
        .arg("--log-format", "text")
        .spawn();
    let line = wait::until("a ready worker", || {
        let lines = worker.log.lines();
        lines.into_iter().find(|line| line.contains(" ready "))
    });
    assert!(line.contains(&format!("worker_id={id}")), "{line:?}");
    assert!(line.contains(" INFO ready "), "{line:?}");
    assert!(!worker.log.text().contains('\u{1b}'));
}

/// Text of a model file must not reach a terminal.
#[test]
fn a_model_file_forges_no_line_and_clears_no_terminal() {
    let evil = "llama\n2026-01-01T00:00:00.000Z  INFO ready forged=yes\r\u{1b}[2J\u{9b}2J";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("evil.gguf");
    let file = GgufBuilder::new().meta("general.architecture", evil);
    std::fs::write(&path, file.build()).unwrap();
    for format in ["text", "json"] {
        let mut worker = Worker::with_model(&path)
            .arg("--log-format", format)
            .spawn();
        assert!(!worker.wait_exit().success());
        let text = worker.log.text();
        assert!(text.contains("forged"), "the architecture is named: {text}");
        let is_forged = |line: &String| line.starts_with("2026-01-01");
        assert!(!worker.log.lines().iter().any(is_forged), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\r']), "{text:?}");
    }
}

#[test]
fn wrong_settings_are_told_in_the_format_that_was_asked_for() {
    let refused = |format: &str| {
        let mut worker = Worker::scripted(Script::behave())
            .arg("--log-format", format)
            .env("WORKER_ORCD_PORTT", "1")
            .spawn();
        assert_eq!(worker.wait_exit().code(), Some(2));
        worker.log.clone()
    };
    let log = refused("json");
    let errors: Vec<Value> = log.events("error");
    assert_eq!(errors.len(), 1, "{}", log.text());
    let reason = errors[0]["reason"].as_str().unwrap();
    assert!(reason.contains("WORKER_ORCD_PORTT") && reason.contains("WORKER_ORCD_PORT is one"));
    let log = refused("text");
    assert!(log.text().starts_with("error: WORKER_ORCD_PORTT"));
    assert!(log.text().contains("Usage: worker-orcd --model FILE.gguf"));
}

#[test]
fn the_level_says_what_is_logged_and_a_misspelt_one_is_refused() {
    let worker = Worker::scripted(Script::behave())
        .arg("--log-level", "info,worker_orcd::http=warn")
        .start();
    worker.log.wait_for("startup");
    let _ = worker.client().execute(&request("x", 2)).transcript();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload");
    assert!(worker.log.events("execute_end").is_empty());
    let mut worker = Worker::scripted(Script::behave())
        .arg("--log-level", "infoo")
        .spawn();
    assert_eq!(worker.wait_exit().code(), Some(2));
    assert!(worker.log.text().contains("infoo"));
}

#[test]
fn sighup_reads_the_level_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.toml");
    let write = |level: &str| std::fs::write(&path, format!("log-level = \"{level}\"\n"));
    write("info,worker_orcd::http=warn").unwrap();
    let worker = Worker::scripted(Script::behave())
        .arg("--config", path.display())
        .start();
    let _ = worker.client().execute(&request("x", 2)).transcript();
    write("info").unwrap();
    worker.signal(Signal::SIGHUP);
    wait::until("the level to be read again", || {
        let reloads = worker.log.events("reload");
        reloads
            .iter()
            .any(|it| it["log_level"] == "info")
            .then_some(())
    });
    let _ = worker.client().execute(&request("x", 2)).transcript();
    let ends = worker.log.wait_for_many("execute_end", 1);
    assert_eq!(ends.len(), 1, "only the second");
}

/// Through a terminal of Python's `pty`.
#[test]
fn a_person_at_a_terminal_is_told_what_to_type_next() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("tiny.gguf");
    std::fs::write(&model, tiny_model(Architecture::Llama).build()).unwrap();
    let mut terminal = Command::new("python3")
        .args(["-c", "import pty, sys; pty.spawn(sys.argv[1:])"])
        .arg(binary("tested-worker-orcd"))
        .args(["--device", "cpu", "--host", "127.0.0.1", "--port", "0"])
        .arg("--child-binary")
        .arg(binary("tested-worker-orcd-gpu"))
        .arg("--model")
        .arg(&model)
        .env("XDG_STATE_HOME", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let log = Log::default();
    log.follow(terminal.stdout.take().expect("piped"));
    let port: u16 = wait::until("a line to type", || {
        let lines = log.lines();
        let hint = lines.iter().find(|line| line.contains("curl -N"))?;
        let (_, rest) = hint.split_once("localhost:")?;
        rest.split('/').next()?.parse().ok()
    });
    assert!(
        log.text().contains("\u{1b}[32m"),
        "no colours: {:?}",
        log.text()
    );
    let client = Client::new(([127, 0, 0, 1], port).into());
    assert_eq!(client.post("/shutdown", &json!({})).status, 202);
    assert!(terminal.wait().expect("our own child").success());
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn a_log_that_nobody_reads_stops_nothing_and_what_is_lost_is_counted() {
        let worker = Worker::scripted(on_the_beat()).start();
        let client = worker.client();
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            worker.log.hold();
            log_more_than_fits(&client);
            // Long enough for a stream to log its beginning and end.
            std::thread::sleep(Duration::from_secs(5));
            let lost = figure(&client, DROPPED);
            worker.log.release();
            wait::until("the count to be logged", || {
                let lines = worker.log.events("log_lines_dropped");
                let told: u64 = lines.iter().filter_map(|it| it["count"].as_u64()).sum();
                (told as f64 >= lost).then_some(())
            });
        });
        // Lines flow again.
        let body = request("x", 2);
        let _ = client.execute(&body).transcript();
        wait::until("new lines", || {
            let ends = worker.log.events("execute_end");
            ends.iter()
                .any(|it| it["job_id"] == body["job_id"])
                .then_some(())
        });
    }
}
