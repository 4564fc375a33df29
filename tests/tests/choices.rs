//! Several choices of one answer: `n`, and batches of prompts. Each choice equals that of a request for it alone, byte
//! for byte, in every delivery and under every disturbance.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use worker_orcd_tests::client::{Client, EventStream, Streaming};
use worker_orcd_tests::descriptor_store::DescriptorStore;
use worker_orcd_tests::disturbed::Disturbance;
use worker_orcd_tests::{Script, Worker, wait};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat(max_tokens: u32) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Name a river, and tell a story of it."}],
        "max_tokens": max_tokens, "temperature": 0.9, "seed": 7,
    })
}

fn with(body: &Value, extra: Value) -> Value {
    let mut body = body.clone();
    let Value::Object(extra) = extra else {
        panic!("{extra}");
    };
    body.as_object_mut().expect("an object").extend(extra);
    body
}

fn whole(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// First choice of a separate request, renumbered to choice `index`.
fn alone(client: &Client, path: &str, body: &Value, index: usize) -> (Value, Value) {
    let answer = whole(client, path, body);
    let choice = with(&answer["choices"][0], json!({ "index": index }));
    (choice, answer["usage"].clone())
}

/// Usage without cached tokens, which depend on earlier requests, and without drafts, which depend on time.
fn counted(usage: &Value) -> Value {
    let mut usage = usage.clone();
    let fields = usage.as_object_mut().expect("usage");
    for (details, count) in [
        ("prompt_tokens_details", "cached_tokens"),
        ("completion_tokens_details", "accepted_prediction_tokens"),
    ] {
        let details = fields.remove(details);
        assert!(details.is_some_and(|it| it[count].is_u64()), "{count}");
    }
    usage
}

/// Stream as a client assembles it: text and end of each choice, and the last usage.
#[derive(Debug, Default, PartialEq)]
struct Assembled {
    texts: BTreeMap<u64, String>,
    ends: BTreeMap<u64, String>,
    /// Chunks of each choice, without the request's ids.
    chunks: BTreeMap<u64, Vec<Value>>,
    usage: Value,
}

impl Assembled {
    fn of(events: impl Iterator<Item = String>) -> Self {
        let (mut told, mut done) = (Self::default(), 0);
        for data in events {
            assert_eq!(done, 0, "behind the last line: {data}");
            if data == "[DONE]" {
                done += 1;
                continue;
            }
            let chunk: Value = serde_json::from_str(&data).expect("JSON");
            if chunk["usage"].is_object() {
                assert_eq!(told.usage, Value::Null, "usage is told once");
                assert_eq!(chunk["choices"], json!([]));
                told.usage = counted(&chunk["usage"]);
                continue;
            }
            let choice = &chunk["choices"][0];
            let index = choice["index"].as_u64().expect("an index");
            assert!(!told.ends.contains_key(&index), "behind the end: {chunk}");
            let (delta, text) = (&choice["delta"]["content"], &choice["text"]);
            let text = delta.as_str().or(text.as_str()).unwrap_or_default();
            told.texts.entry(index).or_default().push_str(text);
            told.chunks.entry(index).or_default().push(choice.clone());
            if let Some(end) = choice["finish_reason"].as_str() {
                told.ends.insert(index, end.to_owned());
            }
        }
        assert_eq!(done, 1, "the last line");
        told
    }

    fn assert_says(&self, answer: &Value) {
        let choices = answer["choices"].as_array().expect("choices");
        for (index, choice) in (0..).zip(choices) {
            let (message, text) = (&choice["message"]["content"], &choice["text"]);
            let text = message.as_str().or(text.as_str()).expect("a text");
            assert_eq!(self.texts[&index], text, "choice {index}");
            assert_eq!(self.ends[&index], choice["finish_reason"], "choice {index}");
        }
        assert_eq!(self.texts.len(), choices.len());
        assert_eq!(self.usage, counted(&answer["usage"]));
    }
}

fn streaming(body: &Value) -> Value {
    let options = json!({"include_usage": true});
    with(body, json!({"stream": true, "stream_options": options}))
}

fn streamed(client: &Client, path: &str, body: &Value) -> Assembled {
    let body = streaming(body);
    Assembled::of(client.stream(path, &body).map(|event| event.data))
}

#[test]
fn each_choice_is_the_answer_to_the_next_seed() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    // Choices end at different places, with a text each.
    let body = with(&chat(48), json!({"stop": ["."]}));
    let three = with(&body, json!({"n": 3}));
    let answer = whole(&client, CHAT, &three);
    let singles: Vec<_> = (0..3)
        .map(|k| alone(&client, CHAT, &with(&body, json!({"seed": 7 + k})), k))
        .collect();
    let choices: Vec<_> = singles.iter().map(|(choice, _)| choice.clone()).collect();
    assert_eq!(answer["choices"], json!(choices));
    assert_ne!(choices[0]["message"], choices[1]["message"], "seeds differ");
    let tokens = |name: &str| {
        singles
            .iter()
            .map(|(_, usage)| usage[name].as_u64().expect("a count"))
            .collect::<Vec<_>>()
    };
    let (prompt, completion) = (
        tokens("prompt_tokens")[0],
        tokens("completion_tokens").iter().sum::<u64>(),
    );
    let expected = json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    });
    assert_eq!(counted(&answer["usage"]), expected);
    streamed(&client, CHAT, &three).assert_says(&answer);
    let greedy = whole(&client, CHAT, &with(&three, json!({"temperature": 0})));
    let said = |index: usize| &greedy["choices"][index]["message"];
    assert!(
        said(0) == said(1) && said(1) == said(2),
        "without chance all are equal"
    );
}

#[test]
fn a_batch_of_prompts_is_told_as_each_alone() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = json!({"max_tokens": 24, "temperature": 0.8, "seed": 3, "logprobs": 2});
    let tokens = client.post("/tokenize", &json!({"content": "The capital of France is"}));
    let ids = tokens.json()["tokens"].clone();
    for batch in [
        json!(["Once upon a time", "The river Rhine"]),
        json!([ids, ids]),
        json!(["Once upon a time", ids]),
    ] {
        let many = with(&body, json!({"prompt": batch, "n": 2, "best_of": 2}));
        let answer = whole(&client, COMPLETIONS, &many);
        let places = (0..2).flat_map(|prompt| (0..2).map(move |k| (prompt, k)));
        let singles = places.enumerate().map(|(index, (prompt, k))| {
            let single = json!({"prompt": batch[prompt], "seed": 3 + k});
            alone(&client, COMPLETIONS, &with(&body, single), index)
        });
        let singles: Vec<_> = singles.collect();
        let choices: Vec<_> = singles.iter().map(|(choice, _)| choice.clone()).collect();
        assert_eq!(answer["choices"], json!(choices), "{batch}");
        let prompts = [0, 2].map(|index: usize| singles[index].1["prompt_tokens"].as_u64());
        let prompts: Option<u64> = prompts.into_iter().sum();
        assert_eq!(answer["usage"]["prompt_tokens"].as_u64(), prompts);
        streamed(&client, COMPLETIONS, &many).assert_says(&answer);
    }
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_each_choice_as_it_is() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let long = with(&chat(150), json!({"n": 3, "ignore_eos": true}));
    // Some choices have ended by then.
    let stopped = with(&chat(150), json!({"n": 6, "stop": [",", "."]}));
    for body in [long, stopped] {
        let expected = streamed(&client, CHAT, &body);
        let taken = if body["n"] == 3 { 20 } else { 40 };
        for disturbance in Disturbance::ALL {
            let all = disturbance.of_stream(&worker, CHAT, &streaming(&body), taken);
            assert_eq!(Assembled::of(all.into_iter()), expected, "{disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}

#[test]
fn an_answer_in_one_piece_goes_on_behind_an_upgrade() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = with(&chat(120), json!({"n": 3, "stop": ["."]}));
    let long = with(&body, json!({"stop": null, "ignore_eos": true}));
    let expected = [&body, &long].map(|body| whole(&client, CHAT, body));
    let asking = [body, long].map(|body| {
        let client = client.clone();
        thread::spawn(move || whole(&client, CHAT, &body))
    });
    wait::until("the requests to be with the child", || {
        let running = client.health()["load"]["running"].as_u64()?;
        (running >= 3).then_some(())
    });
    worker.upgrade();
    for (asking, expected) in asking.into_iter().zip(expected) {
        let answer = asking.join().expect("an answer");
        assert_eq!(answer["choices"], expected["choices"]);
        assert_eq!(counted(&answer["usage"]), counted(&expected["usage"]));
    }
}

fn load(worker: &Worker) -> u64 {
    let load = &worker.client().health()["load"];
    let count = |name: &str| load[name].as_u64().expect("a count");
    count("running") + count("waiting")
}

fn wait_for_load(worker: &Worker, requests: u64) {
    wait::until("the load", || (load(worker) == requests).then_some(()));
}

#[test]
fn who_leaves_leaves_all_choices_and_a_cancel_by_id_ends_them() {
    let script = Script::behave().max_running(2).token_interval_ms(20);
    let worker = Worker::scripted(script).start();
    let client = worker.client();
    let body = streaming(&json!({"prompt": "some words", "n": 5, "max_tokens": 2000}));
    let mut stream = client.stream(COMPLETIONS, &body);
    let _ = stream.next().expect("a chunk");
    wait_for_load(&worker, 5);
    stream.disconnect();
    wait_for_load(&worker, 0);

    for name in ["", ".1"] {
        let mut stream = client.stream(COMPLETIONS, &body);
        let first = stream.next().expect("a chunk").json();
        let id = first["id"].as_str().expect("an id");
        let job = json!({"job_id": format!("{id}{name}")});
        assert_eq!(client.post("/cancel", &job).status, 202);
        let last = stream.last().expect("an end").json();
        assert_eq!(last["error"]["code"], "cancelled", "{last}");
        // The other choices are cancelled, too.
        wait_for_load(&worker, 0);
    }
}

#[test]
fn all_choices_are_let_in_or_none() {
    let script = Script::behave().max_running(1).token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--max-queue", 7).start();
    let client = worker.client();
    let body = json!({"prompt": "some words", "max_tokens": 2000});
    // One of the eight slots is reserved for another client.
    let never = client.post(COMPLETIONS, &with(&body, json!({"n": 8})));
    assert_eq!(never.status, 400, "{}", never.text());
    assert_eq!(never.json()["error"]["param"], "n");
    let prompts = vec!["a"; 8];
    let never = client.post(COMPLETIONS, &with(&body, json!({"prompt": prompts})));
    assert_eq!(never.json()["error"]["param"], "prompt");
    let mut stream = client.stream(COMPLETIONS, &streaming(&with(&body, json!({"n": 5}))));
    let _ = stream.next().expect("a chunk");
    wait_for_load(&worker, 5);
    let later = client.post(COMPLETIONS, &with(&body, json!({"n": 3})));
    assert_eq!(later.status, 429, "{}", later.text());
    assert!(later.header("retry-after").is_some());
    let two = with(&body, json!({"n": 2})).to_string();
    let mut second = client.connect().expect("a connection");
    let two = client.request("POST", COMPLETIONS, &[], two.as_bytes());
    second.send(&two).expect("sent");
    // There would be no room if one of the three had been admitted.
    wait_for_load(&worker, 7);
    stream.disconnect();
}

fn rest(client: &Client, id: &str, from: &str, headers: &[(&str, &str)]) -> Streaming {
    let mut connection = client.connect().expect("a connection");
    let path = format!("{CHAT}/{id}{from}");
    connection
        .send(&client.request("GET", &path, headers, &[]))
        .expect("sent");
    connection.read_head().expect("an answer")
}

#[test]
fn the_rest_behind_a_crash_of_the_supervisor_is_told_choice_by_choice() {
    let store = DescriptorStore::default();
    let first = store.of(Worker::shallow()).start();
    // Choices end at different places, some before the crash.
    let body = with(&chat(150), json!({"n": 5, "stop": ["."]}));
    let expected = streamed(&first.client(), CHAT, &body);
    let chunks: usize = expected.chunks.values().map(Vec::len).sum();
    let mut stream = first.client().stream(CHAT, &streaming(&body));
    let events: Vec<String> = stream.by_ref().take(chunks / 2).map(|it| it.data).collect();
    let second = store.succeed(first, Worker::shallow());
    drop(stream);
    let id: Value = serde_json::from_str(&events[0]).expect("JSON");
    let id = id["id"].as_str().expect("an id").to_owned();
    let mut had: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for event in events {
        let chunk: Value = serde_json::from_str(&event).expect("JSON");
        let choice = chunk["choices"][0].clone();
        let index = choice["index"].as_u64().expect("an index");
        had.entry(index).or_default().push(choice);
    }
    // Each begins with its role.
    let place = had.values().map(|chunks| (chunks.len() - 1).to_string());
    let place = place.collect::<Vec<_>>().join(".");
    let client = second.client();
    for (from, headers, field) in [
        ("?from=3", &[][..], "from"),
        ("", &[("Last-Event-ID", "3")][..], "Last-Event-ID"),
    ] {
        let refused = rest(&client, &id, from, headers);
        let refused = refused.into_response().expect("a body");
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(refused.json()["error"]["param"], field);
    }
    let events = EventStream::new(rest(&client, &id, &format!("?from={place}"), &[]));
    let told = events
        .map(|event| event.data)
        .filter(|data| data != "[DONE]");
    let mut usage = Value::Null;
    for data in told {
        let chunk: Value = serde_json::from_str(&data).expect("JSON");
        match chunk["choices"][0]["index"].as_u64() {
            Some(index) => had
                .entry(index)
                .or_default()
                .push(chunk["choices"][0].clone()),
            None => usage = counted(&chunk["usage"]),
        }
    }
    assert_eq!(had, expected.chunks, "from {place}");
    assert_eq!(usage, expected.usage);
}
