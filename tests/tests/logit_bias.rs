//! `logit_bias` through the real programs: compared with llama.cpp, and with the same bytes under every disturbance;
//! and `cached_tokens`, which is reported once.

use serde_json::{Value, json};
use worker_orcd_tests::Worker;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::model::shallow_model;
use worker_orcd_tests::oracle;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Prompt that is long enough for some whole pages.
fn prompt() -> String {
    "The river runs past the old mill and on to the sea. ".repeat(12)
}

fn body(path: &str, extra: &Value) -> Value {
    let mut body = json!({"max_tokens": 8, "temperature": 0, "ignore_eos": true});
    match path {
        CHAT => body["messages"] = json!([{"role": "user", "content": prompt()}]),
        _ => body["prompt"] = json!(prompt()),
    }
    for (name, value) in extra.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

fn whole(client: &Client, path: &str, extra: &Value) -> Value {
    let answer = client.post(path, &body(path, extra));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn text_of(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    let text = choice["text"]
        .as_str()
        .or(choice["message"]["content"].as_str());
    text.expect("a text")
}

fn cached_tokens(usage: &Value) -> u64 {
    let cached = &usage["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or_else(|| panic!("{usage}"))
}

/// Part of the chunks that equal requests have in common.
fn chunks(events: impl Iterator<Item = String>) -> Vec<Value> {
    let data = events.filter(|data| data != "[DONE]");
    let chunks = data.map(|data| serde_json::from_str::<Value>(&data).expect("JSON"));
    chunks
        .map(|chunk| json!([chunk["choices"], chunk["usage"]]))
        .collect()
}

/// Id of a text that is one token.
fn id(client: &Client, text: &str) -> u64 {
    let answer = client.post("/tokenize", &json!({"content": text})).json();
    let [id] = &answer["tokens"].as_array().expect("ids")[..] else {
        panic!("{text:?} is not one token: {answer}")
    };
    id.as_u64().expect("an id")
}

#[test]
fn a_bias_forbids_and_forces_tokens() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let sea = id(&client, " sea");
    let plain = whole(&client, COMPLETIONS, &json!({"logprobs": 0}));
    let greedy = &plain["choices"][0]["logprobs"]["tokens"][0];
    let greedy = greedy.as_str().expect("a token");
    let forbidden = id(&client, greedy).to_string();
    for path in [COMPLETIONS, CHAT] {
        let forced = whole(
            &client,
            path,
            &json!({"logit_bias": {sea.to_string(): 100}}),
        );
        assert_eq!(text_of(&forced), " sea".repeat(8), "{path}");
    }
    let without = whole(
        &client,
        COMPLETIONS,
        &json!({"logit_bias": {forbidden: -100}, "logprobs": 0}),
    );
    let tokens = without["choices"][0]["logprobs"]["tokens"].as_array();
    let tokens = tokens.expect("tokens");
    assert!(!tokens.iter().any(|token| token == greedy), "{tokens:?}");
    let ours = client.execute(&json!({
        "job_id": "biased", "prompt": prompt(), "max_tokens": 8, "temperature": 0,
        "logit_bias": {sea.to_string(): 100},
    }));
    assert_eq!(ours.transcript().text(), " sea".repeat(8));
}

#[test]
fn a_bias_that_is_none_is_refused_by_name() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for (path, bias) in [
        (CHAT, json!({"5": 101})),
        (COMPLETIONS, json!({"4294967295": 1})),
        ("/execute", json!({"word": 1})),
    ] {
        let mut body = body(path, &json!({"logit_bias": bias}));
        if path == "/execute" {
            body["job_id"] = json!("refused");
        }
        let answer = client.post(path, &body);
        assert_eq!(answer.status, 400, "{path}");
        let name = format!(
            "logit_bias.{}",
            bias.as_object().unwrap().keys().next().unwrap()
        );
        assert!(answer.text().contains(&name), "{}", answer.text());
    }
    worker.assert_serves();
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_biased_bytes_and_cached_tokens() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let biases: Value = (0..1000)
        .map(|id| (format!("{}", 40 + 3 * id), json!(f64::from(id % 9) - 4.0)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    for path in [CHAT, COMPLETIONS] {
        let extra = json!({
            "max_tokens": 120, "temperature": 0.8, "seed": 4, "logit_bias": biases,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let body = body(path, &extra);
        let mut whole_body = body.clone();
        whole_body["stream"] = json!(false);
        whole_body.as_object_mut().unwrap().remove("stream_options");
        let answer = client.post(path, &whole_body).json();
        // The prompt's pages are cached by now.
        let expected = chunks(client.stream(path, &body).map(|it| it.data));
        let usage = &expected.last().expect("chunks")[1];
        assert!(cached_tokens(usage) > 0, "{usage}");
        let texts = expected.iter().filter_map(|chunk| {
            let choice = &chunk[0][0];
            choice["delta"]["content"]
                .as_str()
                .or(choice["text"].as_str())
        });
        assert_eq!(text_of(&answer), texts.collect::<String>());
        for disturbance in Disturbance::ALL {
            // They are cached again, whichever child has died.
            whole(&client, path, &json!({"max_tokens": 1}));
            let found = disturbance.of_stream(&worker, path, &body, 6);
            assert_eq!(
                chunks(found.into_iter()),
                expected,
                "{path}, {disturbance:?}"
            );
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn a_prompt_that_nobody_has_sent_has_no_cached_tokens() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for path in [CHAT, COMPLETIONS] {
        let first = whole(&client, path, &json!({}));
        let again = whole(&client, path, &json!({}));
        let [first, again] = [&first, &again].map(|answer| &answer["usage"]);
        let cached = cached_tokens(again);
        let prompt = again["prompt_tokens"].as_u64().expect("a number");
        assert!((1..prompt).contains(&cached), "{again}");
        assert!(cached_tokens(first) < cached, "{first}");
    }
    let uncached = Worker::shallow().flag("--no-prefix-cache").start();
    for _ in 0..2 {
        let answer = whole(&uncached.client(), COMPLETIONS, &json!({}));
        assert_eq!(cached_tokens(&answer["usage"]), 0);
    }
}

#[test]
fn biased_tokens_equal_llama_cpp_s() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let plain = folder.path().join("plain.gguf");
    let model = shallow_model();
    oracle::run(
        "logit_bias.py",
        &["write".as_ref(), model.as_os_str(), plain.as_os_str()],
    );
    let worker = Worker::with_model(&plain).start();
    let url = format!("http://{}", worker.client().address);
    oracle::run(
        "logit_bias.py",
        &["compare".as_ref(), plain.as_os_str(), url.as_ref()],
    );
}
