//! `/tokenize`, `/detokenize`, `/apply-template`.

mod oracle;

use serde_json::{Value, json};
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::{Script, Worker};

#[test]
fn they_say_what_llama_cpp_s_server_says() {
    let worker = Worker::real().start();
    let url = format!("http://{}", worker.client().address);
    oracle::run("texts.py", &[url.as_ref(), real_model().as_os_str()]);
}

#[test]
fn vllm_s_names_are_understood_and_its_fields_answered() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let body = json!({"prompt": "abc", "add_special_tokens": false, "return_token_strs": true});
    let told: Value = client.post("/tokenize", &body).json();
    assert_eq!(told["count"], told["tokens"].as_array().unwrap().len());
    let texts: Vec<_> = told["token_strs"].as_array().unwrap().iter().collect();
    let joined: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(joined, "abc");
    assert!(told["max_model_len"].as_u64().unwrap() > 0);
    let back: Value = client
        .post("/detokenize", &json!({"tokens": told["tokens"]}))
        .json();
    assert_eq!(back["prompt"], "abc");
}

#[test]
fn a_text_that_fits_no_context_is_refused_before_it_is_taken_apart() {
    let worker = Worker::real().start();
    let client = worker.client();
    let body = json!({"content": "x".repeat(3 << 20)});
    let answer = client.post("/tokenize", &body);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("context"), "{}", answer.text());
    worker.assert_serves();
}

#[test]
fn another_model_and_no_text_are_refused_by_name() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    for (path, body, status, word) in [
        ("/tokenize", json!({}), 400, "content"),
        (
            "/tokenize",
            json!({"content": "a", "model": "b"}),
            404,
            "model",
        ),
        (
            "/detokenize",
            json!({"tokens": [1_000_000_000]}),
            400,
            "tokens",
        ),
        ("/apply-template", json!({"prompt": "a"}), 400, "messages"),
    ] {
        let answer = client.post(path, &body);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().contains(word), "{path}: {}", answer.text());
    }
}
