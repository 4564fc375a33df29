//! Anthropic's Messages API. The scripted model repeats its prompt, so a message determines the model's output.

use serde_json::{Value, json};
use std::io::Write as _;
use worker_orcd_tests::client::{Client, SseEvent};
use worker_orcd_tests::oracle;
use worker_orcd_tests::{Act, Moment, Script, Worker};

/// Template with tools that renders only contents and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<tool_call><think>{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

/// Template that renders every field of a message.
const SHOWING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}<{{ message.role }}>\
                       {{ message.content or '' }}{{ message.reasoning_content }}{% for call in message.tool_calls %}\
                       <tool_call>{{ call.function | tojson }}{% endfor %}{{ message.tool_call_id }}{% endfor %}\
                       {{ enable_thinking }}<|end|>";

const ANSWER: &str = "<think>\nTwo of \"them\".\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                      {\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
                      \"arguments\": {}}\n</tool_call>";

const PATH: &str = "/v1/messages";

fn asking(content: &str) -> Value {
    let schema = json!({"type": "object", "properties": {}});
    json!({
        "max_tokens": 2000, "messages": [{"role": "user", "content": content}],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": schema}],
    })
}

fn scripted(template: &str) -> Script {
    Script::behave().chat_template(template.to_owned())
}

fn whole(client: &Client, body: &Value) -> Value {
    let answer = client.post("/v1/messages?beta=true", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn streaming(body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body
}

/// Message without ids, which differ between answers.
fn anonymous(message: &Value) -> Value {
    let mut message = message.clone();
    for part in message["content"].as_array_mut().expect("content") {
        if let Some(id) = part.as_object_mut().and_then(|it| it.remove("id")) {
            assert!(
                id.as_str().is_some_and(|id| id.starts_with("toolu_")),
                "{id}"
            );
        }
    }
    let id = message.as_object_mut().and_then(|it| it.remove("id"));
    assert!(id.is_some_and(|id| id.as_str().is_some_and(|id| id.starts_with("msg_"))));
    // The number of cached tokens depends on earlier requests.
    let tokens = prompt_tokens(&message);
    message["usage"] =
        json!({"prompt": tokens, "output_tokens": message["usage"]["output_tokens"]});
    message
}

/// Tokens of the prompt; this API counts only uncached ones as input.
fn prompt_tokens(message: &Value) -> u64 {
    let count = |name: &str| message["usage"][name].as_u64().expect("a count");
    count("input_tokens") + count("cache_read_input_tokens")
}

/// Message that a client assembles from a stream.
fn put_together(events: impl Iterator<Item = SseEvent>) -> Value {
    let (mut message, mut json, mut is_whole) = (Value::Null, String::new(), false);
    for event in events {
        let data = event.json();
        assert_eq!(data["type"], event.name);
        let index = data["index"].as_u64().unwrap_or_default() as usize;
        match event.name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                json.clear();
                let content = message["content"].as_array_mut().expect("content");
                content.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                for key in ["text", "thinking", "signature"] {
                    if let Some(more) = data["delta"][key].as_str() {
                        let text = &mut message["content"][index][key];
                        *text = json!(format!("{}{more}", text.as_str().expect("a text")));
                    }
                }
                json.push_str(data["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" if !json.is_empty() => {
                let input = serde_json::from_str(&json).expect("JSON");
                message["content"][index]["input"] = input;
            }
            "message_delta" => {
                message["usage"] = data["usage"].clone();
                for key in ["stop_reason", "stop_sequence"] {
                    message[key] = data["delta"][key].clone();
                }
            }
            "message_stop" => is_whole = true,
            _ => assert!(matches!(event.name.as_str(), "content_block_stop" | "ping")),
        }
    }
    assert!(is_whole);
    message
}

fn streamed(client: &Client, body: &Value) -> Value {
    put_together(client.stream(PATH, &streaming(body)))
}

#[test]
fn thoughts_text_and_calls_are_blocks_streamed_and_whole() {
    let worker = Worker::scripted(scripted(HERMES)).start();
    let client = worker.client();
    let answer = anonymous(&whole(&client, &asking(ANSWER)));
    let usage = answer["usage"].clone();
    assert_eq!(
        answer,
        json!({
            "type": "message", "role": "assistant", "model": client.get("/v1/models").json()["data"][0]["id"],
            "content": [
                {"type": "thinking", "thinking": "Two of \"them\".", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "name": "add", "input": {"a": 1.0, "b": ["\u{e9}", {}]}},
                {"type": "tool_use", "name": "now", "input": {}},
            ],
            "stop_reason": "tool_use", "stop_sequence": null, "usage": usage,
        })
    );
    assert_eq!(anonymous(&streamed(&client, &asking(ANSWER))), answer);

    let mut stopped = asking("So far END and on");
    stopped["stop_sequences"] = json!(["no", "END"]);
    let answer = anonymous(&whole(&client, &stopped));
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": "So far "}])
    );
    assert_eq!(answer["stop_reason"], "stop_sequence");
    assert_eq!(answer["stop_sequence"], "END");
    assert_eq!(anonymous(&streamed(&client, &stopped)), answer);

    let mut short = asking("So far");
    short["max_tokens"] = json!(2);
    let answer = anonymous(&whole(&client, &short));
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["usage"]["output_tokens"], 2);
    assert_eq!(anonymous(&streamed(&client, &short)), answer);
}

#[test]
fn a_death_and_an_upgrade_in_the_middle_change_no_byte() {
    let calm = Worker::scripted(scripted(HERMES)).start();
    let expected = anonymous(&whole(&calm.client(), &asking(ANSWER)));
    for said in [3, 60, 130] {
        let script = Script::once(Moment::MidStream(said), Act::Signal(9));
        let script = script.chat_template(HERMES.to_owned());
        let worker = Worker::scripted(script).start();
        let told = anonymous(&streamed(&worker.client(), &asking(ANSWER)));
        assert_eq!(told, expected, "{said}");
    }
    let worker = Worker::scripted(scripted(HERMES).token_interval_ms(10)).start();
    let client = worker.client();
    let mut events = client.stream(PATH, &streaming(&asking(ANSWER)));
    let mut told = Vec::new();
    for upgrade_at in [5, 22, 40] {
        while told.len() < upgrade_at {
            told.push(events.next().expect("it goes on"));
        }
        worker.upgrade();
    }
    told.extend(events);
    assert_eq!(anonymous(&put_together(told.into_iter())), expected);
}

#[test]
fn a_real_model_says_what_it_says_to_chat_and_a_killed_child_changes_no_byte() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let mut body = json!({
        "max_tokens": 60, "temperature": 0, "messages": [{"role": "user", "content": "Tell me a story."}],
    });
    let answer = whole(&client, &body);
    let chat = client.post("/v1/chat/completions", &body).json();
    let message = &chat["choices"][0]["message"];
    assert_eq!(answer["content"][0]["text"], message["content"]);
    assert_eq!(prompt_tokens(&answer), chat["usage"]["prompt_tokens"]);
    assert_eq!(
        answer["usage"]["output_tokens"],
        chat["usage"]["completion_tokens"]
    );

    let mut events = client.stream(PATH, &streaming(&body));
    let mut told: Vec<SseEvent> = events.by_ref().take(10).collect();
    worker.kill_child();
    told.extend(events);
    assert_eq!(
        anonymous(&put_together(told.into_iter())),
        anonymous(&answer)
    );

    // A prefilled answer is the text after the prompt and its beginning.
    let beginning = "In a forest";
    let prompt = client
        .post("/apply-template", &json!({"messages": body["messages"]}))
        .json();
    let prompt = format!(
        "{}{beginning}",
        prompt["prompt"].as_str().expect("a prompt")
    );
    let completion = json!({"prompt": prompt, "max_tokens": 60, "temperature": 0});
    let completion = client.post("/v1/completions", &completion).json();
    let turns = body["messages"].as_array_mut().expect("messages");
    turns.push(json!({"role": "assistant", "content": beginning}));
    let answer = whole(&client, &body);
    assert_eq!(
        answer["content"][0]["text"],
        completion["choices"][0]["text"]
    );
    assert_eq!(prompt_tokens(&answer), completion["usage"]["prompt_tokens"]);
    // The completion has computed the same prompt.
    let cached = &completion["usage"]["prompt_tokens"];
    assert!(
        answer["usage"]["cache_read_input_tokens"].as_u64() > Some(0),
        "{answer}"
    );
    assert!(answer["usage"]["input_tokens"].as_u64() < cached.as_u64());
}

#[test]
fn what_is_shown_to_the_model_is_what_is_counted() {
    let worker = Worker::scripted(scripted(SHOWING)).start();
    let client = worker.client();
    let mut body = asking("");
    body["tool_choice"] = json!({"type": "none"});
    body["system"] =
        json!([{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1999});
    body["messages"] = json!([
        {"role": "user", "content": "1+1 <|end|>"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm", "signature": ""},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 1, "a": [1.0]}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"},
            {"type": "text", "text": "So?"},
        ]},
    ]);
    let shown = "<system>Be short.<user>1+1 <|end|><assistant>Hm<tool_call>{\"name\": \"add\", \"arguments\": \
                 {\"b\": 1, \"a\": [1.0]}}<tool>2toolu_1<user>So?True";
    let answer = whole(&client, &body);
    assert_eq!(answer["content"], json!([{"type": "text", "text": shown}]));
    let count = |body: &Value| {
        let mut body = body.clone();
        body.as_object_mut()
            .expect("an object")
            .remove("max_tokens");
        let answer = client.post("/v1/messages/count_tokens", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    assert_eq!(
        count(&body),
        json!({"input_tokens": prompt_tokens(&answer)})
    );
    body["tool_choice"] = json!({"type": "auto"});
    let with_tools = prompt_tokens(&whole(&client, &body));
    assert!(with_tools > prompt_tokens(&answer));
    assert_eq!(count(&body), json!({"input_tokens": with_tools}));
}

#[test]
fn an_answer_that_was_begun_is_continued() {
    let worker = Worker::scripted(scripted("{{ messages[0].content }}")).start();
    let client = worker.client();
    let asked = |last: Option<&str>| {
        let assistant = last.map(|text| json!({"role": "assistant", "content": text}));
        let user = json!({"role": "user", "content": "ab"});
        let messages: Vec<Value> = [user].into_iter().chain(assistant).collect();
        json!({"max_tokens": 9, "messages": messages})
    };
    let told = |last| {
        let answer = whole(&client, &asked(last));
        let text = answer["content"][0]["text"]
            .as_str()
            .expect("text")
            .to_owned();
        (prompt_tokens(&answer), text)
    };
    let (plain, _) = told(None);
    let (begun, text) = told(Some("xyz"));
    assert_eq!(begun, plain + 3);
    // Prompt that the model saw.
    assert!(text.starts_with("abxyz"), "{text}");
    let alone = json!([{"role": "assistant", "content": "xyz"}]);
    let alone = json!({"max_tokens": 9, "system": "", "messages": alone});
    let answer = whole(&client, &alone);
    assert_eq!(prompt_tokens(&answer), 3);
    let mut counted = alone.clone();
    counted
        .as_object_mut()
        .expect("fields")
        .remove("max_tokens");
    let counted = client.post("/v1/messages/count_tokens", &counted).json();
    assert_eq!(counted, json!({"input_tokens": 3}));
    let thinks = Worker::scripted(scripted("{{ messages[0].content }}<think>\n")).start();
    let refused = thinks.client().post(PATH, &asked(Some("xyz")));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("begin with thinking"),
        "{}",
        refused.text()
    );
    let headed = "{{ messages[0].content }}<|start|>assistant";
    let headed = Worker::scripted(scripted(headed)).start();
    let refused = headed.client().post(PATH, &asked(Some("xyz")));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("(harmony)"), "{}", refused.text());
    let refused = client.post(PATH, &asked(Some("xyz<|end|>")));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("special token"),
        "{}",
        refused.text()
    );
}

#[test]
fn refusals_have_anthropic_s_shape_and_a_key_may_come_as_x_api_key() {
    let mut keys = tempfile::NamedTempFile::new().expect("a file");
    writeln!(keys, "secret").expect("it is ours");
    let worker = Worker::scripted(Script::behave())
        .arg("--api-key-file", keys.path().display())
        .flag("--strict-model-name")
        .start();
    let client = worker.client();
    let ask = |path: &str, headers: &[(&str, &str)], body: &Value| {
        let body = body.to_string();
        let answer = client.try_request("POST", path, headers, body.as_bytes());
        answer.expect("an answer")
    };
    let body = json!({"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]});
    let key = [("x-api-key", "secret"), ("anthropic-version", "2023-06-01")];
    assert_eq!(ask(PATH, &key, &body).status, 200);
    let mut other = body.clone();
    other["model"] = json!("claude-opus-9");
    let tools = json!({"tools": [{"name": "a", "input_schema": {}}]});
    for (path, headers, body, status, kind) in [
        (PATH, &[][..], &body, 401, "authentication_error"),
        (
            PATH,
            &[("x-api-key", "wrong")],
            &body,
            401,
            "authentication_error",
        ),
        (PATH, &key, &json!({}), 400, "invalid_request_error"),
        (PATH, &key, &tools, 400, "invalid_request_error"),
        (PATH, &key, &other, 404, "not_found_error"),
        (
            "/v1/messages/batches",
            &key,
            &body,
            405,
            "invalid_request_error",
        ),
    ] {
        let answer = ask(path, headers, body);
        let told = answer.json();
        assert_eq!(answer.status, status, "{told}");
        assert_eq!(
            (&told["type"], &told["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        let id = answer.header("request-id");
        assert!(id.is_some() && id == answer.header("x-request-id"));
    }
    let told = ask(PATH, &key, &json!({"max_tokens": 0, "no_such": 1})).json();
    let message = told["error"]["message"].as_str().expect("words");
    for name in ["max_tokens", "messages", "no_such"] {
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn the_anthropic_package_calls_a_tool_and_claude_code_s_request_is_served() {
    let worker = Worker::scripted(scripted(HERMES)).start();
    let url = format!("http://{}", worker.client().address);
    let answer = "<think>\nTwo numbers.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                  {\"a\": 1, \"b\": 2}}\n</tool_call>";
    oracle::run("anthropic_client.py", &[url.as_ref(), answer.as_ref()]);
}
