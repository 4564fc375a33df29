//! Fields of clients for other servers, through the real programs: their effect, and that there is no other.

use serde_json::{Value, json};
use worker_orcd_tests::client::Client;
use worker_orcd_tests::{Script, Worker};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// Template that renders every field of a message, and the client's settings.
const SHOWING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}\
                       <{{ message.role }}>{{ message.content or '' }}{{ message.reasoning_content }}{% for call in \
                       message.tool_calls %}<tool_call>{{ call.function | tojson }}{% endfor %}\
                       {{ message.tool_call_id }}{% endfor %}\
                       [{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}|{{ verbosity }}]<|end|>";

fn showing() -> Worker {
    Worker::scripted(Script::behave().chat_template(SHOWING.to_owned())).start()
}

/// Conversation with every kind of message.
fn history() -> Value {
    let function = json!({"name": "now", "arguments": "{}"});
    let call = json!({"id": "c1", "type": "function", "function": function});
    json!({
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be short."}]},
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"},
        ],
        "tools": [{"type": "function", "function": {"name": "now"}}],
        "max_tokens": 24, "seed": 3,
    })
}

/// Choice of a complete response, without the ids of calls, which differ between answers.
fn choice(client: &Client, body: &Value) -> Value {
    let answer = client.post(CHAT, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    let mut choice = answer.json()["choices"][0].clone();
    let calls = choice["message"]["tool_calls"].as_array_mut();
    for call in calls.into_iter().flatten() {
        call["id"] = json!("call");
    }
    choice
}

/// Prompt of a body.
fn prompt(client: &Client, body: &Value) -> String {
    let answer = client.post("/apply-template", body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()["prompt"]
        .as_str()
        .expect("a prompt")
        .to_owned()
}

/// Variables that a template receives from a body.
fn rendered(body: &Value) -> Value {
    let mut body = body.clone();
    let fields = body.as_object_mut().expect("an object");
    for name in ["max_tokens", "seed"] {
        fields.remove(name);
    }
    body
}

fn set(body: &Value, place: &str, value: &Value) -> Value {
    let mut body = body.clone();
    let (outside, name) = place.rsplit_once('/').expect("a place");
    body.pointer_mut(outside).expect("it is there")[name] = value.clone();
    body
}

#[test]
fn fields_that_can_change_no_answer_change_no_byte_of_it() {
    let worker = showing();
    let client = worker.client();
    let plain = history();
    let expected = choice(&client, &plain);
    let shown = prompt(&client, &rendered(&plain));
    let mark = json!({"type": "ephemeral"});
    for (place, value) in [
        ("/messages/0/content/0/cache_control", mark.clone()),
        ("/messages/1/cache_control", mark.clone()),
        ("/messages/1/id", json!("msg_1")),
        ("/messages/1/anything", json!([])),
        ("/messages/2/reasoning", json!("Hm")),
        ("/messages/2/reasoning_details", json!([{"text": "Hm"}])),
        ("/messages/2/thinking_blocks", json!([{"thinking": "Hm"}])),
        ("/messages/2/provider_specific_fields", json!({"a": 1})),
        ("/messages/2/annotations", json!([{"url": "a"}])),
        ("/messages/2/refusal", json!(null)),
        ("/messages/2/prefix", json!(false)),
        ("/messages/2/tool_calls/0/function/arguments", json!("")),
        ("/messages/2/tool_calls/0/index", json!(0)),
        ("/tools/0/cache_control", mark.clone()),
        ("/tools/0/function/cache_control", mark),
        ("/best_of", json!(1)),
        ("/request_id", json!("r-1")),
        ("/include_reasoning", json!(true)),
        ("/model", json!("gpt-5")),
        ("/stop", json!(vec!["\u{1}"; 32])),
        ("/continue_final_message", json!(false)),
    ] {
        let body = set(&plain, place, &value);
        assert_eq!(choice(&client, &body), expected, "{place}");
        if place.starts_with("/messages") || place.starts_with("/tools") {
            assert_eq!(prompt(&client, &rendered(&body)), shown, "{place}");
        }
    }
    for (place, value) in [
        ("/messages/1/anything", json!(0)),
        ("/messages/1/prefix", json!(true)),
        ("/messages/2/reasoning", json!("Oh")),
        ("/best_of", json!(2)),
        ("/stop", json!(vec!["\u{1}"; 33])),
        ("/continue_final_message", json!(true)),
    ] {
        let answer = client.post(CHAT, &set(&plain, place, &value));
        assert_eq!(answer.status, 400, "{place}: {}", answer.text());
        let name = place.rsplit('/').next().expect("a name");
        assert!(answer.text().contains(name), "{place}: {}", answer.text());
    }
}

#[test]
fn switches_of_other_hosts_reach_the_template() {
    let worker = showing();
    let client = worker.client();
    for (place, value, shown) in [
        ("/enable_thinking", json!(false), "[False|||]"),
        ("/thinking", json!({"type": "disabled"}), "[False|False||]"),
        ("/thinking", json!({"type": "enabled"}), "[True|True||]"),
        ("/reasoning", json!({"effort": "low"}), "[||low|]"),
        ("/reasoning_effort", json!("none"), "[False||none|]"),
        ("/verbosity", json!("high"), "[|||high]"),
    ] {
        let body = set(&history(), place, &value);
        let prompt = prompt(&client, &rendered(&body));
        assert!(prompt.contains(shown), "{place}: {prompt}");
    }
}

#[test]
fn a_call_that_was_cut_is_shown_as_far_as_it_is_whole() {
    let worker = showing();
    let client = worker.client();
    let body = set(
        &history(),
        "/messages/2/tool_calls/0/function/arguments",
        &json!("{\"zone\": \"Par"),
    );
    let shown = prompt(&client, &rendered(&body));
    assert!(shown.contains("{\"zone\": \"Par\"}"), "{shown}");
    let items = json!({"input": [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": ""},
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ], "max_output_tokens": 5});
    let answer = client.post(RESPONSES, &items);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn an_answer_that_is_begun_goes_on_with_the_same_text() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let user = json!({"role": "user", "content": "Tell me a story."});
    let beginning = "In a forest";
    let started = prompt(&client, &json!({"messages": [user]}));
    let whole_prompt = format!("{started}{beginning}");
    let completion = json!({"prompt": whole_prompt, "max_tokens": 30, "temperature": 0});
    let completion = client.post("/v1/completions", &completion).json();
    let expected = &completion["choices"][0]["text"];
    let last = json!({"role": "assistant", "content": beginning});
    let marked = json!({"role": "assistant", "content": beginning, "prefix": true});
    let flags = json!({"continue_final_message": true, "add_generation_prompt": false});
    for (last, flags) in [(&last, &flags), (&marked, &json!({}))] {
        let mut body = json!({"messages": [user, last]});
        let fields = flags.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        assert_eq!(prompt(&client, &body), whole_prompt);
        body["max_tokens"] = json!(30);
        body["temperature"] = json!(0);
        assert_eq!(choice(&client, &body)["message"]["content"], *expected);
    }
    let turns = prompt(&client, &json!({"messages": [user, last]}));
    assert!(turns.starts_with(&whole_prompt), "{turns}");
    assert!(turns.len() > whole_prompt.len(), "a turn that has ended");
}

#[test]
fn a_gbnf_grammar_is_followed_and_a_wrong_one_refused_by_name() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let user = json!([{"role": "user", "content": "Is water wet?"}]);
    let grammar = "root ::= word (\", \" word)* \".\"\nword ::= \"yes\" | \"no\"\n";
    let body = json!({"messages": user, "grammar": grammar, "max_tokens": 40, "seed": 3});
    let choice = choice(&client, &body);
    let text = choice["message"]["content"].as_str().expect("a text");
    let words = text.trim_end_matches('.').split(", ");
    assert!(
        words.clone().all(|it| ["yes", "no"].contains(&it)),
        "{text}"
    );
    let completion = json!({"prompt": "a", "grammar": "root ::= \"b\" [c-d]", "max_tokens": 9});
    let completion = client.post("/v1/completions", &completion).json();
    let text = completion["choices"][0]["text"].as_str().expect("a text");
    assert!(["bc", "bd"].contains(&text), "{text}");
    let wrong = json!({"messages": user, "grammar": "root ::= other"});
    let answer = client.post(CHAT, &wrong);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["param"], "grammar");
}

#[test]
fn an_answer_is_held_by_each_host_s_own_field() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let schema = json!({
        "type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"],
        "additionalProperties": false,
    });
    for held in [
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
        json!({"json_schema": schema}),
    ] {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Is water wet?"}], "max_tokens": 100, "seed": 3,
        });
        let fields = held.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        let choice = choice(&client, &body);
        let text = choice["message"]["content"].as_str().expect("a text");
        let answer: Value = serde_json::from_str(text).expect("JSON");
        assert!(answer["answer"].is_boolean(), "{held}: {text}");
    }
}
