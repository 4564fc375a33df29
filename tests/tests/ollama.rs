//! Ollama's API. The scripted model repeats its prompt, so a message determines the model's output.

use serde_json::{Value, json};
use std::io::{BufRead as _, Write as _};
use worker_orcd_tests::client::{Client, Streaming};
use worker_orcd_tests::{Act, Moment, Script, Worker, facts, oracle, wait};

/// Template with tools that renders only contents and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<tool_call><think>{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

const ANSWER: &str = "<think>\nTwo numbers.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                      {\"a\": 1, \"b\": 2}}\n</tool_call>";

const CHAT: &str = "/api/chat";

fn scripted() -> Script {
    Script::behave().chat_template(HERMES.to_owned())
}

fn asking(content: &str) -> Value {
    let function = json!({"name": "add", "parameters": {"type": "object", "properties": {}}});
    json!({
        "messages": [{"role": "user", "content": content}],
        "tools": [{"type": "function", "function": function}],
    })
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("fields").extend(more);
    body
}

fn whole(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, &with(body.clone(), json!({"stream": false})));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.json()
}

/// Stream of lines, unchanged.
struct Lines(Streaming);

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.body.read_line(&mut line).expect("it goes on");
        assert!(read == 0 || line.ends_with('\n'), "{line}");
        (read > 0).then_some(line)
    }
}

fn streamed(client: &Client, path: &str, body: &Value) -> Lines {
    let streaming = client.open(path, body).expect("an answer");
    assert_eq!(streaming.status, 200);
    let kind = ("content-type".to_owned(), "application/x-ndjson".to_owned());
    assert!(streaming.headers.contains(&kind), "{:?}", streaming.headers);
    Lines(streaming)
}

/// Lines without what differs between equal answers: times, and ids of calls.
fn told(lines: impl IntoIterator<Item = String>) -> Vec<Value> {
    let lines = lines.into_iter().map(|line| {
        let mut line: Value = serde_json::from_str(&line).expect("JSON");
        let fields = line.as_object_mut().expect("an object");
        assert!(fields.remove("created_at").is_some());
        fields.retain(|name, _| !name.ends_with("_duration"));
        if let Some(call) = line.pointer_mut("/message/tool_calls/0") {
            call["id"] = json!("call");
        }
        line
    });
    lines.collect()
}

fn joined(lines: &[Value], pointer: &str) -> String {
    let texts = lines
        .iter()
        .filter_map(|line| line.pointer(pointer)?.as_str());
    texts.collect()
}

#[test]
fn the_ollama_package_calls_a_tool_and_sends_back_its_result() {
    let worker = Worker::scripted(scripted()).start();
    let url = format!("http://{}", worker.client().address);
    oracle::run("ollama_client.py", &[url.as_ref(), ANSWER.as_ref()]);
}

#[test]
fn answers_equal_those_to_openai_s_clients_and_a_killed_child_changes_no_byte() {
    let worker = Worker::shallow().arg("--pooling", "last").start();
    let client = worker.client();
    let messages = json!([{"role": "user", "content": "Tell me a story."}]);
    let options = json!({
        "num_predict": 60, "seed": 7, "temperature": 0.9, "top_k": 40, "top_p": 0.9, "repeat_penalty": 1.1,
    });
    let body = json!({"messages": messages, "options": options});
    let answer = whole(&client, CHAT, &body);
    let sampling = json!({
        "max_tokens": 60, "seed": 7, "temperature": 0.9, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1,
    });
    let asked = with(sampling.clone(), json!({"messages": messages}));
    let chat = client.post("/v1/chat/completions", &asked).json();
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(&answer["message"]["content"], text);
    let usage = &chat["usage"];
    assert_eq!(answer["prompt_eval_count"], usage["prompt_tokens"]);
    assert_eq!(answer["eval_count"], usage["completion_tokens"]);
    assert_eq!(answer["done_reason"], "length");
    let expected = told(streamed(&client, CHAT, &body));
    assert_eq!(json!(joined(&expected, "/message/content")), *text);

    let mut lines = streamed(&client, CHAT, &body);
    let mut broken: Vec<String> = lines.by_ref().take(10).collect();
    worker.kill_child();
    broken.extend(lines);
    // The only sign of the pause, before a value, where white space is insignificant.
    let pauses = broken.iter().filter(|line| line.starts_with(' '));
    assert_eq!(pauses.count(), 1, "{broken:?}");
    assert_eq!(told(broken), expected);

    let raw = json!({"prompt": "Once upon a time", "raw": true, "options": options});
    let asked = with(sampling.clone(), json!({"prompt": "Once upon a time"}));
    let completion = client.post("/v1/completions", &asked).json();
    let text = &completion["choices"][0]["text"];
    assert_eq!(&whole(&client, "/api/generate", &raw)["response"], text);
    let lines = told(streamed(&client, "/api/generate", &raw));
    assert_eq!(json!(joined(&lines, "/response")), *text);

    let point = json!({
        "type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["x"], "additionalProperties": false,
    });
    let held = json!({"prompt": "A point.", "format": point, "options": options});
    let answer = whole(&client, "/api/generate", &held);
    let value: Value = serde_json::from_str(answer["response"].as_str().expect("text"))
        .unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(value["x"].as_u64().is_some_and(|x| x < 100), "{value}");

    let input = json!(["A river", "A stream"]);
    let ours = client.post(
        "/api/embed",
        &json!({"input": input, "dimensions": 8, "truncate": false}),
    );
    let theirs = client.post("/v1/embeddings", &json!({"input": input, "dimensions": 8}));
    let (ours, theirs) = (ours.json(), theirs.json());
    for index in 0..2 {
        assert_eq!(
            ours["embeddings"][index],
            theirs["data"][index]["embedding"]
        );
    }
    assert_eq!(ours["prompt_eval_count"], theirs["usage"]["prompt_tokens"]);
}

#[test]
fn an_upgrade_in_the_middle_changes_no_byte() {
    let worker = Worker::scripted(scripted().token_interval_ms(10)).start();
    let client = worker.client();
    let body = asking(ANSWER);
    let expected = told(streamed(&client, CHAT, &body));
    assert!(expected.len() > 15, "{expected:?}");
    let mut lines = streamed(&client, CHAT, &body);
    let mut received = Vec::new();
    for upgrade_at in [4, 12] {
        let missing = upgrade_at - received.len();
        received.extend(lines.by_ref().take(missing));
        worker.upgrade();
    }
    received.extend(lines);
    assert_eq!(told(received), expected);
}

#[test]
fn no_model_is_listed_as_loaded_while_no_child_serves_it() {
    let nothing = json!({"models": []});
    let loading = Worker::scripted(Script::once(Moment::Loading, Act::StuckLoad)).listening();
    let running = loading.client().get("/api/ps");
    assert_eq!((running.status, running.json()), (200, nothing.clone()));
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let serving = || {
        let health = client.health();
        let generation = health["child"]["generation"].as_u64();
        generation.filter(|_| health["state"] == "serving")
    };
    // A pause is short, so one may pass between two looks.
    let is_seen = |_| {
        let before = wait::until("a child to serve", serving);
        worker.kill_child();
        let looks = std::iter::repeat_with(|| {
            let is_empty = client.get("/api/ps").json() == nothing;
            let has_passed = serving() > Some(before);
            (is_empty || has_passed).then_some(is_empty)
        });
        looks.flatten().next() == Some(true)
    };
    assert!((0..10).any(is_seen));
}

#[test]
fn refusals_have_ollama_s_shape_and_a_name_may_have_its_default_tag() {
    let mut keys = tempfile::NamedTempFile::new().expect("a file");
    writeln!(keys, "secret").expect("it is ours");
    let worker = Worker::scripted(scripted())
        .arg("--api-key-file", keys.path().display())
        .arg("--served-model-name", "mine")
        .flag("--strict-model-name")
        .start();
    let client = worker.client().with_key("secret");
    let named = |name: &str| with(asking("hi"), json!({"model": name}));
    let answer = whole(&client, CHAT, &named("mine:latest"));
    assert_eq!(answer["model"], "mine");
    assert_eq!(whole(&client, CHAT, &named("mine"))["model"], "mine");

    let tags = client.get("/api/tags").json();
    assert_eq!(tags["models"][0]["model"], "mine:latest");
    let digest = tags["models"][0]["digest"].as_str().expect("a digest");
    assert_eq!(digest.len(), 64);
    let shown = client.post("/api/show", &json!({"model": "mine:latest"}));
    let info = &shown.json()["model_info"];
    let architecture = info["general.architecture"].as_str().expect("a name");
    assert!(
        info[format!("{architecture}.context_length")].is_u64(),
        "{info}"
    );
    assert!(client.get("/api/version").json()["version"].is_string());

    // The memory of the scripted child is its weights.
    let running = client.get("/api/ps").json();
    let running = &running["models"][0];
    assert_eq!(running["model"], "mine:latest");
    assert_eq!(
        (&running["size"], &running["size_vram"]),
        (&json!(facts::WEIGHTS_BYTES), &json!(0))
    );
    let stranger = worker.client();
    let ask = |client: &Client, method: &str, path: &str, body: &Value| {
        let answer = client.try_request(method, path, &[], body.to_string().as_bytes());
        answer.expect("an answer")
    };
    let nothing = json!({});
    for (client, method, path, body, status, words) in [
        (
            &stranger,
            "POST",
            CHAT,
            &asking("hi"),
            401,
            "a valid key is needed",
        ),
        (
            &stranger,
            "GET",
            "/api/tags",
            &nothing,
            401,
            "a valid key is needed",
        ),
        (&client, "POST", CHAT, &nothing, 400, "messages is required"),
        (
            &client,
            "POST",
            CHAT,
            &named("other"),
            404,
            "there is no such model here",
        ),
        (
            &client,
            "POST",
            "/api/show",
            &nothing,
            400,
            "model is required",
        ),
        (
            &client,
            "GET",
            CHAT,
            &nothing,
            405,
            "does not answer this method",
        ),
        (
            &client,
            "POST",
            "/api/pull",
            &nothing,
            404,
            "/api/pull is not supported: ",
        ),
        (
            &client,
            "DELETE",
            "/api/delete",
            &nothing,
            404,
            "/api/delete is not supported: ",
        ),
        (
            &client,
            "POST",
            "/api/blobs/sha256:1",
            &nothing,
            404,
            "/api/blobs is not supported: ",
        ),
        (
            &client,
            "POST",
            "/api/embeddings",
            &nothing,
            404,
            "use /api/embed",
        ),
        (
            &client,
            "GET",
            "/api/other",
            &nothing,
            404,
            "nothing at this path",
        ),
    ] {
        let answer = ask(client, method, path, body);
        let refusal = answer.json();
        assert_eq!(answer.status, status, "{method} {path}: {refusal}");
        let message = refusal["error"].as_str().expect("one text");
        assert!(message.contains(words), "{method} {path}: {message}");
        assert_eq!(refusal.as_object().map(serde_json::Map::len), Some(1));
    }
}
