//! Decoding with drafts beside decoding without, for texts that repeat their prompt and for texts that do not. Prints one
//! JSON object.
//!
//! Two workers with the same model, one of them with a draft model if one is named, serve the same requests in turns; only
//! one of them serves at a time. Each stream makes a request when its previous one ends, four in a round. The prompts are files of this repository, of which the model writes a copy, and the beginnings of stories. A prompt is in
//! the prefix cache before its request is timed. The benchmark fails if an answer differs.
//!
//! With `--beside N` it also measures the gaps between tokens of N stories without drafts beside four copies with them.

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use std::iter;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::{Burst, Latencies};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Worker, wait};

#[derive(Debug, Parser)]
struct Options {
    /// Streams at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    streams: Vec<usize>,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Texts::Copies, Texts::Stories])]
    texts: Vec<Texts>,
    /// Streams without drafts beside four with drafts.
    #[arg(long)]
    beside: Option<usize>,
    /// Tokens of an answer, on average.
    #[arg(long, default_value_t = 200)]
    tokens: u32,
    /// Rounds of each worker, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Sequences that each of the two workers runs at a time. A card has memory for those of both.
    #[arg(long, default_value_t = 16)]
    max_running: usize,
    /// Tokens of a prompt and its answer, of each worker.
    #[arg(long)]
    max_context: Option<usize>,
    /// Draft model of the worker with drafts.
    #[arg(long)]
    draft_model: Option<PathBuf>,
    /// Temperature of all requests.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
}

/// What the model writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Texts {
    Copies,
    Stories,
}

impl Texts {
    fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Stories => "stories",
        }
    }

    fn prompts(self) -> Vec<String> {
        match self {
            Self::Copies => FILES.map(copy_of).to_vec(),
            Self::Stories => STORIES.map(str::to_owned).to_vec(),
        }
    }
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

impl Options {
    fn body(&self, prompt: &str, tokens: u32) -> Value {
        json!({
            "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": self.temperature, "seed": 1,
        })
    }
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
        let worker = options
            .max_context
            .iter()
            .fold(worker, |worker, tokens| worker.arg("--max-context", tokens));
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

    /// Answers to all bodies, so many at a time.
    fn answers(&self, bodies: &[Value], streams: usize) -> Vec<String> {
        let client = self.worker.client();
        let next = AtomicUsize::new(0);
        let in_turn = || {
            let indices = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            let bodies = indices.map_while(|index| Some((index, bodies.get(index)?)));
            let answers = bodies.map(|(index, body)| (index, answer(&client, body)));
            answers.collect::<Vec<_>>()
        };
        let mut answers = thread::scope(|scope| {
            let clients: Vec<_> = (0..streams).map(|_| scope.spawn(in_turn)).collect();
            let answers = clients
                .into_iter()
                .flat_map(|it| it.join().expect("answers"));
            answers.collect::<Vec<_>>()
        });
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, text)| text).collect()
    }

    fn timed(&mut self, bodies: &[Value], streams: usize) -> Vec<String> {
        let begin = Instant::now();
        let answers = self.answers(bodies, streams);
        self.took += begin.elapsed();
        let tokens = bodies.iter().filter_map(|it| it["max_tokens"].as_u64());
        self.tokens += tokens.sum::<u64>();
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
    let mut sides = ["off", "auto"].map(|source| Side::with(source, &options));
    let mut rows = Vec::new();
    for &texts in &options.texts {
        for &streams in &options.streams {
            rows.push(measure(&mut sides, texts, streams, &options)?);
        }
    }
    let beside = options.beside;
    let beside = beside.map(|streams| beside_copies(&sides, streams, &options));
    println!(
        "{}",
        json!({
            "bench": "speculation", "tokens": options.tokens, "decoding": rows,
            "beside": beside.transpose()?,
        })
    );
    Ok(())
}

fn measure(sides: &mut [Side], texts: Texts, streams: usize, options: &Options) -> Result<Value> {
    let prompts = texts.prompts();
    for side in &mut *sides {
        (side.took, side.tokens) = (Duration::ZERO, 0);
    }
    let before = settled_drafts(&sides[1].worker.client());
    let warming: Vec<_> = prompts.iter().map(|it| options.body(it, 1)).collect();
    let requests = prompts.iter().cycle().take(prompts.len() * streams);
    let requests = requests.enumerate().map(|(index, prompt)| {
        // Streams that all end at the same step would begin together again.
        let part = 3 + (index * index) as u32 % 5;
        options.body(prompt, options.tokens * part / 5)
    });
    let requests: Vec<_> = requests.collect();
    for _ in 0..options.rounds {
        let mut answers = sides.iter_mut().map(|side| {
            side.answers(&warming, 1);
            side.timed(&requests, streams)
        });
        let (off, on) = (answers.next(), answers.next());
        ensure!(off == on, "answers differ: {off:?} and {on:?}");
    }
    let after = settled_drafts(&sides[1].worker.client());
    let of_tokens = |at: usize| (after[at] - before[at]) as f64 / sides[1].tokens as f64;
    let [off, on] = [0, 1].map(|at| sides[at].tokens_per_second());
    Ok(json!({
        "texts": texts.name(),
        "streams": streams,
        "without, tok/s": (off * 10.0).round() / 10.0,
        "with, tok/s": (on * 10.0).round() / 10.0,
        "ratio": rounded(on / off),
        "drafts per token": rounded(of_tokens(0)),
        "accepted per token": rounded(of_tokens(1)),
    }))
}

/// Gaps between tokens of stories without drafts, beside copies that have drafts on the second side.
fn beside_copies(sides: &[Side], streams: usize, options: &Options) -> Result<Value> {
    let copies = Texts::Copies.prompts();
    let stories = Texts::Stories.prompts();
    let requests = |tokens: u32| {
        let copies = copies.iter().map(|prompt| (prompt, true));
        let stories = stories.iter().cycle().take(streams);
        let all = copies.chain(stories.map(|prompt| (prompt, false)));
        let requests = all.map(|(prompt, has_drafts)| {
            let (mut body, named) = (options.body(prompt, tokens), request(prompt, tokens));
            body["job_id"] = named["job_id"].clone();
            body["speculation"] = json!(has_drafts);
            body
        });
        requests.collect::<Vec<_>>()
    };
    let mut gaps = [Latencies::default(), Latencies::default()];
    for _ in 0..options.rounds {
        for (side, gaps) in sides.iter().zip(&mut gaps) {
            let address = side.worker.client().address;
            Burst::run(address, &requests(1))?;
            let mut burst = Burst::run(address, &requests(options.tokens))?;
            burst.streams.drain(..copies.len());
            let found = burst.gaps().context("no time at which all streams ran")?;
            found.each(|gap| gaps.push(gap));
        }
    }
    let [off, on] = gaps;
    let p99 = |gaps: &Latencies| gaps.quantile(0.99).as_secs_f64();
    Ok(json!({
        "streams": streams, "copies": copies.len(),
        "gaps without": off.summary(), "gaps with": on.summary(),
        "ratio of p99": rounded(p99(&on) / p99(&off)),
    }))
}

fn rounded(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}
