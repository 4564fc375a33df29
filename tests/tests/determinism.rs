//! The same request gives the same bytes: alone or in a batch, at any time, with any number of threads.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::{Worker, process, wait, worker};

const PROMPT: &str = "<|im_start|>user\nName three rivers and say one sentence about each.\
                      <|im_end|>\n<|im_start|>assistant\n";

/// Long enough for two pages of 32 positions that a second request can reuse.
fn long_prompt(n: usize) -> String {
    let question = format!("Question {n}. Name three rivers, say one sentence about each of them");
    let question = question + &", and then tell where they come from and where they end".repeat(5);
    format!("<|im_start|>user\n{question}.<|im_end|>\n<|im_start|>assistant\n")
}

/// Greedy request, and one with all sampling parameters.
fn subjects() -> Vec<Value> {
    let common = |mut body: Value| {
        body["prompt"] = json!(PROMPT);
        body["max_tokens"] = json!(48);
        body
    };
    vec![
        common(json!({ "temperature": 0.0 })),
        common(json!({ "temperature": 0.8, "seed": 1234 })),
        common(json!({
            "temperature": 0.8, "seed": 99, "top_k": 40, "top_p": 0.95, "min_p": 0.02,
            "repetition_penalty": 1.1,
        })),
    ]
}

/// Different lengths, so that batches and chunks are cut in many ways.
fn company(n: usize) -> Value {
    json!({
        "prompt": "The history of the number ".repeat(1 + n) + &n.to_string(),
        "max_tokens": 12 + n * 2,
        "temperature": 1.0,
        "seed": n,
    })
}

fn named(mut body: Value) -> Value {
    body["job_id"] = json!(format!("d-{}", worker::unique()));
    body
}

/// Data of every `token` event and the counts of the end: everything that must be equal.
fn bytes_of(client: &Client, body: &Value) -> Vec<String> {
    let transcript = client.execute(&named(body.clone())).transcript();
    let end = transcript.end();
    let tokens = transcript
        .events
        .iter()
        .filter(|event| event.name == "token");
    let mut bytes: Vec<String> = tokens.map(|event| event.data.clone()).collect();
    for key in ["tokens_out", "tokens_in", "stop_reason"] {
        bytes.push(format!("{key}={}", end[key]));
    }
    bytes
}

fn prefix_hit_tokens(client: &Client) -> u64 {
    let hits = &client.health()["load"]["prefix_hit_tokens"];
    hits.as_u64().unwrap_or_else(|| panic!("hits: {hits}"))
}

fn beside_fifteen_others(client: &Client, body: &Value) -> Vec<String> {
    let others: Vec<_> = (0..15)
        .map(|n| {
            let client = client.clone();
            thread::spawn(move || bytes_of(&client, &company(n)))
        })
        .collect();
    let subject = bytes_of(client, body);
    for other in others {
        other.join().expect("the company is served too");
    }
    subject
}

#[test]
fn alone_and_beside_fifteen_others_the_bytes_are_the_same() {
    let worker = Worker::shallow().arg("--max-running", 16).start();
    let client = worker.client();
    for (n, mut body) in subjects().into_iter().enumerate() {
        body["prompt"] = json!(long_prompt(n));
        let before = prefix_hit_tokens(&client);
        let alone = bytes_of(&client, &body);
        assert!(alone.len() > 10, "{alone:?}");
        assert_eq!(bytes_of(&client, &body), alone, "twice alone: {body}");
        wait::until(
            "the second time to be told as a hit of the prefix cache",
            || (prefix_hit_tokens(&client) >= before + 64).then_some(()),
        );
        assert_eq!(
            beside_fifteen_others(&client, &body),
            alone,
            "in company: {body}"
        );
    }
}

/// A counter that is reset with a child would look like a restart to Prometheus.
#[test]
fn what_the_prefix_cache_saved_adds_up_over_children() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let mut body = subjects().remove(0);
    body["prompt"] = json!(long_prompt(0));
    let hits = || {
        let text = client.get("/metrics").text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("worker_orcd_prefix_cache_hits_total "));
        line.expect("the counter").parse::<f64>().expect("a number")
    };
    let (mut seen, mut child) = (0.0, None);
    for life in ["the first child", "the second child"] {
        child = wait::until(life, || {
            worker
                .child_pid()
                .filter(|pid| Some(*pid) != child)
                .map(Some)
        });
        for _ in 0..2 {
            bytes_of(&client, &body);
        }
        seen = wait::until(life, || Some(hits()).filter(|now| *now >= seen + 64.0));
        process::signal(child.expect("a child"), Signal::SIGKILL);
    }
}

#[test]
fn another_process_with_other_threads_and_chunks_gives_the_same_bytes() {
    let reference = Worker::shallow().arg("--threads", 1).start();
    let other = Worker::shallow()
        .arg("--threads", 2)
        .arg("--prefill-chunk", 7)
        .start();
    for body in subjects() {
        let expected = bytes_of(&reference.client(), &body);
        assert_eq!(bytes_of(&other.client(), &body), expected, "{body}");
    }
}

#[test]
fn the_seed_that_was_generated_repeats_the_stream() {
    let worker = Worker::shallow().start();
    let mut body = json!({ "prompt": PROMPT, "max_tokens": 24, "temperature": 1.0 });
    let first = worker.client().execute(&named(body.clone())).transcript();
    body["seed"] = first.events[0].json()["seed"].clone();
    assert!(body["seed"].is_u64(), "{}", first.events[0].data);
    let again = worker.client().execute(&named(body.clone())).transcript();
    assert_eq!(again.text(), first.text());
    body["seed"] = json!(body["seed"].as_u64().unwrap() ^ 1);
    let other = worker.client().execute(&named(body)).transcript();
    assert_ne!(other.text(), first.text(), "another seed, another text");
}
