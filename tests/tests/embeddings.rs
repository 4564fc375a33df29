//! Embeddings through the real programs: compared with llama.cpp, and with the same bytes under every disturbance.

use serde_json::{Value, json};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::client::Client;
use worker_orcd_tests::oracle;
use worker_orcd_tests::{Worker, WorkerBuilder};

const PATH: &str = "/v1/embeddings";
const POOLINGS: [&str; 3] = ["mean", "cls", "last"];

fn texts(count: usize) -> Vec<String> {
    let text =
        |n: usize| format!("Text number {n} tells of a river. ") + &"It is long. ".repeat(n % 7);
    (0..count).map(text).collect()
}

/// Vector of each input, as written.
fn vectors(client: &Client, input: &Value) -> Vec<String> {
    let answer = client.post(PATH, &json!({"input": input, "encoding_format": "base64"}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let data = answer["data"].as_array().expect("a list");
    let written = data.iter().map(|it| it["embedding"].as_str().unwrap());
    written.map(str::to_owned).collect()
}

/// Vector of each text in a request of its own.
fn alone(pooling: &str, texts: &[String]) -> Vec<String> {
    let worker = pooled(pooling).arg("--threads", 1).start();
    let client = worker.client();
    let each = texts.iter().map(|text| vectors(&client, &json!(text)));
    each.flatten().collect()
}

fn pooled(pooling: &str) -> WorkerBuilder {
    Worker::shallow().arg("--pooling", pooling)
}

#[test]
fn they_equal_llama_cpp_s_for_every_pooling_of_a_file_and_of_the_flag() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let cases = [
        ("qwen3", "1", None),
        ("qwen3", "2", None),
        ("qwen3", "3", None),
        ("llama", "none", Some(("3", "last"))),
        // The flag precedes the file.
        ("qwen2", "3", Some(("1", "mean"))),
        ("phi3", "3", Some(("2", "cls"))),
    ];
    for (variant, of_file, chosen) in cases {
        let model = folder.path().join("model.gguf");
        let write = [
            "write".as_ref(),
            model.as_os_str(),
            variant.as_ref(),
            of_file.as_ref(),
        ];
        oracle::run("embeddings.py", &write);
        // One text has many chunks.
        let worker = Worker::with_model(Path::new(&model)).arg("--prefill-chunk", 32);
        let (number, worker) = match chosen {
            Some((number, word)) => (number, worker.arg("--pooling", word)),
            None => (of_file, worker),
        };
        let worker = worker.start();
        let url = format!("http://{}", worker.client().address);
        let compare = [
            "compare".as_ref(),
            model.as_os_str(),
            number.as_ref(),
            url.as_ref(),
        ];
        oracle::run("embeddings.py", &compare);
    }
}

#[test]
fn neither_company_nor_threads_nor_chunks_nor_a_prefix_change_a_bit() {
    let texts = texts(12);
    for pooling in POOLINGS {
        let expected = alone(pooling, &texts);
        let worker = pooled(pooling)
            .arg("--threads", 2)
            .arg("--prefill-chunk", 5)
            .start();
        let client = worker.client();
        let stream = {
            let client = client.clone();
            let body = json!({
                "prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": true, "seed": 3,
                "stream": true,
            });
            thread::spawn(move || client.stream("/v1/completions", &body).count())
        };
        for _ in 0..2 {
            assert_eq!(vectors(&client, &json!(texts)), expected, "{pooling}");
        }
        assert!(stream.join().expect("the stream is served too") > 60);
    }
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_bytes_as_they_are() {
    let texts = texts(40);
    for pooling in ["mean", "last"] {
        let expected = alone(pooling, &texts);
        let worker = pooled(pooling).start();
        let client = worker.client();
        for is_killed in [true, false] {
            let asked = {
                let (client, input) = (client.clone(), json!(texts));
                thread::spawn(move || vectors(&client, &input))
            };
            client.wait_until_it_computes();
            match is_killed {
                true => worker.kill_child(),
                false => worker.upgrade(),
            }
            assert_eq!(asked.join().expect("an answer"), expected, "{pooling}");
        }
        assert!(worker.generation() > Some(1), "no child died");
    }
}

#[test]
fn more_inputs_than_the_queue_has_places_are_answered_in_order() {
    let worker = pooled("last")
        .arg("--max-running", 1)
        .arg("--max-queue", 1)
        .start();
    let client = worker.client();
    let texts = texts(20);
    let together = vectors(&client, &json!(texts));
    for n in [0, 7, 19] {
        assert_eq!(vectors(&client, &json!(texts[n])), together[n..=n]);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let worker = Worker::null().start();
    let answer = worker.client().post(PATH, &json!({"input": "a"}));
    assert_eq!(answer.status, 404, "{}", answer.text());
    let none = answer.json()["error"].clone();
    assert_eq!(none["code"], "model_not_found");
    let message = none["message"].as_str().unwrap();
    assert!(message.contains("--pooling"), "{message}");
    drop(worker);

    let worker = pooled("last").arg("--max-context", 64).start();
    let client = worker.client();
    let error = |body: Value| {
        let answer = client.post(PATH, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.json()["error"].clone()
    };
    let long = error(json!({"input": ["short", "a b ".repeat(60)]}));
    assert_eq!(long["code"], "context_length_exceeded");
    assert_eq!(long["param"], "input");
    let wide = error(json!({"input": "a", "dimensions": 100_000}));
    assert_eq!(wide["param"], "dimensions");
    assert_eq!(vectors(&client, &json!(["a", [1, 2]])).len(), 2);
}

#[test]
fn the_work_of_a_client_that_leaves_is_given_up_and_its_text_is_in_no_log() {
    let worker = pooled("mean").arg("--prefill-chunk", 1).start();
    let client = worker.client();
    let long: Vec<String> = (0..30).map(|n| format!("SECRET{n} ").repeat(60)).collect();
    let waits = client.connect().expect("a connection");
    let body = json!({"input": long}).to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut waits = waits;
    waits.send(head.as_bytes()).expect("it is read");
    waits.send(body.as_bytes()).expect("it is read");
    client.wait_until_it_computes();
    drop(waits);
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.health()["load"]["running"] != 0 {
        assert!(Instant::now() < deadline, "it is still computed");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(vectors(&client, &json!("a")).len(), 1);
    let log = worker.log_until_now();
    assert!(log.contains("CLIENT_GONE"), "{log}");
    assert!(!log.contains("SECRET"), "{log}");
}

/// Needs a model of F32 weights (`WORKER_ORCD_MODEL`); devices round quantized ones differently.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_card_s_vectors_are_the_cpu_s_and_nothing_beside_them_changes_a_bit() {
    let texts = texts(12);
    let on = |device: &str, pooling: &str| pooled(pooling).arg("--device", device);
    let numbers = |client: &Client, input: &Value| -> Vec<Vec<f64>> {
        let answer = client.post(PATH, &json!({"input": input})).json();
        let data = answer["data"].as_array().expect("a list").clone();
        let of = |it: Value| serde_json::from_value(it["embedding"].clone()).unwrap();
        data.into_iter().map(of).collect()
    };
    for pooling in POOLINGS {
        let cpu = on("cpu", pooling).start();
        let expected = numbers(&cpu.client(), &json!(texts));
        drop(cpu);
        let card = on("cuda:0", pooling).start();
        let client = card.client();
        let found = numbers(&client, &json!(texts));
        for (one, other) in found.iter().zip(&expected) {
            let cosine: f64 = one.iter().zip(other).map(|(a, b)| a * b).sum();
            assert!(cosine > 0.9999, "{pooling}: {cosine}");
        }
        let alone: Vec<_> = texts
            .iter()
            .flat_map(|it| vectors(&client, &json!(it)))
            .collect();
        drop(card);
        let card = on("cuda:0", pooling).arg("--prefill-chunk", 5).start();
        let client = card.client();
        let stream = {
            let client = client.clone();
            let body = json!({"prompt": "a", "max_tokens": 90, "ignore_eos": true, "stream": true});
            thread::spawn(move || client.stream("/v1/completions", &body).count())
        };
        assert_eq!(vectors(&client, &json!(texts)), alone, "{pooling}");
        card.kill_child();
        assert_eq!(vectors(&client, &json!(texts)), alone, "{pooling}");
        assert!(stream.join().expect("the stream is served too") > 2);
    }
}
