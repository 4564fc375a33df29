//! A long prompt beside a stream: it is computed a few tokens at a time, and the stream gets a token with
//! each of them. How many is seen in what the child counts, not in seconds.

use serde_json::{Value, json};
use worker_orcd_tests::client::Client;
use worker_orcd_tests::worker::{WorkerBuilder, unique};
use worker_orcd_tests::{Worker, wait};

/// Of a step in which decoding alone takes all of the budget.
const FEWEST: u64 = 16;

/// Tokens of the stream: more than there are steps with the prompt.
const STREAM_TOKENS: u32 = 300;

fn worker() -> WorkerBuilder {
    // What is asked twice is computed twice.
    Worker::real().flag("--no-prefix-cache")
}

fn stream() -> Value {
    json!({
        "job_id": format!("stream-{}", unique()), "max_tokens": STREAM_TOKENS, "temperature": 0.0,
        "prompt": "The lighthouse keeper counted the ships", "ignore_eos": true,
    })
}

/// Of about 500 tokens.
fn long() -> Value {
    json!({
        "job_id": format!("long-{}", unique()), "max_tokens": 1, "temperature": 0.0,
        "prompt": "The history of numbers is a long one. ".repeat(55),
    })
}

/// What was seen of a long prompt beside a stream.
#[derive(Debug)]
struct Seen {
    prompt_tokens: u64,
    /// Steps that had tokens of the prompt and one for the stream, and how many tokens of the prompt.
    mixed_steps: u64,
    mixed_prompt_tokens: u64,
    /// Tokens of the stream meanwhile.
    stream_tokens: u64,
    texts: [String; 2],
}

fn mixed(client: &Client) -> [u64; 2] {
    let metric = |name| client.try_metric(name).expect("a metric");
    let steps = metric("worker_orcd_mixed_steps_total");
    [steps, metric("worker_orcd_mixed_prompt_tokens_total")]
}

fn generated(client: &Client) -> u64 {
    let name = "worker_orcd_generated_tokens_total";
    client.try_metric(name).expect("a metric")
}

/// The prompt comes when the stream has begun, and is answered before the stream ends.
fn long_prompt_beside_a_stream(client: &Client) -> Seen {
    let before = mixed(client);
    let mut running = client.execute(&stream());
    let first = running.wait_for("token").json()["t"].clone();
    let asked = generated(client);
    let long = client.execute(&long()).transcript();
    let stream_tokens = generated(client) - asked - 1;
    let prompt_tokens = long.end()["tokens_in"].as_u64().expect("a number");
    // The child's word comes with its next heartbeat.
    let [mixed_steps, mixed_prompt_tokens] = wait::until("all of the prompt to be counted", || {
        let now = mixed(client);
        let more = [now[0] - before[0], now[1] - before[1]];
        (more[1] >= prompt_tokens).then_some(more)
    });
    let rest = running.transcript();
    assert_eq!(rest.last().json()["tokens_out"], STREAM_TOKENS);
    let text = first.as_str().expect("a text").to_owned() + &rest.text();
    Seen {
        prompt_tokens,
        mixed_steps,
        mixed_prompt_tokens,
        stream_tokens,
        texts: [text, long.text()],
    }
}

#[test]
fn a_stream_gets_a_token_with_each_part_of_a_long_prompt_and_the_parts_are_as_the_budget_says() {
    let short = worker().arg("--step-budget", "0.1ms").start();
    let client = short.client();
    assert_eq!(client.health()["load"]["step_budget_ms"], 0.1);
    let calm = client.execute(&long()).transcript().text();
    assert_eq!(mixed(&client), [0, 0], "nobody else was there");
    let few = long_prompt_beside_a_stream(&client);
    assert_eq!(few.mixed_prompt_tokens, few.prompt_tokens, "{few:?}");
    assert_eq!(
        few.mixed_steps,
        few.prompt_tokens.div_ceil(FEWEST),
        "{few:?}"
    );
    assert!(few.stream_tokens >= few.mixed_steps, "{few:?}");

    let generous = worker().arg("--step-budget", "1s").start();
    let many = long_prompt_beside_a_stream(&generous.client());
    assert_eq!(many.mixed_prompt_tokens, many.prompt_tokens, "{many:?}");
    assert!(many.mixed_steps < few.mixed_steps / 2, "{many:?}, {few:?}");

    assert_eq!(few.texts, many.texts, "the same bytes in whatever parts");
    assert_eq!(few.texts[1], calm);
}

#[test]
fn without_a_budget_of_the_operators_it_is_known_once_something_has_decoded() {
    let worker = worker().start();
    let client = worker.client();
    let budget = || client.health()["load"]["step_budget_ms"].clone();
    assert_eq!(budget(), Value::Null);
    long_prompt_beside_a_stream(&client);
    let ms = wait::until("a word of the budget", || budget().as_f64());
    assert!((2.0..=70.0).contains(&ms), "{ms} ms");
}
