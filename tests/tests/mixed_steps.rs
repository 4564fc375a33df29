//! Long prompt beside a stream: each step has a few tokens of the prompt and one of the stream. The child's counters
//! show how many, not durations.

use serde_json::{Value, json};
use worker_orcd_tests::client::Client;
use worker_orcd_tests::worker::{WorkerBuilder, unique};
use worker_orcd_tests::{Worker, wait};

/// Prompt tokens of a step in which decoding alone uses the whole budget.
const FEWEST: u64 = 16;

/// Limit of steps with counted prompts and pending draws.
const IN_FLIGHT: u64 = 2;

/// Tokens of the stream: more than there are steps with the prompt.
const STREAM_TOKENS: u32 = 300;

fn worker() -> WorkerBuilder {
    // A repeated prompt is computed again.
    Worker::shallow().flag("--no-prefix-cache")
}

fn stream() -> Value {
    json!({
        "job_id": format!("stream-{}", unique()), "max_tokens": STREAM_TOKENS, "temperature": 0.0,
        "prompt": "The lighthouse keeper counted the ships", "ignore_eos": true,
    })
}

/// Prompt of about 500 tokens.
fn long() -> Value {
    json!({
        "job_id": format!("long-{}", unique()), "max_tokens": 1, "temperature": 0.0,
        "prompt": "The history of numbers is a long one. ".repeat(55),
    })
}

/// Observation of a long prompt beside a stream.
#[derive(Debug)]
struct Seen {
    prompt_tokens: u64,
    /// Steps with tokens of the prompt and one of the stream, and their number of prompt tokens.
    mixed_steps: u64,
    mixed_prompt_tokens: u64,
    /// Tokens of the stream until then.
    stream_tokens: u64,
    texts: [String; 2],
}

/// Counters of a child, from its last heartbeat.
struct Counted {
    mixed_steps: u64,
    mixed_prompt_tokens: u64,
    generated: u64,
}

impl Counted {
    fn now(client: &Client) -> Self {
        let metrics = client.try_metrics([
            "worker_orcd_mixed_steps_total",
            "worker_orcd_mixed_prompt_tokens_total",
            "worker_orcd_generated_tokens_total",
        ]);
        let [mixed_steps, mixed_prompt_tokens, generated] = metrics.expect("the metrics");
        Self {
            mixed_steps,
            mixed_prompt_tokens,
            generated,
        }
    }

    fn since(self, before: &Self) -> Self {
        Self {
            mixed_steps: self.mixed_steps - before.mixed_steps,
            mixed_prompt_tokens: self.mixed_prompt_tokens - before.mixed_prompt_tokens,
            generated: self.generated - before.generated,
        }
    }
}

/// Sends the prompt after the stream has begun; it is answered before the stream ends.
fn long_prompt_beside_a_stream(client: &Client) -> Seen {
    let mut running = client.execute(&stream());
    let first = running.wait_for("token").json()["t"].clone();
    let before = Counted::now(client);
    let long = client.execute(&long()).transcript();
    let prompt_tokens = long.end()["tokens_in"].as_u64().expect("a number");
    let seen = wait::until("all of the prompt to be counted", || {
        let more = Counted::now(client).since(&before);
        (more.mixed_prompt_tokens >= prompt_tokens).then_some(more)
    });
    let rest = running.transcript();
    assert_eq!(rest.last().json()["tokens_out"], STREAM_TOKENS);
    let text = first.as_str().expect("a text").to_owned() + &rest.text();
    Seen {
        prompt_tokens,
        mixed_steps: seen.mixed_steps,
        mixed_prompt_tokens: seen.mixed_prompt_tokens,
        stream_tokens: seen.generated,
        texts: [text, long.text()],
    }
}

#[test]
fn a_stream_gets_a_token_with_each_part_of_a_long_prompt_and_the_parts_are_as_the_budget_says() {
    let short = worker().arg("--step-budget", "0.1ms").start();
    let client = short.client();
    assert_eq!(client.health()["load"]["step_budget_ms"], 0.1);
    let calm = client.execute(&long()).transcript().text();
    let nobody_else_was_there = Counted::now(&client);
    assert_eq!(nobody_else_was_there.mixed_steps, 0);
    let few = long_prompt_beside_a_stream(&client);
    assert_eq!(few.mixed_prompt_tokens, few.prompt_tokens, "{few:?}");
    assert_eq!(
        few.mixed_steps,
        few.prompt_tokens.div_ceil(FEWEST),
        "{few:?}"
    );
    assert!(few.stream_tokens + IN_FLIGHT >= few.mixed_steps, "{few:?}");

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
