//! Stream of any API across the death of its child, and an upgrade or the death of its supervisor: the client receives
//! the same events.

use serde_json::{Value, json};
use worker_orcd_tests::client::{Client, EventStream};
use worker_orcd_tests::descriptor_store::DescriptorStore;
use worker_orcd_tests::streamed_answer::Answer;
use worker_orcd_tests::{Script, Worker, WorkerBuilder};

const EXECUTE: &str = "/execute";
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// Template with tools that renders only contents and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<tool_call><think>{% endif %}\
                      {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

/// The scripted model repeats its prompt.
const ANSWER: &str = "<think>\nTwo of \"them\".\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                      {\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
                      \"arguments\": {}}\n</tool_call>";

/// Path, body, and number of events before the disturbance.
type Case = (&'static str, Value, usize);

/// Job ids that need encoding in a path, and one that ends like its path.
const JOBS: &[&str] = &[
    "execute",
    "a b/c",
    "?from=1",
    "%2F",
    "\u{fc}#\u{1f980}",
    "//",
    "..",
];

fn jobs(max_tokens: u32) -> Vec<Case> {
    let job = |(seed, id): (usize, &&str)| {
        let body = json!({
            "job_id": id, "prompt": "Once upon a time", "max_tokens": max_tokens, "seed": seed,
            "ignore_eos": true, "metrics": false,
        });
        (EXECUTE, body, 3 + seed)
    };
    JOBS.iter().enumerate().map(job).collect()
}

/// Tool calls and reasoning, in each API that has them.
fn tools() -> Vec<Case> {
    let schema = json!({"type": "object", "properties": {}});
    let function = json!({"name": "add", "parameters": schema});
    let chat = json!({
        "messages": [{"role": "user", "content": ANSWER}], "max_tokens": 2000, "stream": true,
        "tools": [{"type": "function", "function": function}],
        "stream_options": {"include_usage": true},
    });
    let messages = json!({
        "messages": [{"role": "user", "content": ANSWER}], "max_tokens": 2000, "stream": true,
        "tools": [{"name": "add", "input_schema": schema}],
    });
    let responses = json!({
        "input": ANSWER, "max_output_tokens": 2000, "stream": true,
        "tools": [{"type": "function", "name": "add", "parameters": schema}],
    });
    let mut cases = Vec::new();
    for events in [2, 14, 40] {
        cases.push((CHAT, chat.clone(), events));
        cases.push((MESSAGES, messages.clone(), events));
        cases.push((RESPONSES, responses.clone(), events));
    }
    cases
}

/// Features of a real model: sampling, log probabilities, formats, several choices.
fn drawn() -> Vec<Case> {
    let with = |extra: Value| {
        let mut body = json!({
            "max_tokens": 60, "temperature": 0.9, "seed": 7, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let extra = extra.as_object().expect("fields").clone();
        body.as_object_mut().expect("fields").extend(extra);
        body
    };
    let turns = json!([{"role": "user", "content": "Name a river, and tell a story of it."}]);
    let turns = |extra: Value| {
        let mut body = with(extra);
        body["messages"] = turns.clone();
        body
    };
    let words = json!({"regex": "([a-z]{2,7} ){9}end"});
    let two = json!(["Once upon a time", "The river Rhine"]);
    vec![
        (CHAT, turns(json!({"stop": ["zzz"]})), 9),
        (CHAT, turns(json!({"logprobs": true, "top_logprobs": 3})), 9),
        (CHAT, turns(json!({"structured_outputs": words})), 9),
        (
            CHAT,
            turns(json!({"n": 3, "logprobs": true, "stop": ["."]})),
            30,
        ),
        (COMPLETIONS, with(json!({"prompt": "Once upon a time"})), 9),
        (
            COMPLETIONS,
            with(json!({"prompt": "Once", "logprobs": 2})),
            9,
        ),
        (COMPLETIONS, with(json!({"prompt": two, "n": 2})), 30),
        (
            RESPONSES,
            json!({"input": "Tell a story.", "max_output_tokens": 60, "stream": true, "temperature": 0}),
            9,
        ),
        (
            MESSAGES,
            json!({
                "messages": [
                    {"role": "user", "content": "Tell a story."},
                    {"role": "assistant", "content": "In a forest"},
                ],
                "max_tokens": 60, "stream": true, "seed": 3,
            }),
            9,
        ),
    ]
}

fn scripted() -> WorkerBuilder {
    let script = Script::behave().chat_template(HERMES.to_owned());
    Worker::scripted(script.token_interval_ms(15))
}

fn whole(client: &Client, cases: &[Case]) -> Vec<Vec<Value>> {
    let whole = cases
        .iter()
        .map(|(path, body, _)| Answer::whole(client, path, body));
    whole.collect()
}

fn begin(client: &Client, cases: &[Case]) -> Vec<(Answer, EventStream)> {
    let begin = |(path, body, events): &Case| Answer::begin(client, path, body, *events);
    cases.iter().map(begin).collect()
}

fn assert_told(cases: &[Case], expected: &[Vec<Value>], told: Vec<(Answer, EventStream)>) {
    for ((case, expected), (mut answer, stream)) in cases.iter().zip(expected).zip(told) {
        answer.extend(stream);
        assert_eq!(&answer.normalized(), expected, "{case:?}");
    }
}

/// Connected clients receive the same events after a child's death and two upgrades. So do clients that reconnect after
/// a crash of the supervisor, also when their supervisor is upgraded.
fn whatever_happens_each_is_told_the_same(worker: impl Fn() -> WorkerBuilder, cases: &[Case]) {
    let store = DescriptorStore::default();
    let first = store.of(worker()).start();
    let client = first.client();
    let expected = whole(&client, cases);
    let told = begin(&client, cases);
    first.kill_child();
    assert_told(cases, &expected, told);
    let told = begin(&client, cases);
    first.upgrade();
    first.upgrade();
    assert_told(cases, &expected, told);

    let told = begin(&client, cases);
    let second = store.succeed(first, worker());
    let client = second.client();
    let mut back = Vec::new();
    for (mut answer, lost) in told {
        drop(lost);
        let rest = answer.ask_for_rest(&client);
        back.push((answer, rest));
    }
    second.upgrade();
    second.upgrade();
    assert_told(cases, &expected, back);
}

#[test]
fn jobs_of_any_name() {
    whatever_happens_each_is_told_the_same(scripted, &jobs(150));
}

#[test]
fn calls_and_thoughts() {
    whatever_happens_each_is_told_the_same(scripted, &tools());
}

#[test]
fn what_a_real_model_draws() {
    whatever_happens_each_is_told_the_same(Worker::shallow, &drawn());
}

/// Parts of a completed answer stay in the log for a while. A new request after an upgrade must not include them.
#[test]
fn what_is_asked_behind_an_upgrade_is_not_taken_for_what_was_asked_before() {
    let worker = scripted().start();
    let client = worker.client();
    let three = json!({"prompt": ["One", "Two", "Three"], "max_tokens": 4, "stream": true});
    assert!(!Answer::whole(&client, COMPLETIONS, &three).is_empty());
    let cases = jobs(40);
    let expected = whole(&client, &cases);
    worker.upgrade();
    let told = begin(&client, &cases);
    worker.upgrade();
    assert_told(&cases, &expected, told);
}
