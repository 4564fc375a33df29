//! Answers constrained by a schema, an expression, a choice, a grammar or tools, through the real programs and the real
//! model.

use serde_json::{Value, json};
use std::thread;
use worker_orcd_tests::Worker;
use worker_orcd_tests::chat::answered;
use worker_orcd_tests::client::{Client, Response};
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::hostile_grammars::{hostile, refused};
use worker_orcd_tests::oracle;
use worker_orcd_tests::tools_model::with_tools;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Schema of a place, small enough to be complete in a few dozen tokens.
fn place() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"$ref": "#/$defs/kind"},
            "length": {"type": "integer", "minimum": 1, "maximum": 9999},
            "deep": {"type": "boolean"},
        },
        "required": ["name", "kind", "length", "deep"],
        "additionalProperties": false,
        "$defs": {"kind": {"enum": ["river", "lake"]}},
    })
}

fn format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema}})
}

fn chat(extra: &Value) -> Value {
    merged(
        json!({
            "messages": [{"role": "user", "content": "Name a river."}],
            "max_tokens": 200, "temperature": 0.9, "seed": 5,
        }),
        extra,
    )
}

fn completion(extra: &Value) -> Value {
    merged(
        json!({"prompt": "A river: ", "max_tokens": 200, "temperature": 0.9, "seed": 5}),
        extra,
    )
}

fn merged(mut body: Value, extra: &Value) -> Value {
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn whole(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

fn text_of(choice: &Value) -> String {
    let text = choice["message"]["content"].as_str();
    let text = text.or(choice["text"].as_str());
    text.unwrap_or_else(|| panic!("{choice}")).to_owned()
}

fn chunks(events: impl Iterator<Item = String>) -> Vec<Value> {
    let data = events.filter(|data| data != "[DONE]");
    let chunks = data.map(|data| serde_json::from_str::<Value>(&data).expect("JSON"));
    chunks.map(|chunk| chunk["choices"].clone()).collect()
}

fn streamed(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let body = merged(body.clone(), &json!({"stream": true}));
    chunks(client.stream(path, &body).map(|event| event.data))
}

fn streamed_text(chunks: &[Value]) -> String {
    let texts = chunks.iter().map(|chunk| {
        let (chat, text) = (&chunk[0]["delta"]["content"], &chunk[0]["text"]);
        chat.as_str().or(text.as_str()).unwrap_or_default()
    });
    texts.collect()
}

fn is_place(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return false;
    };
    let kinds = [json!("river"), json!("lake")];
    let length = value["length"].as_u64().unwrap_or(0);
    value.as_object().is_some_and(|it| it.len() == 4)
        && value["name"]
            .as_str()
            .is_some_and(|it| it.chars().count() <= 12)
        && kinds.contains(&value["kind"])
        && (1..=9999).contains(&length)
        && value["deep"].is_boolean()
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix("no. ").unwrap_or_default();
    digits.len() == 4 && digits.bytes().all(|it| it.is_ascii_digit())
}

fn is_chosen(text: &str) -> bool {
    ["Seine", "Loire \u{e9}"].contains(&text)
}

fn is_sum(text: &str) -> bool {
    let mut terms = text.split('+');
    terms.clone().count() == 3 && terms.all(|it| matches!(it, "1" | "22" | "\"x\""))
}

#[test]
fn each_way_to_hold_an_answer_holds_it_whole_and_streamed() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let lark = "start: term \"+\" term \"+\" term\nterm: \"1\" | \"22\" | \"\\\"x\\\"\"";
    type Way = (Value, fn(&str) -> bool);
    let ways: [Way; 7] = [
        (json!({"response_format": format(&place())}), is_place),
        (json!({"structured_outputs": {"json": place()}}), is_place),
        (
            json!({"structured_outputs": {"json": place().to_string()}}),
            is_place,
        ),
        (
            json!({"structured_outputs": {"regex": "no\\. [0-9]{4}"}}),
            is_number,
        ),
        (
            json!({"structured_outputs": {"choice": ["Seine", "Loire \u{e9}"]}}),
            is_chosen,
        ),
        (json!({"structured_outputs": {"grammar": lark}}), is_sum),
        (
            json!({"response_format": {"type": "text"}, "structured_outputs": {"regex": "no\\. [0-9]{4}"}}),
            is_number,
        ),
    ];
    for (extra, is_right) in ways {
        for (path, body) in [(CHAT, chat(&extra)), (COMPLETIONS, completion(&extra))] {
            for extra in [
                json!({}),
                json!({"temperature": 0, "repetition_penalty": 1.3}),
                json!({"temperature": 2.0, "seed": 11, "min_p": 0.01}),
            ] {
                let body = merged(body.clone(), &extra);
                let choice = whole(&client, path, &body);
                assert!(is_right(&text_of(&choice)), "{body}: {choice}");
                assert_eq!(choice["finish_reason"], "stop", "{body}: {choice}");
                let told = streamed(&client, path, &body);
                assert_eq!(streamed_text(&told), text_of(&choice), "{body}");
            }
        }
    }
    assert_eq!(worker.generation(), Some(1), "no child died");
}

#[test]
fn any_object_is_one_and_a_cut_answer_says_so() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let object = json!({"response_format": {"type": "json_object"}, "temperature": 0});
    let choice = whole(&client, CHAT, &chat(&object));
    let text = text_of(&choice);
    assert!(text.starts_with('{'), "{text}");
    if choice["finish_reason"] == "stop" {
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    }
    let cut = json!({"response_format": format(&place()), "max_tokens": 4});
    let choice = whole(&client, CHAT, &chat(&cut));
    assert_eq!(choice["finish_reason"], "length", "{choice}");
    assert!(!is_place(&text_of(&choice)), "{choice}");
    // A stop string ends a constrained answer, too.
    let stopped = json!({"structured_outputs": {"regex": "abcdef+"}, "stop": ["e"]});
    let choice = whole(&client, CHAT, &chat(&stopped));
    assert_eq!(text_of(&choice), "abcd");
    assert_eq!(choice["finish_reason"], "stop");
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_bytes_as_they_are() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let words = json!({"structured_outputs": {"regex": "([a-z]{2,7} ){30}end"}, "max_tokens": 600});
    for (path, body) in [(CHAT, chat(&words)), (COMPLETIONS, completion(&words))] {
        let expected = streamed(&client, path, &body);
        assert!(
            streamed_text(&expected).ends_with(" end"),
            "{}",
            streamed_text(&expected)
        );
        let body = merged(body, &json!({"stream": true}));
        for disturbance in Disturbance::ALL {
            let all = disturbance.of_stream(&worker, path, &body, 8);
            assert_eq!(chunks(all.into_iter()), expected, "{path}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn neighbours_without_a_grammar_have_the_bytes_that_they_have_alone() {
    let worker = Worker::shallow().arg("--max-running", 8).start();
    let client = worker.client();
    let free = |seed: u32| chat(&json!({"seed": seed, "max_tokens": 40}));
    let held = chat(&json!({"response_format": format(&place())}));
    let alone: Vec<Value> = (0..3).map(|it| whole(&client, CHAT, &free(it))).collect();
    let held_alone = whole(&client, CHAT, &held);
    let company: Vec<_> = (0..6)
        .map(|n| {
            let (client, held, free) = (client.clone(), held.clone(), free(n / 2));
            thread::spawn(move || match n % 2 {
                0 => (n, whole(&client, CHAT, &free)),
                _ => (n, whole(&client, CHAT, &held)),
            })
        })
        .collect();
    for one in company {
        let (n, choice) = one.join().expect("all are answered");
        let expected = match n % 2 {
            0 => &alone[n as usize / 2],
            _ => &held_alone,
        };
        assert_eq!(choice, *expected, "{n}");
    }
}

/// Refused in the format of the OpenAI API, or served.
fn assert_is_answered(name: &str, answer: &Response) {
    match answer.status {
        200 => {}
        // A grammar that compiles may still be too expensive at a later step.
        400 if answer.text().contains("cannot go on under its grammar") => {}
        400 => {
            let error = &answer.json()["error"];
            assert_eq!(error["param"], "structured_outputs", "{name}: {error}");
            assert_eq!(error["type"], "invalid_request_error", "{name}: {error}");
            assert_eq!(error["code"], "invalid_grammar", "{name}: {error}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.len() < 5000, "{name}: {message}");
        }
        _ => panic!("{name}: {} {}", answer.status, answer.text()),
    }
}

#[test]
fn hostile_grammars_cost_their_own_request_at_most() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let free = chat(&json!({"max_tokens": 30}));
    let alone = whole(&client, CHAT, &free);
    for (name, extra) in hostile() {
        let body = chat(&merged(extra, &json!({"max_tokens": 5})));
        let company = {
            let (client, free) = (client.clone(), free.clone());
            thread::spawn(move || whole(&client, CHAT, &free))
        };
        assert_is_answered(name, &answered(&client, &body));
        let beside = company.join().expect("the neighbour is served");
        assert_eq!(beside, alone, "beside {name}");
    }
    for (name, extra) in refused() {
        assert_eq!(answered(&client, &chat(&extra)).status, 400, "{name}");
    }
    assert_eq!(worker.generation(), Some(1), "no child died of a grammar");
    worker.assert_serves();
}

#[test]
fn a_schema_that_cannot_be_followed_is_refused_by_keyword() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let schema = json!({"type": "object", "unevaluatedProperties": false});
    let body = chat(&json!({"response_format": format(&schema)}));
    let refusals: Vec<Value> = (0..2)
        .map(|_| {
            let answer = client.post(CHAT, &body);
            assert_eq!(answer.status, 400, "{}", answer.text());
            answer.json()["error"].clone()
        })
        .collect();
    assert_eq!(refusals[0], refusals[1], "the second time it is known");
    assert_eq!(refusals[0]["param"], "response_format");
    assert_eq!(refusals[0]["code"], "invalid_json_schema");
    let message = refusals[0]["message"].as_str().expect("a message");
    assert!(message.contains("unevaluatedProperties"), "{message}");
}

fn tools() -> Value {
    let function = |name: &str, parameters: Value| {
        json!({"type": "function", "function": {
            "name": name, "description": "Does it.", "parameters": parameters,
        }})
    };
    json!([
        function("place", place()),
        function(
            "wait",
            json!({"properties": {"s": {"enum": [1, 2]}}, "required": ["s"],
                                "additionalProperties": false})
        ),
    ])
}

fn is_call(call: &Value) -> bool {
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    match call["function"]["name"].as_str() {
        Some("place") => is_place(arguments),
        Some("wait") => ["{\"s\": 1}", "{\"s\": 2}"].contains(&arguments),
        _ => false,
    }
}

#[test]
fn a_model_that_must_call_does_and_its_arguments_are_valid() {
    let (_dir, path) = with_tools();
    let worker = Worker::with_model(&path).start();
    let client = worker.client();
    let calls = |extra: &Value| {
        let body = chat(&merged(json!({"tools": tools()}), extra));
        let choice = whole(&client, CHAT, &body);
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().cloned();
        let calls = calls.expect("calls");
        assert!(calls.iter().all(is_call), "{calls:?}");
        let streamed = streamed(&client, CHAT, &body);
        let arguments = |index: usize| {
            let deltas = streamed
                .iter()
                .filter_map(|it| it[0]["delta"]["tool_calls"].as_array());
            let mine = deltas.flatten().filter(|it| it["index"] == index);
            let pieces = mine.filter_map(|it| it["function"]["arguments"].as_str());
            pieces.collect::<String>()
        };
        for (index, call) in calls.iter().enumerate() {
            assert_eq!(call["function"]["arguments"], arguments(index));
        }
        calls
    };
    let named = json!({"type": "function", "function": {"name": "wait"}});
    for seed in 0..3 {
        let alone = json!({
            "tool_choice": "required", "parallel_tool_calls": false, "seed": seed,
        });
        assert_eq!(calls(&alone).len(), 1);
        let wait = calls(&json!({"tool_choice": named, "seed": seed}));
        assert_eq!(wait.len(), 1);
        assert_eq!(wait[0]["function"]["name"], "wait");
        let allowed = json!({"mode": "required", "tools": [named]});
        let allowed = json!({"type": "allowed_tools", "allowed_tools": allowed});
        let wait = calls(&json!({"tool_choice": allowed, "seed": seed}));
        assert!(wait.iter().all(|call| call["function"]["name"] == "wait"));
    }
    // At most one, after arbitrary text.
    let body = chat(&json!({
        "tools": tools(), "parallel_tool_calls": false, "max_tokens": 60,
    }));
    let choice = whole(&client, CHAT, &body);
    let calls = choice["message"]["tool_calls"]
        .as_array()
        .map_or(0, Vec::len);
    assert!(calls <= 1, "{choice}");

    let mut wrong = tools();
    wrong[1]["function"]["strict"] = json!(true);
    wrong[1]["function"]["parameters"]["unevaluatedProperties"] = json!(false);
    let answer = client.post(CHAT, &chat(&json!({"tools": wrong})));
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = &answer.json()["error"];
    assert_eq!(error["param"], "tools[1].function.parameters", "{error}");
    assert_eq!(error["code"], "invalid_function_parameters", "{error}");

    // Each API names the field as its client wrote it.
    let schema = json!({"type": "object", "unevaluatedProperties": false});
    let flat = json!({"type": "function", "name": "a", "parameters": schema, "strict": true});
    let responses = json!({"input": "hi", "tools": [{"type": "web_search"}, flat]});
    let refused = client.post("/v1/responses", &responses);
    assert_eq!(refused.json()["error"]["param"], "tools[1].parameters");
    let tool = json!({"name": "a", "input_schema": schema, "strict": true});
    let messages = json!({
        "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": [tool],
    });
    let refused = client.post("/v1/messages", &messages).json();
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.starts_with("tools[0].input_schema "), "{message}");
}

/// A second call would be dropped, and its tokens wasted. With this seed the model writes several where permitted.
#[test]
fn a_response_that_must_call_once_ends_behind_its_call() {
    let (_dir, path) = with_tools();
    let worker = Worker::with_model(&path).start();
    let flat = |tool: &Value| merged(json!({"type": "function"}), &tool["function"]);
    let listed = tools();
    let body = json!({
        "input": "Name a river.", "max_output_tokens": 200, "temperature": 0.9, "seed": 4,
        "tools": listed.as_array().expect("a list").iter().map(flat).collect::<Vec<_>>(),
        "tool_choice": "required", "parallel_tool_calls": false,
    });
    let response = worker.client().post("/v1/responses", &body).json();
    assert_eq!(response["status"], "completed", "{response}");
    assert_eq!(
        response["output"].as_array().map(Vec::len),
        Some(1),
        "{response}"
    );
}

#[test]
fn the_openai_package_parses_what_it_asked_for() {
    let (_dir, path) = with_tools();
    let worker = Worker::with_model(&path).start();
    let url = format!("http://{}", worker.client().address);
    oracle::run("openai_structured.py", &[url.as_ref()]);
}
