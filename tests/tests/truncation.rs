//! `truncate_prompt_tokens` through the real programs: an answer is that of the last tokens of its prompt.

use serde_json::{Value, json};
use worker_orcd_tests::Worker;
use worker_orcd_tests::client::Client;
use worker_orcd_tests::disturbed::Disturbance;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn text() -> String {
    "The river runs past the old mill and on to the sea. ".repeat(8)
}

fn messages() -> Value {
    json!([{"role": "user", "content": text()}])
}

/// Prompt as `/tokenize` has it.
fn ids(client: &Client, asked: &Value) -> Vec<Value> {
    let answer = client.post("/tokenize", asked).json();
    answer["tokens"].as_array().expect("ids").clone()
}

/// Texts of the choices, and the number of prompt tokens.
fn answer(client: &Client, path: &str, extra: &Value) -> (Vec<String>, u64) {
    let mut body = json!({"max_tokens": 8, "temperature": 0, "ignore_eos": true});
    for (name, value) in extra.as_object().expect("fields") {
        body[name] = value.clone();
    }
    let response = client.post(path, &body);
    assert_eq!(response.status, 200, "{extra}: {}", response.text());
    let answer = response.json();
    let text = |choice: &Value| {
        let text = choice["text"].as_str();
        let text = text.or(choice["message"]["content"].as_str());
        text.expect("a text").to_owned()
    };
    let choices = answer["choices"].as_array().expect("choices");
    let tokens = answer["usage"]["prompt_tokens"].as_u64();
    (choices.iter().map(text).collect(), tokens.expect("usage"))
}

#[test]
fn an_answer_is_that_of_the_last_tokens() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let whole = ids(&client, &json!({"prompt": text()}));
    let chat = ids(&client, &json!({"messages": messages()}));
    for kept in [1, 3, 30, whole.len() - 1, whole.len(), whole.len() + 7] {
        let last = |ids: &[Value]| ids[ids.len().saturating_sub(kept)..].to_vec();
        let expected = answer(&client, COMPLETIONS, &json!({"prompt": last(&whole)}));
        assert_eq!(expected.1, kept.min(whole.len()) as u64);
        for side in [json!(null), json!("left")] {
            let asked = json!({
                "prompt": text(), "truncate_prompt_tokens": kept, "truncation_side": side,
            });
            assert_eq!(answer(&client, COMPLETIONS, &asked), expected, "{kept}");
        }
        let ends = answer(&client, COMPLETIONS, &json!({"prompt": last(&chat)}));
        let asked = json!({"messages": messages(), "truncate_prompt_tokens": kept});
        assert_eq!(answer(&client, CHAT, &asked), ends, "{kept}");
    }
    // Each prompt of a list.
    let (mut texts, one) = answer(
        &client,
        COMPLETIONS,
        &json!({"prompt": &whole[whole.len() - 5..]}),
    );
    let (short, two) = answer(&client, COMPLETIONS, &json!({"prompt": &whole[..2]}));
    texts.extend(short);
    let asked = json!({"prompt": [whole, &whole[..2]], "truncate_prompt_tokens": 5});
    assert_eq!(answer(&client, COMPLETIONS, &asked), (texts, one + two));
    // The echo is of the tokens that are left.
    let asked =
        json!({"prompt": text(), "truncate_prompt_tokens": 4, "echo": true, "max_tokens": 0});
    let (echo, _) = answer(&client, COMPLETIONS, &asked);
    assert!(text().ends_with(&echo[0]) && echo[0].len() < 30, "{echo:?}");
}

#[test]
fn a_prompt_that_is_too_long_is_cut_where_asked_for_and_a_wrong_number_refused() {
    let worker = Worker::shallow().arg("--max-context", 64).start();
    let client = worker.client();
    for (max_tokens, kept) in [(8, 56), (1, 63), (1000, 63)] {
        let asked = json!({
            "messages": messages(), "max_tokens": max_tokens, "truncate_prompt_tokens": -1,
        });
        assert_eq!(answer(&client, CHAT, &asked).1, kept, "{max_tokens}");
    }
    for (field, wrong) in [
        (
            "truncate_prompt_tokens",
            json!({"truncate_prompt_tokens": 0}),
        ),
        (
            "truncate_prompt_tokens",
            json!({"truncate_prompt_tokens": 65}),
        ),
        (
            "truncate_prompt_tokens",
            json!({"truncate_prompt_tokens": -2}),
        ),
        ("truncation_side", json!({"truncation_side": "right"})),
        // No token is left for the answer.
        (
            "context",
            json!({"prompt": text(), "truncate_prompt_tokens": 64}),
        ),
    ] {
        let mut body = json!({"prompt": "a"});
        for (name, value) in wrong.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let response = client.post(COMPLETIONS, &body);
        assert_eq!(response.status, 400, "{body}");
        assert!(response.text().contains(field), "{}", response.text());
    }
    worker.assert_serves();
}

#[test]
fn a_killed_child_and_a_replaced_supervisor_leave_the_prompt_as_it_was_cut() {
    let worker = Worker::shallow().start();
    let client = worker.client();
    let body = json!({
        "prompt": text(), "truncate_prompt_tokens": 21, "max_tokens": 100, "temperature": 0.8,
        "seed": 4, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
    });
    let chunks = |data: Vec<String>| -> Vec<Value> {
        let data = data.iter().filter(|data| *data != "[DONE]");
        let chunks = data.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
        chunks
            .map(|it| json!([it["choices"], it["usage"]["prompt_tokens"]]))
            .collect()
    };
    let expected = chunks(
        client
            .stream(COMPLETIONS, &body)
            .map(|it| it.data)
            .collect(),
    );
    assert_eq!(expected.last().expect("chunks")[1], 21);
    for disturbance in Disturbance::ALL {
        let found = chunks(disturbance.of_stream(&worker, COMPLETIONS, &body, 6));
        assert_eq!(found, expected, "{disturbance:?}");
    }
    assert!(worker.generation() > Some(1), "no child died");
}
