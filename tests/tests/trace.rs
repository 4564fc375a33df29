//! Logits trace, and the proof that streamed tokens come from it.

use serde_json::{Value, json};
use worker_orcd_gpu::model::{GgufFile, tokenizer_facts};
use worker_orcd_ipc::TokenId;
use worker_orcd_tests::Worker;
use worker_orcd_tests::model::real_model;
use worker_orcd_text::Text;

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
    let worker = Worker::shallow()
        .arg("--trace-logits", path.display())
        .arg("--trace-values", 1_000_000)
        .start();
    let body = json!({
        "job_id": "traced", "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0.0,
    });
    let transcript = worker.client().execute(&body).transcript();
    let end = transcript.end();
    // Flushed per line, so complete while the worker runs.
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
    let largest: Vec<TokenId> = logits.iter().map(|line| largest_of(line)).collect();
    assert_eq!(text_code().decode(&largest), transcript.text());
}

/// Token with the largest logit, the first of equals.
fn largest_of(line: &Value) -> TokenId {
    let values = line["values"].as_array().unwrap();
    let vocabulary = line["shape"].as_array().unwrap().last().unwrap();
    assert_eq!(
        vocabulary.as_u64(),
        Some(values.len() as u64),
        "the whole row"
    );
    // A healthy model has no NaN.
    let logits = values.iter().map(|value| value.as_f64().unwrap());
    let largest = logits
        .enumerate()
        .reduce(|best, it| if it.1 > best.1 { it } else { best });
    let token = largest.unwrap().0 as u32;
    assert_eq!(line["argmax"], token);
    TokenId(token)
}

fn text_code() -> Text {
    let file = GgufFile::open(&real_model()).unwrap();
    Text::from_facts(&tokenizer_facts(&file.header().unwrap()).unwrap()).unwrap()
}

/// Equal requests of two workers are distinct: their lines in one file stay apart.
#[test]
fn a_trace_that_goes_on_after_a_restart_numbers_no_request_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.jsonl");
    for _ in 0..2 {
        let worker = Worker::shallow()
            .arg("--trace-logits", path.display())
            .start();
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
