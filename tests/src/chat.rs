//! The choice of a chat completion, complete or assembled from a stream.

use crate::{Client, Response};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

/// Requests before [`answered`] gives up.
const TRIES: usize = 20;

/// Response after retries: a busy machine may not check a grammar in time.
///
/// # Panics
/// A refusal does not state when to come back.
#[must_use]
pub fn answered(client: &Client, body: &Value) -> Response {
    let ask = || client.post("/v1/chat/completions", body);
    let mut answer = ask();
    for _ in 1..TRIES {
        if answer.status != 429 {
            break;
        }
        let pause = answer.header("retry-after").expect("when to come back");
        thread::sleep(Duration::from_secs(pause.parse().expect("seconds")));
        answer = ask();
    }
    answer
}

/// Choice of a complete response.
///
/// # Panics
/// The request is refused.
#[must_use]
pub fn whole(client: &Client, body: &Value) -> Value {
    let answer = client.post("/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

/// Choice without the ids of its calls, which differ between answers.
///
/// # Panics
/// A call has no id.
#[must_use]
pub fn anonymous(choice: &Value) -> Value {
    let mut choice = choice.clone();
    if let Some(calls) = choice["message"]["tool_calls"].as_array_mut() {
        for call in calls {
            let id = call.as_object_mut().and_then(|call| call.remove("id"));
            let id = id.expect("each call has one");
            assert!(id.as_str().is_some_and(|id| id.len() > 8), "{id}");
        }
    }
    choice
}

/// Choice that a client assembles from a stream.
///
/// # Panics
/// The stream has no regular end.
#[must_use]
pub fn streamed(events: impl Iterator<Item = String>) -> Value {
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let (mut reason, mut is_done) = (Value::Null, false);
    let add = |text: &mut Value, more: &Value| {
        let mut whole = text.as_str().unwrap_or_default().to_owned();
        let _ = write!(whole, "{}", more.as_str().unwrap_or_default());
        *text = json!(whole);
    };
    for data in events {
        is_done = data == "[DONE]";
        if is_done {
            break;
        }
        let chunk: Value = serde_json::from_str(&data).expect("JSON");
        let choice = &chunk["choices"][0];
        reason = choice["finish_reason"].clone();
        let delta = &choice["delta"];
        for key in ["content", "reasoning_content", "reasoning"] {
            if delta[key].as_str().is_some_and(|text| !text.is_empty()) {
                add(&mut message[key], &delta[key]);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            if message["tool_calls"].is_null() {
                message["tool_calls"] = json!([]);
            }
            let calls = message["tool_calls"].as_array_mut().expect("a list");
            if calls.len() == index {
                calls.push(json!({"id": call["id"], "type": call["type"], "function": {
                    "name": call["function"]["name"], "arguments": "",
                }}));
            }
            let arguments = &mut calls[index]["function"]["arguments"];
            add(arguments, &call["function"]["arguments"]);
        }
    }
    assert!(is_done);
    json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason})
}

/// Choice of a streamed response.
#[must_use]
pub fn stream(client: &Client, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let events = client.stream("/v1/chat/completions", &body);
    streamed(events.map(|event| event.data))
}
