//! Budgets of reasoning, through the real programs and the real model. Its template begins every answer with reasoning
//! that never ends by itself.

use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;
use worker_orcd_tests::Worker;
use worker_orcd_tests::chat::answered;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::gguf_patch::with_chat_template;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::worker::WorkerBuilder;

const CHAT: &str = "/v1/chat/completions";
const BUDGET: &str = "thinking_token_budget";

const OPENED: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}<|im_start|>assistant\n<think>\n";

/// Template with optional reasoning.
const TAGGED: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}<|im_start|>assistant\n{# <think> #}";

struct Thinker {
    worker: Worker,
    _dir: TempDir,
}

fn thinker(template: &str, more: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Thinker {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path: PathBuf = dir.path().join("thinks.gguf");
    with_chat_template(&real_model(), template, &path).expect("the model is there");
    let worker = more(Worker::with_model(&path)).start();
    Thinker { worker, _dir: dir }
}

fn chat(extra: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Which rivers flow through Paris?"}],
        "max_tokens": 60, "temperature": 0.7, "seed": 5,
    });
    let extra = extra.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(extra);
    body
}

fn answer(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

fn choice(client: &Client, extra: &Value) -> Value {
    answer(client, CHAT, &chat(extra))["choices"][0].clone()
}

fn text<'a>(choice: &'a Value, part: &str) -> &'a str {
    choice["message"][part].as_str().unwrap_or_default()
}

/// Text that the model writes after a prompt.
fn written(client: &Client, prompt: &str, max_tokens: usize) -> String {
    let body = json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": 5,
    });
    let answer = answer(client, "/v1/completions", &body);
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    text.to_owned()
}

fn prompt_of(client: &Client) -> String {
    let answer = answer(
        client,
        "/apply-template",
        &json!({"messages": chat(&json!({}))["messages"]}),
    );
    answer["prompt"].as_str().expect("a prompt").to_owned()
}

/// `/v1/completions` has no reasoning, and tokens depend on the text before them and on the seed. It therefore provides
/// the expected parts of an answer.
#[test]
fn thoughts_are_those_without_a_bound_cut_behind_so_many_tokens_and_the_answer_follows_the_tag() {
    let thinker = thinker(OPENED, |it| it);
    let client = thinker.worker.client();
    let prompt = prompt_of(&client);
    assert!(prompt.ends_with("<think>\n"), "{prompt}");
    let unbounded = choice(&client, &json!({}));
    assert!(unbounded["message"]["content"].is_null(), "{unbounded}");
    assert_eq!(
        text(&unbounded, "reasoning_content"),
        written(&client, &prompt, 60).trim()
    );
    for tokens in [0_usize, 1, 9] {
        let bounded = choice(&client, &json!({BUDGET: tokens}));
        let thoughts = match tokens {
            0 => String::new(),
            _ => written(&client, &prompt, tokens),
        };
        assert_eq!(
            text(&bounded, "reasoning_content"),
            thoughts.trim(),
            "{tokens}"
        );
        let before = format!("{prompt}{thoughts}</think>");
        let body = json!({"content": before});
        let tokenized = |body: &Value| {
            let tokens = answer(&client, "/tokenize", body);
            tokens["tokens"].as_array().expect("tokens").len()
        };
        let generated = tokenized(&body) - tokenized(&json!({"content": prompt}));
        let said = written(&client, &before, 60 - generated);
        assert_eq!(text(&bounded, "content"), said.trim_start(), "{tokens}");
        assert!(!said.trim().is_empty(), "nothing follows the tag");
    }
    // llama-server's name, and a budget that is never reached.
    let same = choice(&client, &json!({"thinking_budget_tokens": 9}));
    assert_eq!(same, choice(&client, &json!({BUDGET: 9})));
    assert_eq!(choice(&client, &json!({BUDGET: 60})), unbounded);
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_bounded_thoughts_as_they_are() {
    let thinker = thinker(OPENED, |it| it);
    let worker = &thinker.worker;
    let client = worker.client();
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 20,
    }}});
    for extra in [
        json!({BUDGET: 24, "n": 2}),
        json!({BUDGET: 24, "logprobs": true, "top_logprobs": 2}),
        json!({BUDGET: 24, "response_format": format, "max_tokens": 300}),
    ] {
        let mut body = chat(&extra);
        body["stream"] = json!(true);
        let chunks = |events: Vec<String>| -> Vec<Value> {
            let chunks = events.into_iter().filter(|it| it != "[DONE]");
            let chunk =
                |it: String| serde_json::from_str::<Value>(&it).expect("JSON")["choices"].take();
            chunks.map(chunk).collect()
        };
        // The order of several choices in a stream is arbitrary.
        let sorted = |mut chunks: Vec<Value>| {
            chunks.sort_by_key(|it| it[0]["index"].as_u64());
            chunks
        };
        // A busy machine may not check a grammar in time for a stream.
        let check_grammar = || {
            let mut once = body.clone();
            once["stream"] = json!(false);
            once["max_tokens"] = json!(1);
            assert_eq!(answered(&client, &once).status, 200);
        };
        check_grammar();
        let undisturbed = client.stream(CHAT, &body).map(|it| it.data).collect();
        let expected = sorted(chunks(undisturbed));
        let thinks = |it: &Value| it[0]["delta"]["reasoning_content"].is_string();
        let says = |it: &Value| it[0]["delta"]["content"].is_string();
        assert!(
            expected.iter().any(thinks) && expected.iter().any(says),
            "{extra}"
        );
        // In the reasoning, and after it.
        let [killed, replaced] = Disturbance::ALL;
        for (events, disturbance) in [(10, replaced), (40, killed), (10, killed)] {
            check_grammar();
            let found = disturbance.of_stream(worker, CHAT, &body, events);
            let found = sorted(chunks(found));
            assert_eq!(found, expected, "{extra}, {events}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn a_form_begins_behind_bounded_thoughts() {
    let thinker = thinker(OPENED, |it| it);
    let client = thinker.worker.client();
    for tokens in [0, 7] {
        let bounded = choice(
            &client,
            &json!({BUDGET: tokens, "structured_outputs": {"regex": "no\\. [0-9]{4}"}}),
        );
        let said = text(&bounded, "content");
        assert!(said.starts_with("no. ") && said.len() == 8, "{bounded}");
        assert_eq!(bounded["finish_reason"], "stop");
        assert_eq!(text(&bounded, "reasoning_content").is_empty(), tokens == 0);
    }
    let lark = json!({BUDGET: 7, "structured_outputs": {"grammar": "start: \"a\""}});
    let refused = client.post(CHAT, &chat(&lark));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], BUDGET);
}

#[test]
fn the_operator_s_bound_holds_where_a_request_says_nothing() {
    let thinker = thinker(OPENED, |it| it.arg("--reasoning-budget", 9));
    let client = thinker.worker.client();
    let bounded = choice(&client, &json!({}));
    assert_eq!(bounded, choice(&client, &json!({BUDGET: 9})));
    assert!(!text(&bounded, "content").is_empty(), "{bounded}");
    let more = choice(&client, &json!({BUDGET: 20}));
    let thoughts = text(&bounded, "reasoning_content");
    assert!(text(&more, "reasoning_content").starts_with(thoughts));
    assert_ne!(text(&more, "reasoning_content"), thoughts);
    let free = choice(&client, &json!({BUDGET: -1}));
    assert!(free["message"]["content"].is_null(), "{free}");

    let said = |path: &str, extra: &Value| {
        let mut body = chat(extra);
        if path == "/v1/responses" {
            body["input"] = body["messages"].take();
            body["max_output_tokens"] = body["max_tokens"].take();
            let fields = body.as_object_mut().expect("an object");
            fields.remove("messages");
            fields.remove("max_tokens");
        }
        answer(&client, path, &body)
    };
    let response = said("/v1/responses", &json!({}));
    assert_eq!(response["output"][0]["content"][0]["text"], thoughts);
    let message = said("/v1/messages", &json!({}));
    assert_eq!(message["content"][0]["thinking"], thoughts);
    let more_of_it = json!({"thinking": {"type": "enabled", "budget_tokens": 20}});
    let message = said("/v1/messages", &more_of_it);
    assert_eq!(
        message["content"][0]["thinking"],
        text(&more, "reasoning_content")
    );
    // The template opens reasoning in any case.
    let message = said("/v1/messages", &json!({"thinking": {"type": "disabled"}}));
    let none = choice(&client, &json!({BUDGET: 0}));
    assert_eq!(message["content"][0]["type"], "text");
    assert_eq!(message["content"][0]["text"], none["message"]["content"]);
}

#[test]
fn an_answer_without_thoughts_has_the_bytes_that_it_has_without_a_bound() {
    let thinker = thinker(TAGGED, |it| it);
    let client = thinker.worker.client();
    for tokens in [0, 3] {
        let bounded = choice(&client, &json!({BUDGET: tokens}));
        assert_eq!(bounded, choice(&client, &json!({})));
        assert!(!text(&bounded, "content").is_empty(), "{bounded}");
    }
    // A tag that the model writes itself: nothing else begins like this.
    let begun =
        json!({"structured_outputs": {"regex": "[0-9]"}, BUDGET: 4, "logit_bias": biased(&client)});
    let bounded = choice(&client, &begun);
    assert!(!text(&bounded, "reasoning_content").is_empty(), "{bounded}");
    assert_eq!(text(&bounded, "content").len(), 1, "{bounded}");
}

/// Biases the model to the tag, where it is permitted.
fn biased(client: &Client) -> Value {
    let tokens = answer(client, "/tokenize", &json!({"content": "<think>"}));
    let tokens = tokens["tokens"].as_array().expect("tokens").iter();
    let bias = tokens.map(|token| (token.to_string(), json!(100)));
    Value::Object(bias.collect())
}

#[test]
fn a_model_without_thoughts_has_no_bound_on_them() {
    let worker = Worker::real().start();
    for field in [BUDGET, "thinking_budget_tokens"] {
        let refused = worker.client().post(CHAT, &chat(&json!({field: 5})));
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["error"]["param"], field);
        answer(&worker.client(), CHAT, &chat(&json!({field: -1})));
    }
    // Claude Code sets a budget for every model.
    let body = chat(&json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}));
    answer(&worker.client(), "/v1/messages", &body);
    worker.assert_serves();
}
