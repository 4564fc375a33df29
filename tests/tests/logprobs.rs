//! Log probabilities through the real programs: compared with llama.cpp, and with the same bytes under every
//! disturbance.

use serde_json::{Value, json};
use std::thread;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::model::shallow_model;
use worker_orcd_tests::oracle;
use worker_orcd_tests::wait::until;
use worker_orcd_tests::{Script, Worker};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Name three rivers, and a word with an \u{e9}."}],
        "max_tokens": 40, "ignore_eos": true, "temperature": 0.9, "seed": 3,
        "logprobs": true, "top_logprobs": 5,
    })
}

fn completion() -> Value {
    json!({
        "prompt": "Once upon a time there was a river", "max_tokens": 40, "ignore_eos": true,
        "temperature": 0.9, "seed": 3, "logprobs": 5,
    })
}

fn whole(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

/// Chunks without the request's ids.
fn streamed(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    chunks(client.stream(path, &body).map(|event| event.data))
}

fn chunks(events: impl Iterator<Item = String>) -> Vec<Value> {
    let data = events.filter(|data| data != "[DONE]");
    let chunks = data.map(|data| serde_json::from_str::<Value>(&data).expect("JSON"));
    chunks.map(|chunk| chunk["choices"].clone()).collect()
}

/// List of `logprobs`, over all chunks.
fn joined(chunks: &[Value], column: &str) -> Value {
    let lists = chunks.iter().map(|it| &it[0]["logprobs"][column]);
    let items = lists.filter_map(Value::as_array).flatten();
    items.cloned().collect()
}

fn text_of(chunks: &[Value]) -> String {
    let texts = chunks.iter().map(|chunk| {
        let (chat, text) = (&chunk[0]["delta"]["content"], &chunk[0]["text"]);
        chat.as_str().or(text.as_str()).unwrap_or_default()
    });
    texts.collect()
}

fn streamed_is_whole(client: &Client, chat: &Value, completion: &Value) {
    let answer = whole(client, CHAT, chat);
    let chunks = streamed(client, CHAT, chat);
    assert_eq!(joined(&chunks, "content"), answer["logprobs"]["content"]);
    assert_eq!(answer["logprobs"]["refusal"], Value::Null);
    assert_eq!(
        text_of(&chunks),
        answer["message"]["content"].as_str().unwrap()
    );

    let answer = whole(client, COMPLETIONS, completion);
    let chunks = streamed(client, COMPLETIONS, completion);
    for column in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let found = joined(&chunks, column);
        assert_eq!(found, answer["logprobs"][column], "{column}");
        assert!(!found.as_array().unwrap().is_empty());
    }
    assert_eq!(text_of(&chunks), answer["text"].as_str().unwrap());
}

#[test]
fn streamed_and_whole_list_the_same() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    for stop in [json!(null), json!(["river"]), json!(["ri", "a w"])] {
        let (mut chat, mut completion) = (chat(), completion());
        chat["stop"] = stop.clone();
        completion["stop"] = stop;
        streamed_is_whole(&client, &chat, &completion);
    }
}

#[test]
fn the_real_model_s_tokens_are_its_text_and_its_offsets_their_places() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    streamed_is_whole(&client, &chat(), &completion());

    let answer = whole(&client, CHAT, &chat());
    let tokens = answer["logprobs"]["content"].as_array().unwrap();
    let bytes = tokens.iter().flat_map(|it| it["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|it| it.as_u64().unwrap() as u8).collect();
    let text = answer["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), text);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        let logprobs: Vec<_> = top
            .iter()
            .map(|it| it["logprob"].as_f64().unwrap())
            .collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b), "{logprobs:?}");
        let all: f64 = logprobs.iter().map(|it| it.exp()).sum();
        assert!(all <= 1.0 + 1e-5, "{logprobs:?}");
    }

    let answer = whole(&client, COMPLETIONS, &completion());
    let lists = &answer["logprobs"];
    let text: Vec<char> = answer["text"].as_str().unwrap().chars().collect();
    let offsets = lists["text_offset"].as_array().unwrap();
    for (token, offset) in lists["tokens"].as_array().unwrap().iter().zip(offsets) {
        let token = token.as_str().unwrap();
        if !token.starts_with("bytes:") {
            let rest: String = text[offset.as_u64().unwrap() as usize..].iter().collect();
            assert!(rest.starts_with(token), "{token:?} at {offset}");
        }
    }
}

#[test]
fn neither_neighbours_nor_threads_nor_chunks_nor_a_prefix_change_a_bit() {
    let alone = Worker::shallow().arg("--threads", 1).start();
    let expected = whole(&alone.client(), COMPLETIONS, &completion());
    // The second time its prompt's pages are cached.
    assert_eq!(whole(&alone.client(), COMPLETIONS, &completion()), expected);
    drop(alone);
    let worker = Worker::shallow()
        .arg("--threads", 2)
        .arg("--prefill-chunk", 5)
        .arg("--max-running", 8)
        .start();
    let client = worker.client();
    let company: Vec<_> = (0..7)
        .map(|n| {
            let client = client.clone();
            let mut body = completion();
            body["prompt"] = json!("The number ".repeat(2 + n));
            body["logprobs"] = if n % 2 == 0 { json!(n) } else { Value::Null };
            thread::spawn(move || whole(&client, COMPLETIONS, &body))
        })
        .collect();
    assert_eq!(whole(&client, COMPLETIONS, &completion()), expected);
    for other in company {
        let answer = other.join().expect("the company is served too");
        assert!(answer["text"].is_string(), "{answer}");
    }
}

/// Penalties and temperature change the drawn token, and not the reported probabilities.
#[test]
fn they_are_the_model_s_own_whatever_the_draw_is_made_with() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let first = |extra: Value| {
        let mut body = completion();
        body["max_tokens"] = json!(1);
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        whole(&client, COMPLETIONS, &body)["logprobs"].clone()
    };
    let greedy = first(json!({"temperature": 0}));
    let token = greedy["tokens"][0].as_str().expect("a token");
    let likeliest = &greedy["top_logprobs"][0];
    assert_eq!(greedy["token_logprobs"][0], likeliest[token]);
    for extra in [
        json!({"temperature": 2.0, "seed": 8}),
        json!({"temperature": 0, "repetition_penalty": 1.9}),
        json!({"temperature": 0.3, "top_k": 1}),
    ] {
        let drawn = first(extra);
        let token = drawn["tokens"][0].as_str().expect("a token");
        let mut top = drawn["top_logprobs"][0].clone();
        if likeliest.get(token).is_none() {
            top.as_object_mut().unwrap().remove(token);
        }
        assert_eq!(top, *likeliest);
    }
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_bytes_as_they_are() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for (path, mut body) in [(CHAT, chat()), (COMPLETIONS, completion())] {
        // Long enough for a disturbance in the middle.
        body["max_tokens"] = json!(200);
        let expected = streamed(&client, path, &body);
        body["stream"] = json!(true);
        for disturbance in Disturbance::ALL {
            let all = disturbance.of_stream(&worker, path, &body, 6);
            assert_eq!(chunks(all.into_iter()), expected, "{path}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

/// Data of a response's events, without its ids.
fn response_events(events: impl Iterator<Item = String>) -> Vec<Value> {
    let mut events: Vec<Value> = events
        .map(|data| serde_json::from_str(&data).expect("JSON"))
        .collect();
    let own = events[0]["response"]["id"].as_str().expect("an id");
    let own = own.trim_start_matches("resp_").to_owned();
    for event in &mut events {
        let text = event.to_string().replace(&own, "ID");
        *event = serde_json::from_str(&text).expect("JSON");
        if let Some(response) = event.get_mut("response") {
            response["created_at"] = json!(0);
        }
    }
    events
}

#[test]
fn a_response_lists_what_a_chat_lists_and_a_death_changes_no_byte() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let chat = json!({
        "messages": [{"role": "user", "content": "Tell a long story of a caf\u{e9} by a river."}],
        "max_tokens": 120, "temperature": 0.9, "seed": 3, "logprobs": true, "top_logprobs": 2,
    });
    let mut asked = json!({
        "input": chat["messages"][0]["content"], "max_output_tokens": 120, "temperature": 0.9, "seed": 3,
        "include": ["message.output_text.logprobs"], "top_logprobs": 2,
    });
    let expected = whole(&client, CHAT, &chat)["logprobs"]["content"].clone();
    assert!(expected.as_array().expect("tokens").len() > 60);
    let told = client.post("/v1/responses", &asked);
    assert_eq!(told.status, 200, "{}", told.text());
    let part = &told.json()["output"][0]["content"][0];
    assert_eq!(part["logprobs"], expected);

    asked["stream"] = json!(true);
    let calm = client.stream("/v1/responses", &asked).map(|it| it.data);
    let calm = response_events(calm);
    let deltas = calm
        .iter()
        .filter(|it| it["type"] == "response.output_text.delta");
    let of_deltas = deltas.filter_map(|it| it["logprobs"].as_array()).flatten();
    assert_eq!(of_deltas.cloned().collect::<Value>(), expected);
    let last = calm.last().expect("an end");
    let part = &last["response"]["output"][0]["content"][0];
    assert_eq!(part["logprobs"], expected);
    for disturbance in Disturbance::ALL {
        let all = disturbance.of_stream(&worker, "/v1/responses", &asked, 12);
        assert_eq!(response_events(all.into_iter()), calm, "{disturbance:?}");
    }
    assert!(worker.generation() > Some(1), "no child died");
}

/// Prompt of many steps, and one token after it.
fn long_prompt() -> Value {
    let text: String = (0..60)
        .map(|n| format!("The {n}th river is long, and "))
        .collect();
    json!({
        "prompt": text, "max_tokens": 20, "ignore_eos": true, "temperature": 0.9, "seed": 3,
        "logprobs": 5, "echo": true,
    })
}

#[test]
fn an_answer_begins_with_its_prompt_streamed_and_whole() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let text = "A river \u{e9} <|im_start|>";
    let ids = client.post("/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
    for prompt in [
        json!(text),
        ids.clone(),
        json!([text, "Two"]),
        json!([ids, [1, 2]]),
    ] {
        let mut body = completion();
        body["prompt"] = prompt;
        body["max_tokens"] = json!(6);
        body["n"] = json!(2);
        let plain = client.post(COMPLETIONS, &body).json();
        body["echo"] = json!(true);
        for logprobs in [json!(null), json!(2)] {
            body["logprobs"] = logprobs;
            let answer = client.post(COMPLETIONS, &body).json();
            assert_eq!(
                answer["usage"]["completion_tokens"],
                plain["usage"]["completion_tokens"]
            );
            assert_eq!(
                answer["usage"]["prompt_tokens"],
                plain["usage"]["prompt_tokens"]
            );
            let streamed = streamed(&client, COMPLETIONS, &body);
            let choices = answer["choices"].as_array().expect("choices");
            for (index, choice) in choices.iter().enumerate() {
                let told = choice["text"].as_str().expect("a text");
                let generated = plain["choices"][index]["text"].as_str().expect("a text");
                let echoed = told.strip_suffix(generated).expect("the same answer");
                assert!(
                    !echoed.is_empty() && (index > 1 || echoed == text),
                    "{told}"
                );
                let own = streamed.iter().filter(|it| it[0]["index"] == index);
                let own: Vec<Value> = own.cloned().collect();
                assert_eq!(text_of(&own), told);
                if !body["logprobs"].is_null() {
                    let lists = &choice["logprobs"];
                    assert_eq!(joined(&own, "token_logprobs"), lists["token_logprobs"]);
                    assert_eq!(joined(&own, "tokens"), lists["tokens"]);
                }
            }
        }
    }
}

#[test]
fn a_prompt_s_are_those_of_the_same_tokens_when_they_were_drawn() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let mut body = completion();
    body["temperature"] = json!(0);
    let drawn = whole(&client, COMPLETIONS, &body);
    let text = drawn["text"].as_str().expect("a text");
    let prompt = format!("{}{text}", body["prompt"].as_str().expect("a prompt"));
    body["echo"] = json!(true);
    body["prompt"] = json!(prompt);
    body["max_tokens"] = json!(0);
    let scored = whole(&client, COMPLETIONS, &body);
    assert_eq!(scored["text"], prompt);
    assert_eq!(scored["finish_reason"], "length");
    let column = |of: &Value, name: &str| of["logprobs"][name].as_array().expect("a list").clone();
    for name in ["tokens", "token_logprobs", "top_logprobs"] {
        let (drawn, all) = (column(&drawn, name), column(&scored, name));
        assert_eq!(all[all.len() - drawn.len()..], drawn, "{name}");
    }
    assert_eq!(column(&scored, "token_logprobs")[0], Value::Null);
    let chars: Vec<char> = prompt.chars().collect();
    let offsets = column(&scored, "text_offset");
    for (token, offset) in column(&scored, "tokens").iter().zip(offsets) {
        let rest: String = chars[offset.as_u64().expect("a number") as usize..]
            .iter()
            .collect();
        assert!(
            rest.starts_with(token.as_str().expect("text")),
            "{token} at {offset}"
        );
    }
    // The end token is listed too, for clients that count.
    body["max_tokens"] = json!(1);
    let one_more = whole(&client, COMPLETIONS, &body);
    let lists = [&one_more, &scored].map(|it| column(it, "tokens").len());
    assert_eq!(lists[0], lists[1] + 1);
}

#[test]
fn a_prompt_s_are_told_once_with_the_same_bytes_whatever_dies_in_its_middle() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let mut body = long_prompt();
    let expected = streamed(&client, COMPLETIONS, &body);
    assert!(
        joined(&expected, "tokens")
            .as_array()
            .expect("a list")
            .len()
            > 400
    );
    body["stream"] = json!(true);
    for disturbance in Disturbance::ALL {
        // In the prompt, and after it.
        for events in [0, 3] {
            let all = disturbance.of_stream(&worker, COMPLETIONS, &body, events);
            let found = chunks(all.into_iter());
            assert_eq!(found, expected, "{disturbance:?} behind {events}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn prompts_that_are_told_have_so_much_memory_and_wait_for_it_by_name() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let telling = |prompts: usize, tokens: usize, stream: bool| {
        let prompts = vec![vec![1; tokens]; prompts];
        json!({
            "prompt": prompts, "max_tokens": 0, "echo": true, "logprobs": 20, "stream": stream,
        })
    };
    let refused = |body: &Value, status: u16, word: &str| {
        let answer = client.post(COMPLETIONS, body);
        assert_eq!(answer.status, status, "{}", answer.text());
        let message = answer.json()["error"]["message"].clone();
        assert!(message.as_str().expect("words").contains(word), "{message}");
        answer.header("retry-after").is_some()
    };
    // More than the worker's total.
    assert!(!refused(&telling(24, 8000, false), 400, "ask for fewer"));
    let long = client
        .open(COMPLETIONS, &telling(12, 8000, true))
        .expect("a stream");
    assert_eq!(long.status, 200);
    assert!(refused(
        &telling(12, 8000, false),
        429,
        "of others' prompts"
    ));
    // Short requests have room, and requests without log probabilities need none.
    for _ in 0..8 {
        whole(&client, COMPLETIONS, &telling(2, 20, false));
    }
    whole(&client, COMPLETIONS, &completion());
    drop(long);
    let long = until("the memory of who has left", || {
        let long = client
            .open(COMPLETIONS, &telling(12, 8000, true))
            .expect("an answer");
        (long.status == 200).then_some(long)
    });
    drop(long);
}

/// `prompt_logprobs` of a position, by the ids of the tokens.
fn position(value: &Value) -> Vec<(u64, &Value)> {
    let tokens = value.as_object().expect("an object").iter();
    let tokens = tokens.map(|(id, it)| (id.parse().expect("an id"), it));
    tokens.collect()
}

#[test]
fn a_prompt_s_apart_from_an_echo_are_those_of_its_echo_with_ids_and_ranks() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = |extra: Value| {
        let mut body =
            json!({"prompt": "A river \u{e9} <|im_start|> \u{1f30a}", "max_tokens": 3, "seed": 3});
        body.as_object_mut()
            .expect("fields")
            .extend(extra.as_object().expect("fields").clone());
        body
    };
    let asked = json!({"prompt": body(json!({}))["prompt"]});
    let ids = client.post("/tokenize", &asked).json()["tokens"].clone();
    let ids = ids.as_array().expect("ids");
    let echoed = whole(
        &client,
        COMPLETIONS,
        &body(json!({"echo": true, "logprobs": 20})),
    );
    let echoed = &echoed["logprobs"];
    let twenty = whole(&client, COMPLETIONS, &body(json!({"prompt_logprobs": 20})));
    let twenty = twenty["prompt_logprobs"]
        .as_array()
        .expect("a list")
        .clone();
    assert_eq!((twenty.len(), &twenty[0]), (ids.len(), &Value::Null));
    for (at, listed) in twenty.iter().enumerate().skip(1) {
        let tokens = position(listed);
        let (own, likely) = (&listed[ids[at].to_string()], &echoed["top_logprobs"][at]);
        assert_eq!(own["logprob"], echoed["token_logprobs"][at]);
        let rank = own["rank"].as_u64().expect("a rank");
        assert_eq!(tokens.len(), if rank > 20 { 21 } else { 20 }, "{listed}");
        let mut ranks: Vec<_> = tokens.iter().map(|(_, it)| it["rank"].as_u64()).collect();
        ranks.sort_unstable();
        assert!(
            ranks
                .iter()
                .take(20)
                .eq((1..=20).map(Some).collect::<Vec<_>>().iter())
        );
        for (id, token) in tokens {
            let name = client.post("/detokenize", &json!({"tokens": [id]})).json();
            assert_eq!(token["decoded_token"], name["content"], "{id}");
            let name = name["content"].as_str().expect("a text");
            if !name.contains('\u{fffd}') {
                assert_eq!(token["logprob"], likely[name], "{name:?} of {likely}");
            }
        }
    }
    let few = |top: u64| {
        let of = |(at, listed): (usize, &Value)| {
            let tokens = position(listed).into_iter();
            let own = ids.get(at).and_then(Value::as_u64);
            let kept =
                tokens.filter(|(id, it)| it["rank"].as_u64() <= Some(top) || Some(*id) == own);
            let kept = kept.map(|(id, it)| (id.to_string(), it.clone()));
            Value::Object(kept.collect())
        };
        let rest = twenty.iter().enumerate().skip(1).map(of);
        std::iter::once(Value::Null).chain(rest).collect::<Value>()
    };
    for (top, extra) in [
        (0, json!({})),
        (2, json!({"max_tokens": 0})),
        (3, json!({"n": 2, "logprobs": 5})),
        (2, json!({"echo": true, "logprobs": 5})),
        (7, json!({"echo": true, "logprobs": 1})),
        (7, json!({"echo": true})),
        (5, json!({"prompt": ids})),
    ] {
        let plain = client.post(COMPLETIONS, &body(extra.clone())).json();
        let mut asked = body(extra);
        asked["prompt_logprobs"] = json!(top);
        let mut answer = client.post(COMPLETIONS, &asked).json();
        for choice in answer["choices"].as_array_mut().expect("choices") {
            let fields = choice.as_object_mut().expect("an object");
            let told = fields.remove("prompt_logprobs");
            assert_eq!(told, Some(few(top)), "{asked}");
        }
        assert_eq!(answer["choices"], plain["choices"], "{asked}");
    }
    let one = whole(
        &client,
        COMPLETIONS,
        &body(json!({"prompt": [5], "prompt_logprobs": 3})),
    );
    assert_eq!(one["prompt_logprobs"], json!([null]));

    let chat = json!({"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 2, "n": 2, "seed": 3});
    let tokens = json!({"messages": chat["messages"]});
    let tokens = client.post("/tokenize", &tokens).json()["tokens"].clone();
    let same = whole(
        &client,
        COMPLETIONS,
        &body(json!({"prompt": tokens, "prompt_logprobs": 4})),
    );
    let mut asked = chat.clone();
    asked["prompt_logprobs"] = json!(4);
    let told = client.post(CHAT, &asked).json();
    assert_eq!(told["prompt_logprobs"], same["prompt_logprobs"]);
    assert_eq!(told["choices"], client.post(CHAT, &chat).json()["choices"]);
}

#[test]
fn a_prompt_s_apart_from_an_echo_are_refused_by_name_where_they_are_not_served() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    for (path, body) in [(CHAT, chat()), (COMPLETIONS, completion())] {
        for (top, stream, word) in [
            (json!(-1), false, "must be from 0 to 20"),
            (json!(21), false, "20"),
            (json!(1.5), false, "integer"),
            (json!("2"), false, "integer"),
            (json!(true), false, "integer"),
            (json!(0), true, "stream: true"),
            (json!(5), true, "stream: true"),
        ] {
            let mut body = body.clone();
            body["prompt_logprobs"] = top;
            body["stream"] = json!(stream);
            let answer = client.post(path, &body);
            assert_eq!(answer.status, 400, "{}", answer.text());
            let error = &answer.json()["error"];
            assert_eq!(error["param"], "prompt_logprobs");
            let message = error["message"].as_str().expect("words");
            assert!(message.contains(word), "{message}");
        }
        let mut body = body;
        body["prompt_logprobs"] = Value::Null;
        assert_eq!(client.post(path, &body).status, 200);
    }
    // 16 prompts of 8,000 tokens with 20 objects each are more than the worker's total.
    let long = json!({"prompt": vec![vec![1; 8000]; 16], "max_tokens": 0, "prompt_logprobs": 20});
    let worker = Worker::shallow().start();
    let answer = worker.client().post(COMPLETIONS, &long);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("ask for fewer"), "{}", answer.text());
}

#[test]
fn a_prompt_s_apart_from_an_echo_survive_a_death_and_an_upgrade_in_its_middle() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let mut body = long_prompt();
    let fields = body.as_object_mut().expect("fields");
    fields.retain(|name, _| name != "echo" && name != "logprobs");
    for (path, field) in [(COMPLETIONS, "prompt"), (CHAT, "messages")] {
        let mut body = body.clone();
        if path == CHAT {
            let fields = body.as_object_mut().expect("fields");
            let text = fields.remove("prompt");
            body[field] = json!([{"role": "user", "content": text}]);
        }
        body["prompt_logprobs"] = json!(5);
        body["return_token_ids"] = json!(true);
        let asked = || {
            let mut answer = client.post(path, &body).json();
            let fields = answer.as_object_mut().expect("an answer");
            fields.retain(|name, _| !["id", "created", "usage"].contains(&name.as_str()));
            answer
        };
        let calm = asked();
        assert!(calm.to_string().matches("decoded_token").count() > 400);
        for disturbance in Disturbance::ALL {
            let answer = thread::scope(|scope| {
                let answer = scope.spawn(asked);
                until("the request", || {
                    let load = client.health()["load"].clone();
                    (load["live"] == 1).then_some(())
                });
                match disturbance {
                    Disturbance::Killed => worker.kill_child(),
                    Disturbance::Replaced => worker.upgrade(),
                }
                answer.join().expect("an answer")
            });
            assert_eq!(answer, calm, "{path}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn they_equal_llama_cpp_s() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let plain = folder.path().join("plain.gguf");
    let model = shallow_model();
    oracle::run(
        "logprobs.py",
        &["write".as_ref(), model.as_os_str(), plain.as_os_str()],
    );
    let worker = Worker::with_model(&plain).start();
    let url = format!("http://{}", worker.client().address);
    oracle::run(
        "logprobs.py",
        &["compare".as_ref(), plain.as_os_str(), url.as_ref()],
    );
}
