//! `return_token_ids` through the real programs: ids are those of the tokenizer, in the places where vLLM has them, and with
//! the same bytes under every disturbance.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use worker_orcd_tests::client::{Client, EventStream};
use worker_orcd_tests::descriptor_store::DescriptorStore;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::{Script, Worker};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const TEXT: &str = "Name a river, caf\u{e9}s at its banks, and a \u{1f30a}.";

/// Template with tools that renders only contents and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<tool_call><think>{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

const ANSWER: &str = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n\
                      </tool_call>";

fn with(mut body: Value, extra: &Value) -> Value {
    let extra = extra.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(extra);
    body
}

fn body(path: &str, extra: &Value) -> Value {
    let prompt = match path {
        CHAT => json!({"messages": [{"role": "user", "content": TEXT}]}),
        _ => json!({"prompt": TEXT}),
    };
    let body = json!({
        "return_token_ids": true, "max_tokens": 30, "temperature": 0.9, "seed": 3, "ignore_eos": true,
    });
    with(with(body, &prompt), extra)
}

fn post(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

/// Ids of the prompt of a body.
fn prompt_ids(client: &Client, body: &Value) -> Value {
    let asked = match body.get("messages") {
        Some(messages) => json!({"messages": messages}),
        None => json!({"prompt": body["prompt"]}),
    };
    post(client, "/tokenize", &asked)["tokens"].clone()
}

fn detokenize(client: &Client, ids: &Value) -> String {
    let answer = post(client, "/detokenize", &json!({"tokens": ids}));
    answer["content"].as_str().expect("a text").to_owned()
}

fn text(choice: &Value) -> &str {
    let text = choice["text"].as_str();
    text.or(choice["message"]["content"].as_str())
        .expect("a text")
}

/// Choices as a client of vLLM assembles them from a stream.
#[derive(Debug, Default, PartialEq)]
struct Assembled {
    prompt_ids: Value,
    ids: Vec<Value>,
    text: String,
    finish_reason: Value,
}

fn assemble(path: &str, chunks: impl IntoIterator<Item = Value>) -> BTreeMap<u64, Assembled> {
    let mut all: BTreeMap<u64, Assembled> = BTreeMap::new();
    for chunk in chunks {
        let choice = &chunk["choices"][0];
        let Some(index) = choice["index"].as_u64() else {
            assert!(chunk.get("prompt_token_ids").is_none(), "{chunk}");
            continue;
        };
        let is_first = !all.contains_key(&index);
        let own = all.entry(index).or_default();
        let of_prompt = match path {
            CHAT => chunk.get("prompt_token_ids"),
            // It is there in each chunk.
            _ => choice.get("prompt_token_ids").filter(|it| !it.is_null()),
        };
        assert_eq!(of_prompt.is_some(), is_first, "{chunk}");
        if let Some(ids) = of_prompt {
            own.prompt_ids = ids.clone();
        }
        let is_role = choice["delta"]["role"].is_string();
        assert_eq!(choice.get("token_ids").is_none(), is_role, "{chunk}");
        own.ids.extend(
            choice["token_ids"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        let part = choice["text"].as_str();
        let part = part.or(choice["delta"]["content"].as_str());
        own.text.push_str(part.unwrap_or_default());
        own.finish_reason = choice["finish_reason"].clone();
    }
    all
}

fn parsed(events: impl IntoIterator<Item = String>) -> Vec<Value> {
    let events = events.into_iter().filter(|data| data != "[DONE]");
    let parse = |data: String| serde_json::from_str(&data).expect("JSON");
    events.map(parse).collect()
}

fn streamed(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), &json!({"stream": true}));
    parsed(client.stream(path, &body).map(|event| event.data))
}

/// A whole answer and its stream have these ids, in the places of the endpoint.
fn check(client: &Client, path: &str, body: &Value) -> Value {
    let answer = post(client, path, body);
    let assembled = assemble(path, streamed(client, path, body));
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), assembled.len());
    let (mut tokens, of_prompt) = (0, prompt_ids(client, body));
    for (choice, streamed) in choices.iter().zip(assembled.into_values()) {
        let ids = choice["token_ids"].as_array().expect("ids");
        tokens += ids.len();
        let expected = match path {
            CHAT => &answer["prompt_token_ids"],
            _ => &choice["prompt_token_ids"],
        };
        assert_eq!(*expected, of_prompt);
        let expected = Assembled {
            prompt_ids: of_prompt.clone(),
            ids: ids.clone(),
            text: text(choice).to_owned(),
            finish_reason: choice["finish_reason"].clone(),
        };
        assert_eq!(streamed, expected, "{body}");
    }
    assert_eq!(answer["usage"]["completion_tokens"], json!(tokens));
    answer
}

#[test]
fn ids_are_those_of_the_tokenizer_whole_and_streamed() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for path in [CHAT, COMPLETIONS] {
        let usage = json!({"include_usage": true, "continuous_usage_stats": true});
        let asked = body(path, &json!({"n": 3}));
        let answer = check(&client, path, &asked);
        for choice in answer["choices"].as_array().expect("choices") {
            let written = detokenize(&client, &choice["token_ids"]);
            assert_eq!(written, text(choice));
        }
        let asked = with(asked, &json!({"stream": true, "stream_options": usage}));
        for chunk in parsed(client.stream(path, &asked).map(|event| event.data)) {
            assert!(chunk["usage"].is_object(), "{chunk}");
        }
        // Without the field, or with false, nothing of it is there.
        for other in [
            json!({"return_token_ids": false}),
            json!({"return_token_ids": null}),
        ] {
            let mut plain = post(&client, path, &body(path, &other));
            let chunks = streamed(&client, path, &body(path, &other));
            assert!(!json!(chunks).to_string().contains("token_ids"));
            assert!(!plain.to_string().contains("token_ids"), "{plain}");
            let mut listing = post(&client, path, &body(path, &json!({})));
            for answer in [&mut plain, &mut listing] {
                let choice = answer["choices"][0].as_object_mut().expect("a choice");
                choice.retain(|name, _| !name.ends_with("token_ids"));
            }
            assert_eq!(listing["choices"], plain["choices"]);
        }
    }
    let prompts = json!(["One", "Two rivers", TEXT]);
    let answer = post(
        &client,
        COMPLETIONS,
        &body(COMPLETIONS, &json!({"prompt": prompts})),
    );
    for (index, prompt) in prompts.as_array().expect("prompts").iter().enumerate() {
        let ids = prompt_ids(&client, &json!({"prompt": prompt}));
        assert_eq!(answer["choices"][index]["prompt_token_ids"], ids);
    }
    let given = json!({"prompt": [5, 6, 7]});
    let answer = post(&client, COMPLETIONS, &body(COMPLETIONS, &given));
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!([5, 6, 7]));
    for wrong in [json!(1), json!("true"), json!([])] {
        let refused = client.post(CHAT, &body(CHAT, &json!({"return_token_ids": wrong})));
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["error"]["param"], "return_token_ids");
    }
}

#[test]
fn ids_of_tokens_without_text_are_in_the_last_chunk() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for path in [CHAT, COMPLETIONS] {
        let free = check(&client, path, &body(path, &json!({})));
        let choice = &free["choices"][0];
        // A stop string in the middle: its tokens are generated, and have no text.
        let whole: Vec<char> = text(choice).chars().collect();
        let stop: String = whole[12..18].iter().collect();
        let stopped = check(&client, path, &body(path, &json!({"stop": stop})));
        let cut = &stopped["choices"][0];
        assert_eq!(cut["finish_reason"], "stop");
        let ids = cut["token_ids"].as_array().expect("ids");
        let all = choice["token_ids"].as_array().expect("ids");
        assert_eq!(*ids, all[..ids.len()]);
        let written = detokenize(&client, &json!(ids));
        assert!(
            written.starts_with(&format!("{}{stop}", text(cut))),
            "{written}"
        );
        let before = detokenize(&client, &json!(ids[..ids.len() - 1]));
        assert!(!before.contains(&stop), "{before}");
        // The end of generation.
        let end = json!({"content": "<|im_end|>", "parse_special": true});
        let end = post(&client, "/tokenize", &end)["tokens"][0].clone();
        let bias = json!({end.to_string(): 100});
        let extra = json!({"logit_bias": bias, "min_tokens": 2, "ignore_eos": false});
        let ended = check(&client, path, &body(path, &extra));
        let ids = ended["choices"][0]["token_ids"].as_array().expect("ids");
        assert_eq!((ids.len(), ids.last()), (3, Some(&end)));
    }
}

#[test]
fn the_ids_of_an_echoed_prompt_take_the_place_of_its_text() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let plain = post(&client, COMPLETIONS, &body(COMPLETIONS, &json!({})));
    for logprobs in [json!(null), json!(2)] {
        let extra = json!({"echo": true, "logprobs": logprobs});
        let echoed = check(&client, COMPLETIONS, &body(COMPLETIONS, &extra));
        for name in ["text", "token_ids", "prompt_token_ids"] {
            assert_eq!(echoed["choices"][0][name], plain["choices"][0][name]);
        }
        let nothing = with(extra, &json!({"max_tokens": 0}));
        let nothing = check(&client, COMPLETIONS, &body(COMPLETIONS, &nothing));
        let choice = &nothing["choices"][0];
        assert_eq!((text(choice), &choice["token_ids"]), ("", &json!([])));
    }
}

#[test]
fn ids_of_reasoning_and_calls_are_those_of_the_text_as_the_model_writes_it() {
    let worker = Worker::scripted(Script::behave().chat_template(HERMES.to_owned())).start();
    let client = worker.client();
    let function = json!({"name": "add", "parameters": {"type": "object", "properties": {}}});
    let asked = json!({
        "messages": [{"role": "user", "content": ANSWER}], "return_token_ids": true, "n": 2,
        "tools": [{"type": "function", "function": function}],
    });
    let answer = post(&client, CHAT, &asked);
    let assembled = assemble(CHAT, streamed(&client, CHAT, &asked));
    for (index, streamed) in assembled {
        let choice = &answer["choices"][index as usize];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(streamed.finish_reason, "tool_calls");
        assert_eq!(json!(streamed.ids), choice["token_ids"]);
        assert_eq!(streamed.prompt_ids, answer["prompt_token_ids"]);
        assert_eq!(streamed.text, "I look.");
        let mut ids = streamed.ids;
        ids.pop().expect("the end");
        assert_eq!(detokenize(&client, &json!(ids)), ANSWER);
    }
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_ids_as_they_are() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let choices = |chunks: Vec<Value>| -> Vec<Value> {
        let part = |chunk: Value| json!([chunk["choices"], chunk["prompt_token_ids"]]);
        chunks.into_iter().map(part).collect()
    };
    for (path, extra) in [
        (CHAT, json!({})),
        (COMPLETIONS, json!({})),
        (COMPLETIONS, json!({"echo": true, "logprobs": 1})),
    ] {
        let asked = body(
            path,
            &with(extra, &json!({"max_tokens": 150, "stream": true})),
        );
        let calm = choices(streamed(&client, path, &asked));
        for disturbance in Disturbance::ALL {
            for events in [0, 6] {
                let all = disturbance.of_stream(&worker, path, &asked, events);
                assert_eq!(choices(parsed(all)), calm, "{path}, {disturbance:?}");
            }
        }
        let several = with(asked, &json!({"n": 3}));
        let calm = assemble(path, streamed(&client, path, &several));
        for disturbance in Disturbance::ALL {
            let all = disturbance.of_stream(&worker, path, &several, 20);
            assert_eq!(assemble(path, parsed(all)), calm, "{path}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn the_rest_of_a_lost_connection_has_the_rest_of_the_ids() {
    for path in [CHAT, COMPLETIONS] {
        let store = DescriptorStore::default();
        let first = store.of(Worker::shallow()).start();
        let asked = body(path, &json!({"max_tokens": 150, "stream": true}));
        let mut stream = first.client().stream(path, &asked);
        let mut chunks = parsed(stream.by_ref().take(40).map(|it| it.data));
        let second = store.succeed(first, Worker::shallow());
        drop(stream);
        let id = chunks[0]["id"].as_str().expect("an id").to_owned();
        // A chat begins with its role.
        let place = chunks.len() - usize::from(path == CHAT);
        let client = second.client();
        let mut connection = client.connect().expect("a connection");
        let resume = format!("{path}/{id}?from={place}");
        connection
            .send(&client.request("GET", &resume, &[], &[]))
            .expect("sent");
        let rest = EventStream::new(connection.read_head().expect("an answer"));
        chunks.extend(parsed(rest.map(|event| event.data)));
        let expected = assemble(path, streamed(&client, path, &asked));
        assert_eq!(assemble(path, chunks), expected, "{path}");
        assert_eq!(expected[&0].ids.len(), 150);
    }
}
