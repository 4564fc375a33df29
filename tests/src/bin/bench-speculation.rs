//! Decoding with drafts beside decoding without, for texts that repeat their prompt and for texts that do not. Prints one
//! JSON object.
//!
//! Two workers with the same model, one of them with a draft model if one is named, serve the same requests in turns; only
//! one of them serves at a time. The prompts are files of this repository, of which the model writes a copy, and the beginnings of stories. A prompt is in
//! the prefix cache before its request is timed. The benchmark fails if an answer differs.

use anyhow::{Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::{Client, Worker, wait};

#[derive(Debug, Parser)]
struct Options {
    /// Streams at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    streams: Vec<usize>,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 200)]
    tokens: u32,
    /// Times that each request is made of each worker.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Sequences that each of the two workers runs at a time. A card has memory for those of both.
    #[arg(long, default_value_t = 16)]
    max_running: usize,
    /// Draft model of the worker with drafts.
    #[arg(long)]
    draft_model: Option<PathBuf>,
    /// Temperature of all requests.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
}

/// Files to copy.
const FILES: [&str; 4] = [
    include_str!("../../../gpu-child/src/scheduler/drafts.rs"),
    include_str!("../../../gpu-child/src/scheduler/token_rules.rs"),
    include_str!("../../../gpu-child/src/kv_pages/chain.rs"),
    include_str!("../../../gpu-child/src/serve/step_times.rs"),
];

const STORIES: [&str; 4] = [
    "Once upon a time, a lighthouse keeper found a letter in a bottle. It said",
    "The history of the sea begins long before the first sailors. In the beginning",
    "Dear Anna, the train was late again today, and so I had time to think about",
    "A good bread needs four things and a lot of time. The first of them is",
];

const CHARACTERS: usize = 1500;

/// The beginning of a file, and the beginning of its copy.
fn copy_of(file: &str) -> String {
    let first = |characters| file.chars().take(characters).collect::<String>();
    let (code, begin) = (first(CHARACTERS), first(CHARACTERS / 5));
    format!(
        "```rust\n{code}\n```\n\nThe same file again, with one name changed:\n\n```rust\n{begin}"
    )
}

struct Side {
    worker: Worker,
    took: Duration,
    tokens: u64,
}

impl Side {
    fn with(speculation: &str, options: &Options) -> Self {
        let worker = Worker::real()
            .arg("--device", &options.device)
            .arg("--max-running", options.max_running)
            .arg("--speculation", speculation);
        let draft_model = options.draft_model.iter().filter(|_| speculation == "auto");
        let worker = draft_model.fold(worker, |worker, path| {
            worker.arg("--draft-model", path.display())
        });
        Self {
            worker: worker.start(),
            took: Duration::ZERO,
            tokens: 0,
        }
    }

    /// Answers of all bodies at a time.
    fn answers(&self, bodies: &[Value]) -> Vec<String> {
        let client = self.worker.client();
        thread::scope(|scope| {
            let running = bodies
                .iter()
                .map(|body| scope.spawn(|| answer(&client, body)));
            let running: Vec<_> = running.collect();
            let answers = running.into_iter().map(|it| it.join().expect("an answer"));
            answers.collect()
        })
    }

    fn timed(&mut self, bodies: &[Value], tokens: u32) -> Vec<String> {
        let begin = Instant::now();
        let answers = self.answers(bodies);
        self.took += begin.elapsed();
        self.tokens += bodies.len() as u64 * u64::from(tokens);
        answers
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.took.as_secs_f64()
    }
}

fn answer(client: &Client, body: &Value) -> String {
    let answer = client.post("/v1/completions", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.json()["choices"][0]["text"]
        .as_str()
        .map(str::to_owned);
    text.expect("a text")
}

fn drafts(client: &Client) -> [u64; 2] {
    let names = [
        "worker_orcd_draft_tokens_total",
        "worker_orcd_accepted_draft_tokens_total",
    ];
    client.try_metrics(names).expect("the metrics")
}

/// Counters once a heartbeat has reported the last step.
fn settled_drafts(client: &Client) -> [u64; 2] {
    let mut before = drafts(client);
    wait::until("the last heartbeat", || {
        thread::sleep(Duration::from_millis(600));
        let now = drafts(client);
        (std::mem::replace(&mut before, now) == now).then_some(now)
    })
}

fn main() -> Result<()> {
    let options = Options::parse();
    let most = options.streams.iter().max().copied().unwrap_or_default();
    ensure!(
        most <= options.max_running,
        "--streams {most} needs --max-running {most}, which is {}",
        options.max_running
    );
    let copies = FILES.map(copy_of).to_vec();
    let stories = STORIES.map(str::to_owned).to_vec();
    let mut rows = Vec::new();
    for (name, prompts) in [("copies", copies), ("stories", stories)] {
        for &streams in &options.streams {
            rows.push(measure(name, &prompts, streams, &options)?);
        }
    }
    println!(
        "{}",
        json!({"bench": "speculation", "tokens": options.tokens, "decoding": rows})
    );
    Ok(())
}

fn measure(name: &str, prompts: &[String], streams: usize, options: &Options) -> Result<Value> {
    let mut sides = ["off", "auto"].map(|source| Side::with(source, options));
    for _ in 0..options.rounds {
        for first in 0..prompts.len() {
            let bodies = |tokens: u32| {
                let prompts = prompts.iter().cycle().skip(first).take(streams);
                let body = |prompt| {
                    json!({
                        "prompt": prompt, "max_tokens": tokens, "ignore_eos": true,
                        "temperature": options.temperature, "seed": 1,
                    })
                };
                prompts.map(body).collect::<Vec<_>>()
            };
            let [off, on] = sides.each_mut().map(|side| {
                side.answers(&bodies(1));
                side.timed(&bodies(options.tokens), options.tokens)
            });
            ensure!(off == on, "answers differ: {off:?} and {on:?}");
        }
    }
    let [offered, accepted] = settled_drafts(&sides[1].worker.client());
    let [off, on] = sides.each_ref().map(Side::tokens_per_second);
    Ok(json!({
        "texts": name,
        "streams": streams,
        "without, tok/s": (off * 10.0).round() / 10.0,
        "with, tok/s": (on * 10.0).round() / 10.0,
        "ratio": (on / off * 100.0).round() / 100.0,
        "drafts per token": (offered as f64 / sides[1].tokens as f64 * 100.0).round() / 100.0,
        "accepted per token": (accepted as f64 / sides[1].tokens as f64 * 100.0).round() / 100.0,
    }))
}
