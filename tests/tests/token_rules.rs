//! `min_tokens`, `stop_token_ids` and `allowed_token_ids` through the real programs: compared with answers of the same
//! model that are constrained in another way, and with the same bytes under every disturbance.

use serde_json::{Value, json};
use worker_orcd_tests::Worker;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn body(path: &str, extra: &Value) -> Value {
    let mut body = json!({"max_tokens": 12, "temperature": 0});
    let prompt = "The river runs past the old mill and on to the sea. ".repeat(3);
    match path {
        CHAT => body["messages"] = json!([{"role": "user", "content": prompt}]),
        _ => body["prompt"] = json!(prompt),
    }
    for (name, value) in extra.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

/// Answer of one choice: its text, the reason of its end, and the number of its tokens.
#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    finish_reason: String,
    tokens: u64,
}

fn answer(client: &Client, path: &str, extra: &Value) -> Answer {
    let response = client.post(path, &body(path, extra));
    assert_eq!(response.status, 200, "{extra}: {}", response.text());
    let answer = response.json();
    let choice = &answer["choices"][0];
    let text = choice["text"].as_str();
    Answer {
        text: text
            .or(choice["message"]["content"].as_str())
            .expect("a text")
            .to_owned(),
        finish_reason: choice["finish_reason"].as_str().expect("one").to_owned(),
        tokens: answer["usage"]["completion_tokens"].as_u64().expect("one"),
    }
}

fn ids(client: &Client, text: &str) -> Vec<u64> {
    let answer = client.post("/tokenize", &json!({"content": text})).json();
    let ids = answer["tokens"].as_array().expect("ids");
    ids.iter().map(|id| id.as_u64().expect("an id")).collect()
}

/// The end-of-generation token of the model, which its chat template writes too.
fn end(client: &Client) -> u64 {
    let asked = json!({"content": "<|im_end|>", "parse_special": true});
    let answer = client.post("/tokenize", &asked).json();
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(1));
    answer["tokens"][0].as_u64().expect("an id")
}

#[test]
fn an_answer_has_its_least_tokens_and_then_ends() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let end = end(&client).to_string();
    for path in [CHAT, COMPLETIONS] {
        for least in [0, 1, 7] {
            let ended = answer(
                &client,
                path,
                &json!({"min_tokens": least, "logit_bias": {&end: 100}}),
            );
            assert_eq!((ended.tokens, &*ended.finish_reason), (least + 1, "stop"));
            let text = match least {
                0 => String::new(),
                // As if the end were unlikely.
                _ => {
                    let extra = json!({"max_tokens": least, "logit_bias": {&end: -100}});
                    answer(&client, path, &extra).text
                }
            };
            assert_eq!(ended.text, text, "{path}, {least}");
        }
        // The end is masked also where it does not end the answer.
        let goes_on = json!({"min_tokens": 3, "ignore_eos": true, "logit_bias": {&end: 100}});
        let ignored = answer(&client, path, &goes_on);
        assert_eq!((ignored.tokens, &*ignored.finish_reason), (12, "length"));
        assert!(!ignored.text.is_empty(), "{path}");
    }
    // The grammar is complete before.
    let complete = json!({"min_tokens": 12, "structured_outputs": {"choice": ["yes"]}});
    let complete = answer(&client, CHAT, &complete);
    assert_eq!((&*complete.text, &*complete.finish_reason), ("yes", "stop"));
    let longer = json!({
        "min_tokens": 6, "logit_bias": {&end: 100}, "structured_outputs": {"regex": "[ab]*"},
    });
    let longer = answer(&client, CHAT, &longer);
    assert_eq!((longer.tokens, &*longer.finish_reason), (7, "stop"));
}

#[test]
fn a_stop_token_ends_the_answer_and_is_not_in_its_text() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let free = json!({"ignore_eos": true, "logprobs": 0});
    let plain = client.post(COMPLETIONS, &body(COMPLETIONS, &free)).json();
    let tokens = plain["choices"][0]["logprobs"]["tokens"].as_array();
    let tokens: Vec<&str> = tokens.unwrap().iter().filter_map(Value::as_str).collect();
    let is_new = |at: &usize| !tokens[..*at].contains(&tokens[*at]);
    let alone = |at: &usize| ids(&client, tokens[*at]).len() == 1;
    let at = (1..tokens.len()).find(|at| is_new(at) && alone(at));
    let at = at.expect("a token that is another than those before");
    let [stop] = ids(&client, tokens[at])[..] else {
        unreachable!("it is one token")
    };
    for ignores in [false, true] {
        let extra = json!({"stop_token_ids": [stop, 5, stop], "ignore_eos": ignores});
        let stopped = answer(&client, COMPLETIONS, &extra);
        assert_eq!(stopped.text, tokens[..at].concat());
        assert_eq!(
            (stopped.tokens, &*stopped.finish_reason),
            (at as u64 + 1, "stop")
        );
    }
    // Not before the least tokens, where the second likeliest is drawn.
    let late = json!({"stop_token_ids": [stop], "min_tokens": at + 1, "max_tokens": at + 1});
    let late = answer(&client, COMPLETIONS, &late);
    assert_eq!(
        (late.tokens, &*late.finish_reason),
        (at as u64 + 1, "length")
    );
    let text = late.text.strip_prefix(&tokens[..at].concat());
    assert!(text.is_some_and(|it| it != tokens[at]), "{late:?}");
}

#[test]
fn a_stop_string_ends_behind_the_least_tokens() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let whole = json!({"max_tokens": 24, "ignore_eos": true});
    let whole = answer(&client, COMPLETIONS, &whole).text;
    // Strings that are there several times, and some that are not.
    let characters: Vec<char> = whole.chars().collect();
    let pairs = characters.chunks(2).map(|it| it.iter().collect::<String>());
    let stops: Vec<String> = pairs.step_by(5).take(4).chain(["zq".to_owned()]).collect();
    for least in [1, 6, 13] {
        let before = json!({"max_tokens": least, "ignore_eos": true});
        let before = answer(&client, COMPLETIONS, &before).text.len();
        for stop in &stops {
            let extra = json!({
                "max_tokens": 24, "ignore_eos": true, "min_tokens": least, "stop": stop,
            });
            let found = answer(&client, COMPLETIONS, &extra).text;
            let mut places = whole.match_indices(stop.as_str());
            let place = places.find(|(place, _)| place + stop.len() > before);
            let expected = place.map_or(&*whole, |(place, _)| &whole[..place]);
            assert_eq!(found, expected, "{stop:?} behind {least} tokens");
        }
    }
}

#[test]
fn only_allowed_tokens_come() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let allowed: Vec<u64> = (0..500).map(|number| 300 + 7 * number).collect();
    let biases = allowed.iter().map(|id| (id.to_string(), json!(100)));
    let biases: Value = biases.collect::<serde_json::Map<_, _>>().into();
    for path in [CHAT, COMPLETIONS] {
        let masked = answer(&client, path, &json!({"allowed_token_ids": allowed}));
        let biased = answer(&client, path, &json!({"logit_bias": biases}));
        assert_eq!(masked, biased, "{path}");
        assert_eq!(masked.tokens, 12, "{path}");
        // A bias decides among the allowed ones, and allows no other.
        let favoured = json!({
            "allowed_token_ids": allowed, "logit_bias": {"307": 100, "308": 100},
        });
        let favoured = answer(&client, path, &favoured).text;
        let forced = answer(&client, path, &json!({"logit_bias": {"307": 100}})).text;
        assert_eq!(favoured, forced, "{path}");
    }
    let digits: Vec<u64> = "02468"
        .chars()
        .flat_map(|it| ids(&client, &it.to_string()))
        .collect();
    let even = json!({
        "max_tokens": 9, "allowed_token_ids": digits,
        "structured_outputs": {"regex": "[0-9]{9}x*"},
    });
    let even = answer(&client, CHAT, &even);
    assert_eq!(even.text.len(), 9);
    assert!(
        even.text.bytes().all(|it| b"02468".contains(&it)),
        "{even:?}"
    );
    let nothing = json!({"allowed_token_ids": digits, "structured_outputs": {"regex": "[a-z]+"}});
    let refused = client.post(CHAT, &body(CHAT, &nothing));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(
        refused.text().contains("allowed_token_ids"),
        "{}",
        refused.text()
    );
}

#[test]
fn rules_that_are_none_are_refused_by_name() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    for path in [CHAT, COMPLETIONS] {
        for (name, value) in [
            ("min_tokens", json!(13)),
            ("min_tokens", json!(-1)),
            ("stop_token_ids", json!([4_294_967_295_u64])),
            ("stop_token_ids", json!(["a"])),
            ("allowed_token_ids", json!([])),
            ("allowed_token_ids", json!([-1])),
        ] {
            let response = client.post(path, &body(path, &json!({name: value})));
            assert_eq!(response.status, 400, "{path}, {name}: {value}");
            assert!(response.text().contains(name), "{}", response.text());
        }
    }
    worker.assert_serves();
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_rules_as_they_are() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let allowed: Vec<u64> = (0..6000).map(|number| 300 + 7 * number).collect();
    let stop: Vec<u64> = allowed.iter().copied().step_by(20).collect();
    for path in [CHAT, COMPLETIONS] {
        let extra = json!({
            "max_tokens": 200, "temperature": 0.8, "seed": 4, "min_tokens": 60, "stop": ["zqz"],
            "allowed_token_ids": allowed, "stop_token_ids": stop, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let body = body(path, &extra);
        let chunks = |data: Vec<String>| -> Vec<Value> {
            let data = data.iter().filter(|data| *data != "[DONE]");
            let chunks = data.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
            chunks
                .map(|it| json!([it["choices"], it["usage"]["completion_tokens"]]))
                .collect()
        };
        let expected = chunks(client.stream(path, &body).map(|it| it.data).collect());
        let tokens = expected.last().expect("chunks")[1].as_u64();
        assert!(
            tokens.is_some_and(|it| (61..200).contains(&it)),
            "{tokens:?}"
        );
        for disturbance in Disturbance::ALL {
            let found = chunks(disturbance.of_stream(&worker, path, &body, 6));
            assert_eq!(found, expected, "{path}, {disturbance:?}");
        }
    }
    assert!(worker.generation() > Some(1), "no child died");
}
