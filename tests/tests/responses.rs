//! `/v1/responses` through the real supervisor. The scripted model repeats its prompt, so a message determines the
//! model's output. `oracle_client` checks it with the `openai` package.

use serde_json::{Value, json};
use worker_orcd_tests::client::{Client, SseEvent};
use worker_orcd_tests::{Act, Moment, Script, Worker};

const PATH: &str = "/v1/responses";
const COUNT_PATH: &str = "/v1/responses/input_tokens";

/// Template with tools that renders only contents and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}<tool_call><think>{{ message.tool_calls }}{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

/// Template that renders every field of a message.
const SHOWING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{{ reasoning_effort }}{% for message in messages %}\
                       <{{ message.role }}>{{ message.content or '' }}{{ message.reasoning_content }}{% for call in \
                       message.tool_calls %}<tool_call>{{ call.function | tojson }}{% endfor %}\
                       {{ message.tool_call_id }}{% endfor %}<|end|>";

const ANSWER: &str = "<think>\nTwo of \"them\".\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                      {\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
                      \"arguments\": {}}\n</tool_call>";

fn scripted(template: &str) -> Script {
    Script::behave().chat_template(template.to_owned())
}

fn asking(text: &str) -> Value {
    json!({
        "input": text, "max_output_tokens": 2000,
        "tools": [
            {"type": "local_shell"}, {"type": "web_search"},
            {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}},
        ],
    })
}

fn whole(client: &Client, body: &Value) -> Value {
    let answer = client.post(PATH, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Names and data of events, with the answer's own id and time replaced.
fn anonymous(events: impl Iterator<Item = SseEvent>) -> Vec<String> {
    let events: Vec<SseEvent> = events.collect();
    let first = events[0].json();
    let response = &first["response"];
    let id = response["id"].as_str().expect("an id");
    let own = id.strip_prefix("resp_").expect("its prefix");
    let created = format!("\"created_at\":{}", response["created_at"]);
    let hide = |event: SseEvent| {
        let data = event.data.replace(own, "ID");
        let data = data.replace(&created, "\"created_at\":0");
        let mut data: Value = serde_json::from_str(&data).expect("JSON");
        // They are digests of the response's id.
        hide_calls(&mut data);
        format!("{} {data}", event.name)
    };
    events.into_iter().map(hide).collect()
}

fn hide_calls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(id) = fields.get_mut("call_id") {
                *id = json!("call");
            }
            fields.values_mut().for_each(hide_calls);
        }
        Value::Array(items) => items.iter_mut().for_each(hide_calls),
        _ => {}
    }
}

fn stream(client: &Client, body: &Value) -> Vec<String> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    anonymous(client.stream(PATH, &body))
}

/// Response at the end of a stream.
fn last(events: &[String]) -> Value {
    let (_, data) = events
        .last()
        .and_then(|event| event.split_once(' '))
        .expect("an event");
    serde_json::from_str::<Value>(data).expect("JSON")["response"].clone()
}

#[test]
fn thoughts_texts_and_calls_are_items_streamed_and_whole() {
    let worker = Worker::scripted(scripted(HERMES)).start();
    let client = worker.client();
    let mut response = whole(&client, &asking(ANSWER));
    let output = response["output"].as_array().expect("a list").clone();
    let of_type = |it: &Value| it["type"].as_str().unwrap_or_default().to_owned();
    let types: Vec<String> = output.iter().map(of_type).collect();
    assert_eq!(
        types,
        ["reasoning", "message", "function_call", "function_call"]
    );
    assert_eq!(output[0]["content"][0]["text"], "Two of \"them\".");
    assert_eq!(output[1]["content"][0]["text"], "I look.");
    assert_eq!(output[2]["name"], "add");
    assert_eq!(
        output[2]["arguments"],
        "{\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}"
    );
    assert_eq!(response["status"], "completed");
    assert_eq!(response["usage"]["output_tokens"], ANSWER.len() as u64 + 1);

    let events = stream(&client, &asking(ANSWER));
    let own = response["id"]
        .as_str()
        .and_then(|id| id.strip_prefix("resp_"));
    let text = response.to_string().replace(own.expect("its prefix"), "ID");
    response = serde_json::from_str(&text).expect("JSON");
    response["created_at"] = json!(0);
    hide_calls(&mut response);
    assert_eq!(last(&events), response);

    let mut one = asking(ANSWER);
    one["parallel_tool_calls"] = json!(false);
    let calls = whole(&client, &one)["output"].as_array().map(Vec::len);
    assert_eq!(calls, Some(3), "the second call is left out");

    let mut cut = asking(ANSWER);
    cut["max_output_tokens"] = json!(ANSWER.find("1.0").expect("it is there") + 1);
    let response = whole(&client, &cut);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(
        response["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    assert_eq!(response["output"][2]["arguments"], "{\"a\": 1");
    assert_eq!(response["output"][2]["status"], "incomplete");
}

#[test]
fn a_death_and_an_upgrade_in_the_middle_change_no_byte() {
    let calm = Worker::scripted(scripted(HERMES)).start();
    let expected = stream(&calm.client(), &asking(ANSWER));
    for said in [3, 60, 130, 200] {
        let script = Script::once(Moment::MidStream(said), Act::Signal(9));
        let worker = Worker::scripted(script.chat_template(HERMES.to_owned())).start();
        assert_eq!(
            stream(&worker.client(), &asking(ANSWER)),
            expected,
            "{said}"
        );
    }
    let script = scripted(HERMES).token_interval_ms(10);
    let worker = Worker::scripted(script).start();
    let mut body = asking(ANSWER);
    body["stream"] = json!(true);
    let mut events = worker.client().stream(PATH, &body);
    let mut told = Vec::new();
    for upgrade_at in [10, 25, 50] {
        while told.len() < upgrade_at {
            told.push(events.next().expect("it goes on"));
        }
        worker.upgrade();
    }
    told.extend(events);
    assert_eq!(anonymous(told.into_iter()), expected);
}

/// Codex's second turn, by the types in its own sources.
#[test]
fn a_turn_of_codex_is_shown_to_the_model() {
    let worker = Worker::scripted(scripted(SHOWING)).start();
    let part = |text: &str| json!([{"type": "input_text", "text": text}]);
    let body = json!({
        "instructions": "Agent.", "max_output_tokens": 2000,
        "input": [
            {"type": "message", "role": "developer", "content": part("Sandbox.")},
            {"type": "message", "role": "user", "content": part("ls <|end|>")},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}],
             "encrypted_content": null},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs.", "strict": false,
             "parameters": {"type": "object", "properties": {}}},
            {"type": "local_shell"}, {"type": "web_search", "external_web_access": false},
            {"type": "custom", "name": "apply_patch", "description": "x", "format": {"type": "grammar"}},
        ],
        "tool_choice": "none", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"},
        "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0190", "client_metadata": {"a": "b"},
    });
    let shown = "medium<system>Agent.\n\nSandbox.<user>ls <|end|><assistant>Hm<tool_call>{\"name\": \"shell\", \
                 \"arguments\": {\"command\": [\"ls\"]}}<tool>README.mdcall_1";
    let told = |body: &Value| last(&stream(&worker.client(), body));
    let response = told(&body);
    assert_eq!(
        response["output"][0]["content"][0]["text"], shown,
        "{response}"
    );
    let mut calling = body.clone();
    calling["tool_choice"] = json!("auto");
    let tools = "[{\"type\": \"function\", \"function\": {\"name\": \"shell\", \"description\": \"Runs.\", \
                 \"parameters\": {\"properties\": {}, \"type\": \"object\"}}}]";
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64();
    let with_tools = told(&calling);
    let more = tokens(&with_tools)
        .zip(tokens(&response))
        .map(|(with, without)| with - without);
    assert_eq!(more, Some(tools.len() as u64));
    for (body, response) in [(&body, &response), (&calling, &with_tools)] {
        let counted = worker.client().post(COUNT_PATH, body);
        let input_tokens = tokens(response);
        let expected = json!({"object": "response.input_tokens", "input_tokens": input_tokens});
        assert_eq!(counted.json(), expected);
    }
}

#[test]
fn what_is_not_done_is_refused_in_openai_s_words() {
    let worker = Worker::scripted(Script::behave()).start();
    let refused = |path: &str, body: &Value| {
        let answer = worker.client().post(path, body);
        (answer.status, answer.json()["error"]["param"].clone())
    };
    for (body, field) in [
        (
            json!({"input": "a", "previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (
            json!({"input": [{"type": "item_reference", "id": "a"}]}),
            "input[0].type",
        ),
        (
            json!({"input": "a", "tools": [{"type": "function", "name": "a"}]}),
            "tools",
        ),
        (json!({"messages": []}), "input"),
    ] {
        assert_eq!(refused(PATH, &body), (400, json!(field)));
        assert_eq!(refused(COUNT_PATH, &body), (400, json!(field)));
    }
    // Error for the prompt where the API has no field of that name.
    let long = json!({"input": "a ".repeat(100_000)});
    assert_eq!(refused(PATH, &long), (400, json!("input")));
    let fails = Worker::scripted(scripted("{{ raise_exception('no') }}")).start();
    let answer = fails.client().post(COUNT_PATH, &json!({"input": "a"}));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["param"], "input");
    let place = worker.client().get("/v1/responses/resp_1?from=1");
    assert_eq!(place.status, 400, "events are numbered, and pieces are not");
    let nobody = worker
        .client()
        .get("/v1/responses/resp_1?stream=true&starting_after=3");
    assert_eq!(nobody.status, 404);
    assert_eq!(nobody.json()["error"]["type"], "not_found_error");
}
