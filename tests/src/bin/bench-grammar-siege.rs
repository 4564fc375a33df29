//! Streams beside hostile grammars on the CPU device: gaps between tokens, latency and kind of each response to a
//! grammar, and memory of all processes. Prints one JSON object.

use anyhow::{Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::Latencies;
use worker_orcd_tests::bench::siege::{Outcome, Peaks, Streams, send};
use worker_orcd_tests::hostile_grammars::siege;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Worker};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 32)]
    streams: usize,
    #[arg(long, default_value_t = 1000)]
    grammars: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests with a grammar that wait for an answer at the same time.
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Windows in which they are sent; before, between and behind them are as many without.
    #[arg(long, default_value_t = 20)]
    windows: usize,
    /// Tokens of an answer under a grammar, at most.
    #[arg(long, default_value_t = 8)]
    tokens: u32,
    /// Flags of the worker, such as `--worker-flag=--threads=2`.
    #[arg(long)]
    worker_flag: Vec<String>,
}

/// 2 s: limit for each response.
const SOON: Duration = Duration::from_secs(2);

/// 60 s: timeout of a client.
const PATIENCE: Duration = Duration::from_secs(60);

/// 500 ms between the last response of a window and the next measurement.
const PAUSE: Duration = Duration::from_millis(500);

/// Length of the first window; the others are as long as the window before.
const FIRST: Duration = Duration::from_secs(3);

/// Slots beyond those of the streams, for the accepted grammars.
const MORE_RUNNING: usize = 8;

const CONTEXT: u32 = 2048;

fn main() -> Result<()> {
    let options = Options::parse();
    let mut worker = Worker::real()
        .arg("--max-running", options.streams + MORE_RUNNING)
        .arg("--max-context", CONTEXT);
    for flag in &options.worker_flag {
        worker = worker.flag(flag);
    }
    let worker = worker.start();
    let streams = Streams::default();
    let body = || {
        let mut body = request("The history of the Roman Empire began when", CONTEXT - 100);
        body["ignore_eos"] = json!(true);
        body
    };
    let address = worker.client().address;
    let result = thread::scope(|scope| {
        let read = scope.spawn(|| {
            let read = streams.run(address, options.streams, body);
            streams.end();
            read
        });
        streams.wait_begun(options.streams);
        let result = measure(&worker, &streams, &options);
        streams.end();
        read.join().expect("no reader panics")?;
        result
    })?;
    ensure!(worker.generation() == Some(1), "a child died");
    println!("{result}");
    Ok(())
}

/// Measurements of one side.
#[derive(Default)]
struct Side {
    gaps: Vec<Latencies>,
    peaks: Peaks,
}

impl Side {
    /// Measures while `work` runs.
    fn measure<T>(
        &mut self,
        worker: &Worker,
        streams: &Streams,
        work: impl FnOnce() -> T,
    ) -> (T, Duration) {
        let over = AtomicBool::new(false);
        let supervisor = worker.pid();
        let (done, window, peaks) = thread::scope(|scope| {
            let look = scope.spawn(|| Peaks::while_not(&over, supervisor));
            let from = Instant::now();
            let done = work();
            let window = (from, Instant::now());
            over.store(true, Ordering::Relaxed);
            (done, window, look.join().expect("nobody panics"))
        });
        self.peaks = self.peaks.or(peaks);
        self.gaps.push(streams.within(window));
        (done, window.1 - window.0)
    }

    fn all(&self) -> Latencies {
        let mut all = Latencies::default();
        self.gaps
            .iter()
            .for_each(|gaps| gaps.each(|gap| all.push(gap)));
        all
    }
}

fn measure(worker: &Worker, streams: &Streams, options: &Options) -> Result<Value> {
    let hostile: Vec<_> = siege(options.seed, options.grammars)
        .into_iter()
        .map(|one| (one.family, bytes(one.fields, options)))
        .collect();
    let mut client: Client = worker.client();
    client.patience = PATIENCE;
    let (mut without, mut with) = (Side::default(), Side::default());
    let (mut told, mut long) = (Vec::new(), FIRST);
    for some in hostile.chunks(hostile.len().div_ceil(options.windows)) {
        without.measure(worker, streams, || thread::sleep(long));
        let (answers, took) =
            with.measure(worker, streams, || send(&client, options.at_once, some));
        told.extend(answers?);
        long = took;
        thread::sleep(PAUSE);
    }
    without.measure(worker, streams, || thread::sleep(long));
    Ok(result(options, [&without, &with], &told))
}

fn bytes(fields: Value, options: &Options) -> Vec<u8> {
    let mut body = fields;
    body["prompt"] = json!("Say it:");
    body["max_tokens"] = json!(options.tokens);
    body["temperature"] = json!(1.0);
    body["seed"] = json!(options.seed);
    body.to_string().into_bytes()
}

fn result(options: &Options, [without, with]: [&Side; 2], told: &[Outcome]) -> Value {
    let (calm, busy) = (without.all(), with.all());
    let soon = told.iter().filter(|it| it.took <= SOON).count();
    json!({
        "bench": "grammar-siege",
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "streams": options.streams, "grammars": told.len(), "seed": options.seed,
        "grammars_at_once": options.at_once, "tokens_of_an_answer": options.tokens,
        "answered_within_2_s": soon,
        "gaps_without": calm.summary(), "gaps_with": busy.summary(),
        "p50_with_to_without": ratio(&busy, &calm, 0.5),
        "p99_with_to_without": ratio(&busy, &calm, 0.99),
        "memory": [without.peaks.summary("without"), with.peaks.summary("with")],
        "answers": answers(told, |it| kind(it).to_owned()),
        "families": answers(told, |it| it.family.to_owned()),
        "windows": windows(without, with),
    })
}

fn ratio(busy: &Latencies, calm: &Latencies, share: f64) -> f64 {
    let ratio = busy.quantile(share).as_secs_f64() / calm.quantile(share).as_secs_f64();
    (ratio * 1e3).round() / 1e3
}

/// Each window with grammars, relative to those before and after it.
fn windows(without: &Side, with: &Side) -> Vec<Value> {
    let beside = without.gaps.windows(2).zip(&with.gaps);
    let rows = (1..).zip(beside).map(|(window, (calm, busy))| {
        let mut around = Latencies::default();
        calm.iter().for_each(|gaps| gaps.each(|gap| around.push(gap)));
        json!({
            "window": window, "without": around.summary()["p99_ms"], "with": busy.summary()["p99_ms"],
            "p50_ratio": ratio(busy, &around, 0.5), "p99_ratio": ratio(busy, &around, 0.99),
        })
    });
    rows.collect()
}

/// Kind of the response.
fn kind(told: &Outcome) -> &'static str {
    let says = |part: &str| told.text.contains(part);
    match told.status {
        200 => "200: an answer under it",
        400 if says("cannot go on under its grammar") => "400: part of an answer, and then a limit",
        400 if says("it took longer than") => "400: refused, it took too long",
        400 if says("it ended the process") => "400: refused, it ended its process",
        400 => "400: refused by the parser",
        429 => "429: sent away for now",
        0 => "none within a minute",
        _ => "another answer",
    }
}

fn answers(told: &[Outcome], key: impl Fn(&Outcome) -> String) -> Vec<Value> {
    let mut kinds: BTreeMap<String, (Latencies, [usize; 4])> = BTreeMap::new();
    for one in told {
        let (times, statuses) = kinds.entry(key(one)).or_default();
        times.push(one.took);
        statuses[[200, 400, 429]
            .iter()
            .position(|it| *it == one.status)
            .unwrap_or(3)] += 1;
    }
    let rows = kinds.into_iter().map(|(name, (times, statuses))| {
        let times = times.summary();
        json!({
            "name": name, "count": times["count"], "p50_ms": times["p50_ms"], "max_ms": times["max_ms"],
            "status_200": statuses[0], "status_400": statuses[1], "status_429": statuses[2], "others": statuses[3],
        })
    });
    rows.collect()
}
