//! The OpenAI routes, through the client that Rust programs use and through plain HTTP.

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::types::chat::{
    ChatCompletionRequestUserMessageArgs, CreateChatCompletionRequestArgs,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use worker_orcd_tests::script::scripted_text;
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
    // The scripted model repeats its prompt, so the answer shows the chat template at work.
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
    // A stop string over several tokens: nothing of it is leaked.
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
    let other = json!({ "model": "another", "messages": hi });
    let response = worker.client().post("/v1/chat/completions", &other);
    assert_eq!(response.status, 404, "{}", response.text());
    worker.assert_serves();
}
