//! Speculative decoding through the real programs: answers are those without it, also when a child or a supervisor is
//! replaced in their middle, and drafts are accepted.

use serde_json::{Value, json};
use worker_orcd_tests::chat::{anonymous, streamed};
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::tools_model::with_tools;
use worker_orcd_tests::{Worker, wait};

const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// A text that repeats itself. The first layers of a model go on with it.
fn prompt() -> String {
    "The river runs past the old mill and on to the sea, and the boats run with it. ".repeat(8)
}

pub(crate) fn with(base: Value, extra: &Value) -> Value {
    let mut body = base;
    for (name, value) in extra.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

pub(crate) fn completion(extra: &Value) -> Value {
    let base = json!({"prompt": prompt(), "max_tokens": 60, "ignore_eos": true});
    with(base, extra)
}

fn chat(extra: &Value) -> Value {
    let messages = json!([{"role": "user", "content": prompt()}]);
    let base = json!({"messages": messages, "max_tokens": 60, "ignore_eos": true});
    with(base, extra)
}

/// Objects of the same names.
fn listed() -> Value {
    let place = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["river", "lake"]},
            "is_deep": {"type": "boolean"},
        },
        "required": ["name", "kind", "is_deep"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {"places": {"type": "array", "items": place, "minItems": 4, "maxItems": 4}},
        "required": ["places"],
        "additionalProperties": false,
    })
}

fn format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "places", "schema": schema}})
}

/// Requests of every kind that samples differently.
pub(crate) fn requests() -> Vec<(&'static str, Value)> {
    let sampled = json!({"temperature": 0.7, "top_p": 0.9, "seed": 3});
    let user = json!([{"role": "user", "content": prompt()}]);
    vec![
        (COMPLETIONS, completion(&json!({"temperature": 0}))),
        (
            COMPLETIONS,
            completion(&json!({"temperature": 0, "logprobs": 3})),
        ),
        (COMPLETIONS, completion(&sampled)),
        (
            COMPLETIONS,
            completion(&with(sampled.clone(), &json!({"n": 3, "logprobs": 1}))),
        ),
        (
            COMPLETIONS,
            completion(
                &json!({"temperature": 0.3, "seed": 1, "repetition_penalty": 1.02, "presence_penalty": 0.1}),
            ),
        ),
        (
            COMPLETIONS,
            completion(&json!({"temperature": 0, "stop": ["mill and", "with"], "min_tokens": 5})),
        ),
        (
            COMPLETIONS,
            completion(&json!({"temperature": 0, "ignore_eos": false, "min_tokens": 20})),
        ),
        (
            COMPLETIONS,
            completion(&json!({"temperature": 0, "echo": true, "logprobs": 0})),
        ),
        (
            CHAT,
            chat(&json!({"temperature": 0, "logprobs": true, "top_logprobs": 2})),
        ),
        (CHAT, chat(&with(sampled, &json!({"n": 2})))),
        (
            CHAT,
            chat(
                &json!({"temperature": 0, "ignore_eos": false, "response_format": {"type": "json_object"}}),
            ),
        ),
        (
            CHAT,
            chat(
                &json!({"temperature": 0.7, "seed": 2, "ignore_eos": false, "logprobs": true, "response_format": format(&listed())}),
            ),
        ),
        (
            MESSAGES,
            json!({"model": "m", "messages": user, "max_tokens": 60, "temperature": 0}),
        ),
        (
            RESPONSES,
            json!({"input": prompt(), "max_output_tokens": 60, "temperature": 0}),
        ),
    ]
}

/// The part of an answer that equal requests have in common.
pub(crate) fn content(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    let answer = answer.json();
    let items = answer["output"].as_array().cloned().unwrap_or_default();
    let contents: Vec<_> = items.iter().map(|item| &item["content"]).collect();
    json!([
        answer["choices"],
        answer["content"],
        contents,
        tokens_of(&answer["usage"])
    ])
}

/// Numbers of tokens. How many of them were cached depends on earlier requests.
fn tokens_of(usage: &Value) -> Value {
    let fields = ["prompt_tokens", "completion_tokens", "output_tokens"];
    fields.map(|name| usage[name].clone()).into_iter().collect()
}

/// Accepted and rejected drafts of a completion.
fn counted(client: &Client, body: &Value) -> [u64; 2] {
    let answer = client.post(COMPLETIONS, body).json();
    details(&answer["usage"])
}

pub(crate) fn details(usage: &Value) -> [u64; 2] {
    let details = &usage["completion_tokens_details"];
    ["accepted", "rejected"].map(|kind| {
        let count = details[format!("{kind}_prediction_tokens")].as_u64();
        count.unwrap_or_else(|| panic!("{usage}"))
    })
}

fn drafts(client: &Client) -> [u64; 2] {
    let names = [
        "worker_orcd_draft_tokens_total",
        "worker_orcd_accepted_draft_tokens_total",
    ];
    client.try_metrics(names).expect("the metrics")
}

#[test]
fn answers_are_those_without_drafts() {
    let [off, on] =
        ["off", "text"].map(|source| Worker::shallow().arg("--speculation", source).start());
    for (path, body) in requests() {
        let expected = content(&off.client(), path, &body);
        assert_eq!(
            content(&on.client(), path, &body),
            expected,
            "{path} {body}"
        );
    }
    let [offered, accepted] = wait::until("accepted drafts", || {
        let drafts = drafts(&on.client());
        (drafts[1] > 0).then_some(drafts)
    });
    assert!(accepted <= offered, "{accepted} of {offered}");
    assert_eq!(drafts(&off.client()), [0, 0]);
}

#[test]
fn a_request_may_decline_drafts() {
    let [off, on] =
        ["off", "text"].map(|source| Worker::shallow().arg("--speculation", source).start());
    let (off, client) = (off.client(), on.client());
    for (path, body) in requests() {
        let declining = with(body.clone(), &json!({"speculation": false}));
        assert_eq!(
            content(&client, path, &declining),
            content(&off, path, &with(body, &json!({"speculation": true}))),
            "{path} {declining}"
        );
    }
    let body = completion(&json!({"temperature": 0, "max_tokens": 150}));
    assert_eq!(counted(&off, &body), [0, 0]);
    let [accepted, rejected] = counted(&client, &body);
    assert!(accepted > 0, "{accepted} accepted, {rejected} rejected");
    let declining = with(body, &json!({"speculation": false}));
    assert_eq!(counted(&client, &declining), [0, 0]);
    let answer = client.post(CHAT, &chat(&json!({"speculation": "off"})));
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("speculation"), "{}", answer.text());
}

#[test]
fn a_replaced_child_or_supervisor_changes_no_token() {
    let [off, on] =
        ["off", "text"].map(|source| Worker::shallow().arg("--speculation", source).start());
    for extra in [
        json!({"temperature": 0}),
        json!({"temperature": 0.6, "seed": 8}),
    ] {
        let body = completion(&with(extra, &json!({"max_tokens": 150})));
        let expected = off.client().post(COMPLETIONS, &body).json();
        let expected = expected["choices"][0]["text"].as_str().expect("a text");
        for disturbance in Disturbance::ALL {
            let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
            let streamed = with(body.clone(), &usage);
            let events = disturbance.of_stream(&on, COMPLETIONS, &streamed, 4);
            let events = events.iter().filter(|data| *data != "[DONE]");
            let chunks = events.map(|data| serde_json::from_str(data).expect("JSON"));
            let chunks: Vec<Value> = chunks.collect();
            let texts = chunks
                .iter()
                .filter_map(|it| it["choices"][0]["text"].as_str());
            assert_eq!(texts.collect::<String>(), expected, "{disturbance:?}");
            let usage = &chunks.last().expect("chunks")["usage"];
            assert_eq!(usage["completion_tokens"], 150, "{disturbance:?}");
            let [accepted, _] = details(usage);
            assert!((1..150).contains(&accepted), "{disturbance:?}: {usage}");
        }
    }
    assert!(on.generation() > Some(1), "no child died");
}

/// A text that repeats nothing: its drafts come from the prediction alone.
#[test]
fn a_prediction_makes_drafts_and_changes_no_token() {
    let [off, on] =
        ["off", "text"].map(|source| Worker::real().arg("--speculation", source).start());
    let body = json!({
        "prompt": "The lighthouse keeper's daughter", "max_tokens": 100, "temperature": 0,
        "ignore_eos": true, "repetition_penalty": 1.3,
    });
    let (plain, client) = (off.client(), on.client());
    let expected = content(&plain, COMPLETIONS, &body);
    let text = expected[0][0]["text"].as_str().expect("a text");
    let [usual, _] = counted(&client, &body);
    let predicting = |text: &str| {
        let prediction = json!({"type": "content", "content": [{"type": "text", "text": text}]});
        with(body.clone(), &json!({"prediction": prediction}))
    };
    let edited = format!("{} Nobody knew why. {}", &text[..90], &text[120..]);
    for (prediction, least) in [(text, 20), (&edited, 8), ("Quite another text.", 0)] {
        let predicting = predicting(prediction);
        assert_eq!(content(&client, COMPLETIONS, &predicting), expected);
        let [accepted, rejected] = counted(&client, &predicting);
        assert!(
            accepted >= usual + least,
            "{usual} without {prediction}, then {accepted}, and {rejected} rejected"
        );
        assert_eq!(counted(&plain, &predicting), [0, 0]);
    }
    let declining = with(predicting(text), &json!({"speculation": false}));
    assert_eq!(counted(&client, &declining), [0, 0]);
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = with(predicting(text), &usage);
    for disturbance in Disturbance::ALL {
        let events = disturbance.of_stream(&on, COMPLETIONS, &streamed, 2);
        let last = events.iter().rfind(|data| *data != "[DONE]");
        let last: Value = serde_json::from_str(last.expect("chunks")).expect("JSON");
        let [accepted, _] = details(&last["usage"]);
        assert!(accepted >= usual + 15, "{disturbance:?}: {accepted}");
    }
    // More tokens than a prompt may have.
    let long = format!("{text}{}", " a b".repeat(8192));
    assert_eq!(content(&client, COMPLETIONS, &predicting(&long)), expected);
    let [accepted, _] = counted(&client, &predicting(&long));
    assert!(accepted >= usual + 20, "{accepted}");
}

#[test]
fn a_prediction_of_a_chat_changes_no_token() {
    let on = Worker::shallow().arg("--speculation", "text").start();
    let client = on.client();
    let body = chat(&json!({"temperature": 0, "n": 2}));
    let expected = content(&client, CHAT, &body);
    let text = expected[0][0]["message"]["content"]
        .as_str()
        .expect("a text");
    let prediction = json!({"prediction": {"type": "content", "content": text}});
    assert_eq!(content(&client, CHAT, &with(body, &prediction)), expected);
    let wrong = chat(&json!({"prediction": {"type": "text", "content": text}}));
    let wrong = client.post(CHAT, &wrong);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("prediction.type"), "{}", wrong.text());
}

/// Chats with a schema or a tool that constrains the answer.
fn constrained() -> Vec<Value> {
    let tool = json!({"type": "function", "function": {"name": "note", "parameters": listed()}});
    let schema = json!({"response_format": format(&listed())});
    let tools = json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false});
    let sampled =
        json!({"temperature": 0.8, "seed": 4, "repetition_penalty": 1.1, "min_tokens": 9});
    let of = |constraint: &Value, sampling: &Value| {
        let messages = json!([{"role": "user", "content": "Name rivers and lakes."}]);
        let base = json!({"messages": messages, "max_tokens": 300});
        with(with(base, constraint), sampling)
    };
    let greedy = json!({"temperature": 0});
    vec![
        of(&schema, &greedy),
        of(&schema, &sampled),
        of(&tools, &greedy),
        of(&tools, &sampled),
    ]
}

/// The text that the model has written.
fn written(choice: &Value) -> String {
    match &choice["message"]["tool_calls"][0]["function"]["arguments"] {
        Value::Null => choice["message"]["content"]
            .as_str()
            .expect("a text")
            .to_owned(),
        arguments => {
            let arguments = arguments.as_str().expect("a text");
            format!("<tool_call>\n{{\"name\": \"note\", \"arguments\": {arguments}}}\n</tool_call>")
        }
    }
}

#[test]
fn answers_under_a_grammar_have_drafts_and_are_those_without() {
    let (_dir, path) = with_tools();
    let worker = Worker::with_model(&path)
        .arg("--speculation", "text")
        .start();
    let client = worker.client();
    // From the text, with a prediction, and in disturbed streams.
    let mut accepted = [0; 3];
    for body in constrained() {
        let told = |body: &Value| {
            let answer = client.post(CHAT, body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let answer = answer.json();
            (anonymous(&answer["choices"][0]), details(&answer["usage"]))
        };
        let (expected, none) = told(&with(body.clone(), &json!({"speculation": false})));
        assert_eq!(none, [0, 0]);
        let prediction = json!({"type": "content", "content": written(&expected)});
        let predicting = with(body.clone(), &json!({"prediction": prediction}));
        for (body, accepted) in [&body, &predicting].into_iter().zip(&mut accepted) {
            let (choice, counted) = told(body);
            assert_eq!(choice, expected, "{body}");
            *accepted += counted[0];
        }
        let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
        let streaming = with(predicting, &usage);
        for disturbance in Disturbance::ALL {
            let mut events = disturbance.of_stream(&worker, CHAT, &streaming, 4);
            let usage: Value =
                serde_json::from_str(&events.remove(events.len() - 2)).expect("JSON");
            let choice = anonymous(&streamed(events.into_iter()));
            assert_eq!(choice, expected, "{disturbance:?}");
            accepted[2] += details(&usage["usage"])[0];
        }
    }
    assert!(accepted.iter().all(|it| *it > 0), "{accepted:?}");
    assert!(worker.generation() > Some(1), "no child died");
}
