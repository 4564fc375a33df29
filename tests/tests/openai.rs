//! OpenAI routes, through a Rust client library and through plain HTTP.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequestArgs,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read};
use std::time::Duration;
use worker_orcd_tests::client::Response;
use worker_orcd_tests::script::{Act, Moment, scripted_text};
use worker_orcd_tests::{Script, Worker};

const QUESTION: &str = "What is the capital of France?";

fn openai(worker: &Worker) -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new()
        .with_api_key("unused")
        .with_api_base(format!("http://{}/v1", worker.client().address));
    Client::with_config(config)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn async_openai_holds_a_streamed_chat_with_the_real_model() {
    let worker = Worker::real().start();
    let model = worker.client().get("/v1/models").json()["data"][0]["id"].clone();
    let streamed = block_on(async {
        let message = ChatCompletionRequestUserMessageArgs::default()
            .content(QUESTION)
            .build()
            .unwrap();
        let request = CreateChatCompletionRequestArgs::default()
            .model(model.as_str().unwrap())
            .messages([message.into()])
            .temperature(0.0)
            .max_tokens(24_u32)
            .build()
            .unwrap();
        let mut stream = openai(&worker).chat().create_stream(request).await.unwrap();
        let mut text = String::new();
        let mut finished = None;
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.expect("every chunk is one of OpenAI's");
            for choice in chunk.choices {
                text.push_str(choice.delta.content.as_deref().unwrap_or_default());
                finished = choice.finish_reason.or(finished);
            }
        }
        assert!(finished.is_some(), "a finish reason came");
        text
    });
    let body = json!({
        "model": model, "messages": [{ "role": "user", "content": QUESTION }],
        "temperature": 0.0, "max_tokens": 24,
    });
    let whole = worker.client().post("/v1/chat/completions", &body).json();
    assert_eq!(
        whole["choices"][0]["message"]["content"],
        streamed.as_str(),
        "{whole}"
    );
    assert!(
        streamed.split_whitespace().count() > 3,
        "a model speaks: {streamed:?}"
    );
}

#[test]
fn streamed_and_whole_chats_say_the_same() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let model = client.get("/v1/models").json()["data"][0]["id"].clone();
    let mut body = json!({
        "model": model, "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 40,
    });
    // The scripted model repeats its prompt, so the answer shows the rendered chat template.
    let expected = scripted_text("<user>hello<assistant>", 40);
    let whole = client.post("/v1/chat/completions", &body);
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(
        whole["choices"][0]["message"]["content"],
        expected.as_str(),
        "{whole}"
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    assert_eq!(whole["usage"]["prompt_tokens"], 22);
    assert_eq!(whole["usage"]["total_tokens"], 62);

    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let mut events: Vec<String> = client
        .stream("/v1/chat/completions", &body)
        .map(|event| event.data)
        .collect();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<Value> = events
        .iter()
        .map(|data| serde_json::from_str(data).expect(data))
        .collect();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, expected);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 40, "{usage}");
}

#[test]
fn completions_take_the_prompt_as_it_is_and_stop_where_told() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    let model = client.get("/v1/models").json()["data"][0]["id"].clone();
    let mut body = json!({ "model": model, "prompt": "abcdefgh", "max_tokens": 20 });
    let whole = client.post("/v1/completions", &body).json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(
        whole["choices"][0]["text"],
        scripted_text("abcdefgh", 20).as_str(),
        "{whole}"
    );
    // A stop string over several tokens: none of its text is sent.
    body["stop"] = json!(["efg"]);
    let stopped = client.post("/v1/completions", &body).json();
    assert_eq!(stopped["choices"][0]["text"], "abcd", "{stopped}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn errors_have_the_shape_that_openai_clients_read() {
    let worker = Worker::scripted(Script::behave()).start();
    let model = worker.client().get("/v1/models").json()["data"][0]["id"].clone();
    let hi = json!([{ "role": "user", "content": "hi" }]);
    for mut body in [
        json!({}),
        json!({ "messages": [] }),
        json!({ "messages": "hi" }),
        json!({ "messages": [{ "role": "king", "content": "hi" }] }),
        json!({ "messages": hi, "temperature": 3 }),
    ] {
        body["model"] = model.clone();
        let response = worker.client().post("/v1/chat/completions", &body);
        assert_eq!(response.status, 400, "{body}: {}", response.text());
        let error = &response.json()["error"];
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{error}"
        );
        assert!(error["type"].is_string(), "{error}");
    }
    worker.assert_serves();
}

fn hi() -> Value {
    json!([{ "role": "user", "content": "hi" }])
}

fn chat(worker: &Worker, extra: &Value) -> Response {
    let mut body = json!({ "messages": hi(), "max_tokens": 4 });
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    worker.client().post("/v1/chat/completions", &body)
}

#[test]
fn labels_and_what_happens_anyway_change_no_answer() {
    let worker = Worker::scripted(Script::behave()).start();
    let text = |response: &Response| {
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["choices"][0]["message"]["content"].clone()
    };
    let plain = text(&chat(&worker, &json!({})));
    for extra in [
        json!({ "user": "me", "metadata": { "a": "b" }, "safety_identifier": "x", "store": true }),
        json!({ "seed": -1, "top_k": -1, "min_tokens": 0, "service_tier": "auto" }),
        json!({ "skip_special_tokens": true, "add_generation_prompt": true }),
        json!({ "continue_final_message": false, "reasoning_effort": "none", "tools": [] }),
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "messages": [{ "role": "user", "content": "hi", "tool_calls": [], "name": "Ann" }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }] }),
    ] {
        assert_eq!(text(&chat(&worker, &extra)), plain, "{extra}");
    }
    let ids = |prompt: Value| {
        let body = json!({ "prompt": prompt, "max_tokens": 4 });
        worker.client().post("/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    assert_eq!(ids(json!([[104, 105]])), ids(json!(["hi"])));
    assert_eq!(ids(json!([104, 105])), "hihi");
}

#[test]
fn every_chunk_tells_the_usage_so_far_where_asked_for() {
    let worker = Worker::scripted(Script::behave()).start();
    let body = json!({
        "messages": hi(), "max_tokens": 8, "stream": true,
        "stream_options": { "include_usage": true, "continuous_usage_stats": true },
    });
    let events = worker.client().stream("/v1/chat/completions", &body);
    let told: Vec<u64> = events
        .filter(|event| event.data != "[DONE]")
        .map(|event| {
            event.json()["usage"]["completion_tokens"]
                .as_u64()
                .expect(&event.data)
        })
        .collect();
    // The role, eight tokens, the reason, and usage alone.
    assert_eq!(told, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]);
}

#[test]
fn a_context_that_overflows_is_told_in_words_that_clients_know() {
    let worker = Worker::scripted(Script::behave())
        .arg("--max-context", 100)
        .start();
    let long = json!([{ "role": "user", "content": "x".repeat(200) }]);
    let response = chat(&worker, &json!({ "messages": long }));
    assert_eq!(response.status, 400, "{}", response.text());
    assert_eq!(response.header("x-should-retry"), Some("false"));
    let error = response.json()["error"].clone();
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().unwrap();
    let begin = "This model's maximum context length is 100 tokens.";
    assert!(message.starts_with(begin), "{message}");
    // An answer ends at the end of the context, at any `max_tokens`.
    let cut = chat(&worker, &json!({ "max_tokens": 16_384 }));
    assert_eq!(cut.status, 200, "{}", cut.text());
    let cut = cut.json();
    assert_eq!(cut["usage"]["total_tokens"], 100);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_worker_that_loads_says_when_to_come_back() {
    let worker = Worker::scripted(Script::always(Moment::Loading, Act::StuckLoad)).listening();
    let response = chat(&worker, &json!({}));
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.header("x-should-retry"), Some("true"));
    assert_eq!(response.json()["error"]["retriable"], true);
    let id = response.header("x-correlation-id").expect("an id");
    assert_eq!(response.header("x-request-id"), Some(id));
}

/// Connection with a streaming request that waits for the worker's only slot.
fn waiting(worker: &Worker) -> worker_orcd_tests::client::Connection {
    let client = worker.client();
    let body = json!({ "messages": hi(), "max_tokens": 4, "stream": true }).to_string();
    let mut connection = client.connect().unwrap();
    let request = client.request("POST", "/v1/chat/completions", &[], body.as_bytes());
    connection.send(&request).unwrap();
    connection
}

#[test]
fn a_stream_begins_with_its_first_text() {
    let script = Script::behave().max_running(1);
    let worker = Worker::scripted(script).start();
    let mut first = worker
        .client()
        .execute(&worker_orcd_tests::worker::request("long", 2048));
    first.wait_for("token");
    let second = waiting(&worker);
    let mut socket = second.socket().try_clone().unwrap();
    let timeout = Some(Duration::from_millis(500));
    socket.set_read_timeout(timeout).unwrap();
    let early = socket.read(&mut [0]).map_err(|error| error.kind());
    assert!(
        matches!(early, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)),
        "{early:?} came while another stream was running"
    );
    socket
        .set_read_timeout(Some(worker_orcd_tests::client::READ_TIMEOUT))
        .unwrap();
    first.disconnect();
    let response = second.read_response().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    let text = response.text();
    let (role, rest) = text.split_once("\n\n").unwrap();
    assert!(role.contains("\"role\":\"assistant\""), "{text}");
    assert!(rest.ends_with("data: [DONE]\n\n"), "{text}");
}

#[test]
fn a_stream_that_fails_before_its_first_text_is_refused_with_its_status() {
    let script = Script::once(Moment::MidStream(200), Act::Exit(1)).max_running(1);
    let worker = Worker::scripted(script).arg("--on-fault", "fail").start();
    let mut first = worker
        .client()
        .execute(&worker_orcd_tests::worker::request("long", 2048));
    first.wait_for("token");
    let response = waiting(&worker).read_response().unwrap();
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.header("x-should-retry"), Some("true"));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.json()["error"]["code"], "worker_unhealthy");
}
