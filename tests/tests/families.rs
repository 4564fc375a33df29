//! Each supported family answers chats over HTTP, through the released programs: with the family's real vocabulary and
//! chat template (`tests/oracle/families.py`), and two layers of random weights.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::thread;
use worker_orcd_gpu::model::catalogue::SERVED;
use worker_orcd_tests::chat::{anonymous, answered, stream, whole};
use worker_orcd_tests::disturbed::goes_on_behind_a_death;
use worker_orcd_tests::families::{Family, written_to};
use worker_orcd_tests::oracle;
use worker_orcd_tests::{Client, Worker};

const CHAT: &str = "/v1/chat/completions";

/// Number of processors of a test machine.
const AT_A_TIME: usize = 2;

const WORDS: &str = "  Wie warm ist es in Köln, 12345 \u{1f321}?\n";

/// Names of conversations, and their requests.
fn bodies(family: &Family) -> Vec<(&'static str, Value)> {
    let user = json!({"role": "user", "content": WORDS});
    let answer = json!({"role": "assistant", "content": "21 °C."});
    let next = json!({"role": "user", "content": "Danke"});
    let tools = json!([{"type": "function", "function": {
        "name": "get_weather", "description": "Says it.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"},
        }},
    }}]);
    let mut bodies = vec![
        ("a question", json!({"messages": [user]})),
        ("a talk", json!({"messages": [user, answer, next]})),
    ];
    if family.has_tools {
        bodies.push(("tools", json!({"messages": [user], "tools": tools})));
        let mut must = json!({"messages": [user], "tools": tools, "tool_choice": "required"});
        if family.template.contains("enable_thinking") {
            // Otherwise it reasons up to its last token.
            must["thinking_token_budget"] = json!(4);
        }
        bodies.push(("a call", must));
    }
    for (story, body) in &mut bodies {
        // A call is as long as its arguments.
        body["max_tokens"] = json!(if *story == "a call" { 50 } else { 24 });
        if *story != "a call" {
            // Random weights may end at once.
            body["min_tokens"] = json!(1);
        }
        body["seed"] = json!(7);
        body["temperature"] = json!(0.9);
    }
    bodies
}

/// Prompt of a conversation, and its ids.
fn case(family: &Family, client: &Client, story: &str, body: &Value) -> Value {
    let mut shown = json!({});
    for name in ["messages", "tools", "tool_choice"] {
        if !body[name].is_null() {
            shown[name] = body[name].clone();
        }
    }
    let ask = |path: &str| {
        let answer = client.post(path, &shown);
        assert_eq!(answer.status, 200, "{}: {}", family.name, answer.text());
        answer.json()
    };
    let prompt = ask("/apply-template")["prompt"].clone();
    let ids = ask("/tokenize")["tokens"].clone();
    json!({
        "name": format!("{}: {story}", family.name), "path": family.path, "prompt": prompt, "ids": ids,
    })
}

/// Sends every request to a worker with that file. Returns prompts and their ids.
fn talk(family: &Family) -> Vec<Value> {
    let name = &family.name;
    let path = family.path.as_ref().expect("it was written");
    let worker = Worker::with_model(path)
        .arg("--kv-cache-size", "64MiB")
        .start();
    let client = worker.client();
    let mut cases = Vec::new();
    for (story, body) in bodies(family) {
        let answer = answered(&client, &body);
        assert_eq!(answer.status, 200, "{name}, {story}: {}", answer.text());
        let case = case(family, &client, story, &body);
        let ids = case["ids"].as_array().map(Vec::len);
        let counted = answer.json()["usage"]["prompt_tokens"].as_u64();
        assert_eq!(counted, ids.map(|it| it as u64), "{name}, {story}");
        cases.push(case);

        let choice = anonymous(&whole(&client, &body));
        assert_eq!(
            anonymous(&stream(&client, &body)),
            choice,
            "{name}, {story}"
        );
        if story == "a call" {
            let calls = &choice["message"]["tool_calls"];
            assert_eq!(
                calls[0]["function"]["name"], "get_weather",
                "{name}: {choice}"
            );
        }
    }
    let mut long = json!({"messages": [{"role": "user", "content": WORDS}], "stream": true});
    long["max_tokens"] = json!(100);
    long["seed"] = json!(11);
    // Random weights may end at once.
    long["ignore_eos"] = json!(true);
    goes_on_behind_a_death(name, &worker, CHAT, &long);
    cases
}

#[test]
fn a_file_of_each_family_answers_chats_streamed_whole_and_over_a_death() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let families = written_to(folder.path());
    let variants: BTreeSet<_> = families.iter().map(|it| it.variant.as_str()).collect();
    for row in SERVED {
        let held = row.held_by.iter().any(|name| variants.contains(name));
        assert!(held, "tests/oracle/families.py has no {:?}", row.held_by);
    }
    let (waiting, cases) = (Mutex::new(families.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no holder panics").next();
                    let Some(family) = next else { break };
                    let said = talk(family);
                    cases.lock().expect("no holder panics").extend(said);
                }
            });
        }
    });
    let path = folder.path().join("cases.json");
    let cases = cases.into_inner().expect("no holder panics");
    fs::write(&path, Value::from(cases).to_string()).expect("the directory is ours");
    oracle::run("prompt_ids.py", &[path.as_os_str()]);
}
