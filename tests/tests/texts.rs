//! `/tokenize`, `/detokenize`, `/apply-template`.

use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::oracle;
use worker_orcd_tests::{Client, Script, Worker, wait};

#[test]
fn they_say_what_llama_cpp_s_server_says() {
    let worker = Worker::shallow().start();
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
fn tokens_of_a_text_without_end_are_refused_and_a_long_text_is_counted() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = long_text(&client, 16 << 20);
    let answer = client.post("/detokenize", &body);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("\"tokens\""), "{}", answer.text());
    worker.assert_serves();
}

/// Tokens of more than so many bytes of text, few for their length.
fn long_text(client: &Client, bytes: usize) -> Value {
    let long = "-".repeat(1 << 17);
    let told = client.post("/tokenize", &json!({"content": long, "with_pieces": true}));
    let told: Value = told.json();
    assert!(told["count"].as_u64() > Some(100), "{}", told["count"]);
    let tokens = told["tokens"].as_array().unwrap();
    let length = |token: &&Value| token["piece"].as_str().map(str::len);
    let longest = tokens.iter().max_by_key(length).unwrap();
    let count = bytes / length(&longest).unwrap() + 1;
    json!({"tokens": vec![longest["id"].clone(); count]})
}

#[test]
fn an_answer_that_nobody_reads_takes_room_until_its_client_is_gone() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = long_text(&client, 10 << 20);
    let ask = || client.post("/detokenize", &body).status;
    assert_eq!(ask(), 200);
    let address = client.address.to_string();
    let mut idle = TcpStream::connect(&address).unwrap();
    let text = body.to_string();
    let length = text.len();
    let head =
        format!("POST /detokenize HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json");
    write!(idle, "{head}\r\nContent-Length: {length}\r\n\r\n{text}").unwrap();
    let mut status = [0; 12];
    idle.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    assert_eq!(ask(), 429);
    drop(idle);
    wait::until("room for another answer", || (ask() == 200).then_some(()));
}

#[test]
fn a_text_that_is_too_long_is_refused_by_the_name_it_was_given() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let text = "a".repeat(1 << 20);
    for (body, field) in [
        (json!({"content": text}), "content"),
        (json!({"content": text, "add_special": true}), "content"),
        (json!({"prompt": text}), "prompt"),
        (
            json!({"prompt": text, "add_special_tokens": false}),
            "prompt",
        ),
    ] {
        let answer = client.post("/tokenize", &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let named = format!("\"field\":\"{field}\"");
        assert!(answer.text().contains(&named), "{}", answer.text());
    }
}

#[test]
fn another_model_and_no_text_are_refused_by_name() {
    let worker = Worker::scripted(Script::behave())
        .flag("--strict-model-name")
        .start();
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
