//! Scores of documents through the real programs: compared with llama.cpp, and with the same bits under every
//! disturbance.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::oracle;
use worker_orcd_tests::{Worker, WorkerBuilder};

const PATH: &str = "/v1/rerank";
const QUERY: &str = "how wide is the river";

/// Tiny random reranker.
struct Reranker {
    _folder: TempDir,
    path: PathBuf,
}

impl Reranker {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("model.gguf");
        let write = ["write".as_ref(), path.as_os_str(), "F32".as_ref()];
        oracle::run("rerank.py", &write);
        Self {
            _folder: folder,
            path,
        }
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::with_model(Path::new(&self.path))
    }

    /// Scores of each document in a request of its own.
    fn alone(&self, documents: &[String]) -> Vec<Value> {
        let worker = self.worker().arg("--threads", 1).start();
        let client = worker.client();
        let each = documents
            .iter()
            .map(|it| scores(&client, std::slice::from_ref(it)));
        each.flatten().collect()
    }
}

fn documents(count: usize) -> Vec<String> {
    let text = |n: usize| format!("It is {n} m. ") + &"Wide. ".repeat(n % 7);
    (0..count).map(text).collect()
}

/// Scores in the order of the documents, as written.
fn scores(client: &Client, documents: &[String]) -> Vec<Value> {
    let answer = client.post(PATH, &json!({"query": QUERY, "documents": documents}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let mut results = answer["results"].as_array().expect("a list").clone();
    assert_eq!(results.len(), documents.len());
    results.sort_by_key(|it| it["index"].as_u64());
    let score = |it: Value| it["relevance_score"].clone();
    results.into_iter().map(score).collect()
}

#[test]
fn they_equal_llama_cpp_s() {
    let reranker = Reranker::new();
    // One prompt has many chunks.
    let worker = reranker.worker().arg("--prefill-chunk", 16).start();
    let url = format!("http://{}", worker.client().address);
    let compare = ["compare".as_ref(), reranker.path.as_os_str(), url.as_ref()];
    oracle::run("rerank.py", &compare);
}

#[test]
fn neither_company_nor_threads_nor_chunks_change_a_bit() {
    let (reranker, documents) = (Reranker::new(), documents(40));
    let expected = reranker.alone(&documents);
    let worker = reranker.worker();
    let worker = worker.arg("--threads", 2).arg("--prefill-chunk", 5).start();
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
        assert_eq!(scores(&client, &documents), expected);
    }
    assert!(stream.join().expect("the stream is served too") > 60);
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_scores_as_they_are() {
    let (reranker, documents) = (Reranker::new(), documents(300));
    let expected = reranker.alone(&documents);
    // One step per token, which leaves time for both.
    let worker = reranker.worker();
    let worker = worker.arg("--prefill-chunk", 1).arg("--max-running", 2);
    let worker = worker.start();
    let client = worker.client();
    for is_killed in [true, false] {
        let asked = {
            let (client, documents) = (client.clone(), documents.clone());
            thread::spawn(move || scores(&client, &documents))
        };
        client.wait_until_it_computes();
        assert!(!asked.is_finished(), "it is over already");
        match is_killed {
            true => worker.kill_child(),
            false => worker.upgrade(),
        }
        assert_eq!(asked.join().expect("an answer"), expected);
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let body = json!({"query": "a", "documents": ["b"]});
    let other = Worker::null().start();
    for path in [PATH, "/rerank"] {
        let answer = other.client().post(path, &body);
        assert_eq!(answer.status, 404, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "model_not_found");
    }
    drop(other);

    let reranker = Reranker::new();
    let worker = reranker.worker().arg("--max-context", 64).start();
    let client = worker.client();
    let long = json!({"query": "a", "documents": ["b", "long ".repeat(60)]});
    let answer = client.post(PATH, &long);
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["param"], "documents");
    let answer = client.post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(answer.status, 404, "a reranker has no embeddings");
}

/// Uses the kernels of embeddings, and a head on the host.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_card_s_scores_are_the_cpu_s_and_a_death_changes_no_bit() {
    let (reranker, documents) = (Reranker::new(), documents(60));
    let expected = reranker.alone(&documents);
    let card = reranker.worker().arg("--device", "cuda:0").start();
    let client = card.client();
    let found = scores(&client, &documents);
    for (one, other) in found.iter().zip(&expected) {
        let apart = one.as_f64().zip(other.as_f64()).map(|(a, b)| (a - b).abs());
        assert!(apart.is_some_and(|it| it < 1e-3), "{one} {other}");
    }
    card.kill_child();
    assert_eq!(scores(&client, &documents), found);
}
