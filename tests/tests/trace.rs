//! The logits trace, and the proof that streamed tokens come from it.

use serde_json::{Value, json};
use worker_orcd_tests::Worker;

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the trace is there");
    assert!(text.ends_with('\n'), "every line is whole");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

#[test]
fn every_generated_token_has_a_line_of_logits_and_greedy_takes_the_largest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    let worker = Worker::real().arg("--trace-logits", path.display()).start();
    let body = json!({
        "job_id": "traced", "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0.0,
    });
    let transcript = worker.client().execute(&body).transcript();
    let end = transcript.end();
    // Flushed per line: complete while the worker still runs.
    let lines = lines(&path);
    for line in &lines {
        for key in [
            "ts",
            "team",
            "checkpoint",
            "token_idx",
            "dtype",
            "shape",
            "values",
            "source",
        ] {
            assert!(line.get(key).is_some(), "{key} in {line}");
        }
    }
    let logits: Vec<&Value> = lines
        .iter()
        .filter(|line| line["checkpoint"] == "logits")
        .collect();
    assert_eq!(logits.len() as u64, end["tokens_out"].as_u64().unwrap());
    let positions: Vec<u64> = logits
        .iter()
        .map(|line| line["token_idx"].as_u64().unwrap())
        .collect();
    assert!(
        positions.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{positions:?}"
    );
    for line in logits {
        let values = line["values"].as_array().unwrap();
        assert!(!values.is_empty());
        assert!(
            values.iter().all(Value::is_number),
            "no NaN in a healthy model: {line}"
        );
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_said_at_start() {
    let mut worker = Worker::real()
        .arg("--trace-logits", "/no/such/dir/trace")
        .arg("--max-restarts", 0)
        .spawn();
    let status = worker.wait_exit();
    assert!(!status.success());
    assert!(
        worker.log.text().contains("/no/such/dir/trace"),
        "{}",
        worker.log.text()
    );
}

/// Two requests of two workers are not one: their lines in one file stay apart.
#[test]
fn a_trace_that_goes_on_after_a_restart_numbers_no_request_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    for _ in 0..2 {
        let worker = Worker::real().arg("--trace-logits", path.display()).start();
        worker.assert_serves();
    }
    let lines = lines(&path);
    let mut requests: Vec<u64> = lines
        .iter()
        .map(|line| line["request"].as_u64().unwrap())
        .collect();
    assert_eq!(requests.len(), 6, "three tokens each: {requests:?}");
    requests.dedup();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|it| *it < 1 << 53), "exact in JSON");
}
