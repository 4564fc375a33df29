//! `cargo xtask bench cpu`: comparison of this engine with llama.cpp.
//!
//! Both serve the same file over HTTP with the same number of threads, and one client measures both in alternating
//! rounds, so that a machine that slows down affects both. They never compute at the same time. Every prompt is new, so
//! no cache replaces the computation.

use super::report;
use crate::process::Running;
use crate::worker::{self, Worker};
use crate::{fetch_model, paths, process, python};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use worker_orcd_harness::{Client, SseEvent};

#[derive(clap::Args)]
pub struct Arguments {
    #[arg(long)]
    model: Option<PathBuf>,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Compute threads, of either engine.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

const PROMPT_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 128;
const DECODE_PROMPT_TOKENS: usize = 16;
const BATCH: usize = 8;
/// Longest sequence of either engine.
const CONTEXT_TOKENS: usize = 2 * PROMPT_TOKENS;
/// Room for the whole batch of a model of SmolLM2's size.
const KV_CACHE: &str = "128MiB";

pub fn run(arguments: &Arguments) -> Result<()> {
    let model = match &arguments.model {
        Some(path) => path.clone(),
        None => fetch_model::run()?,
    };
    let python = python::interpreter()?;
    worker::build()?;
    let (_llama, theirs) = start_llama(&python, &model, arguments.threads)?;
    let flags: Vec<String> = [
        ("--threads", arguments.threads.to_string()),
        ("--max-running", BATCH.to_string()),
        ("--max-context", CONTEXT_TOKENS.to_string()),
        ("--kv-cache-size", KV_CACHE.to_owned()),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect();
    let worker = Worker::start(&model, &flags, Box::new(|_, _| {}))?;

    let mut prompts = Prompts::new(theirs, &python)?;
    let (ours, theirs) = (
        Engine::Ours(worker.client.address),
        Engine::LlamaCpp(theirs),
    );
    let mut figures = Figures::default();
    // The first round warms both up and is not counted.
    for round in 0..=arguments.rounds {
        let figures = if round == 0 {
            &mut Figures::default()
        } else {
            &mut figures
        };
        let order = if round % 2 == 0 {
            [ours, theirs]
        } else {
            [theirs, ours]
        };
        for engine in order {
            measure(engine, &mut prompts, figures)?;
        }
        println!("round {round} of {}", arguments.rounds);
    }
    let memory = memory_table(&worker, &model)?;
    worker.stop()?;
    report::write(
        "cpu",
        &report::typed_command(),
        &(figures.table(arguments) + &memory),
    )
}

#[derive(Debug, Clone, Copy)]
enum Engine {
    Ours(SocketAddr),
    LlamaCpp(SocketAddr),
}

/// Tokens per second, one value a round.
#[derive(Debug, Default)]
struct Figures {
    our_prompt: Vec<f64>,
    our_decode: Vec<f64>,
    our_batch: Vec<f64>,
    their_prompt: Vec<f64>,
    their_decode: Vec<f64>,
}

fn measure(engine: Engine, prompts: &mut Prompts, figures: &mut Figures) -> Result<()> {
    let prompt = complete(engine, &prompts.next(PROMPT_TOKENS)?, 1)?;
    let prompt_rate = prompt.tokens_in as f64 / prompt.first.as_secs_f64();
    let decode_rate =
        complete(engine, &prompts.next(DECODE_PROMPT_TOKENS)?, DECODE_TOKENS)?.decode_rate();
    match engine {
        Engine::LlamaCpp(_) => {
            figures.their_prompt.push(prompt_rate);
            figures.their_decode.push(decode_rate);
        }
        Engine::Ours(_) => {
            figures.our_prompt.push(prompt_rate);
            figures.our_decode.push(decode_rate);
            figures.our_batch.push(batch_rate(engine, prompts)?);
        }
    }
    Ok(())
}

/// Streamed completion, from the client's side.
struct Completion {
    tokens_in: u64,
    tokens_out: usize,
    /// Time from the request to the first token.
    first: Duration,
    /// Time from the request to the last token.
    last: Duration,
}

impl Completion {
    /// Decoding rate. The first token belongs to the prompt.
    fn decode_rate(&self) -> f64 {
        (self.tokens_out - 1) as f64 / (self.last - self.first).as_secs_f64()
    }
}

fn complete(engine: Engine, prompt: &str, max_tokens: usize) -> Result<Completion> {
    let start = Instant::now();
    let (address, path, body) = match engine {
        Engine::LlamaCpp(address) => {
            let body = json!({
                "prompt": prompt, "n_predict": max_tokens, "stream": true, "temperature": 0,
                "cache_prompt": false, "ignore_eos": true,
            });
            (address, "/completion", body)
        }
        Engine::Ours(address) => {
            let body = json!({
                "prompt": prompt, "max_tokens": max_tokens, "stream": true,
                "temperature": 0, "ignore_eos": true, "stream_options": {"include_usage": true},
            });
            (address, "/v1/completions", body)
        }
    };
    let mut seen = Completion {
        tokens_in: 0,
        tokens_out: 0,
        first: Duration::ZERO,
        last: Duration::ZERO,
    };
    let mut events = worker::patient(Client::new(address)).try_stream(path, &body)?;
    while let Some(SseEvent { data, .. }) = events.try_next()? {
        if data == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(&data)?;
        if !chunk["error"].is_null() {
            bail!("a completion broke off: {}", chunk["error"]);
        }
        seen.count(&chunk, start);
    }
    ensure!(
        seen.tokens_out == max_tokens,
        "{} of {max_tokens} tokens came",
        seen.tokens_out
    );
    ensure!(seen.tokens_in > 0, "no count of prompt tokens came");
    Ok(seen)
}

impl Completion {
    /// Counts a chunk of either API. Text can be late (half a character), so counts come from the engines' own usage
    /// figures, and times from the first and the last chunk before them.
    fn count(&mut self, chunk: &Value, start: Instant) {
        let is_summary = chunk["stop"] == true || chunk["usage"].is_object();
        if is_summary {
            let count = |a: &Value, b: &Value| a.as_u64().or(b.as_u64()).unwrap_or(0);
            self.tokens_in = count(&chunk["tokens_evaluated"], &chunk["usage"]["prompt_tokens"]);
            let out = count(
                &chunk["tokens_predicted"],
                &chunk["usage"]["completion_tokens"],
            );
            self.tokens_out = usize::try_from(out).unwrap_or(usize::MAX);
            return;
        }
        self.last = start.elapsed();
        if self.first.is_zero() {
            self.first = self.last;
        }
    }
}

/// Rate of all tokens of all streams, from the first token to the last.
fn batch_rate(engine: Engine, prompts: &mut Prompts) -> Result<f64> {
    let texts: Vec<_> = (0..BATCH)
        .map(|_| prompts.next(DECODE_PROMPT_TOKENS))
        .collect::<Result<_>>()?;
    let start = Instant::now();
    let streams: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = texts
            .iter()
            .map(|text| {
                scope.spawn(move || {
                    let begun = start.elapsed();
                    complete(engine, text, DECODE_TOKENS).map(|seen| (begun, seen))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no stream panics"))
            .collect()
    });
    let streams = streams
        .into_iter()
        .collect::<Result<Vec<(Duration, Completion)>>>()?;
    let first = streams
        .iter()
        .map(|(begun, seen)| *begun + seen.first)
        .min()
        .context("streams")?;
    let last = streams
        .iter()
        .map(|(begun, seen)| *begun + seen.last)
        .max()
        .context("streams")?;
    let tokens: usize = streams.iter().map(|(_, seen)| seen.tokens_out).sum();
    Ok(tokens as f64 / (last - first).as_secs_f64())
}

/// Real text, cut into unique pieces of an exact number of tokens.
struct Prompts {
    pieces: Vec<String>,
    used: usize,
}

impl Prompts {
    fn new(llama: SocketAddr, python: &Path) -> Result<Self> {
        let text = process::output(Command::new(python).arg(paths::oracle_script("prose.py")))?;
        let body = json!({"content": text, "with_pieces": true});
        let answer = worker::patient(Client::new(llama))
            .post("/tokenize", &body)
            .json();
        let tokens = answer["tokens"].as_array().context("no tokens")?;
        // A piece that is no text on its own (half a character) is left out.
        let pieces = tokens
            .iter()
            .filter_map(|token| token["piece"].as_str().map(str::to_owned));
        Ok(Self {
            pieces: pieces.collect(),
            used: 0,
        })
    }

    fn next(&mut self, tokens: usize) -> Result<String> {
        let end = self.used + tokens;
        let piece = self
            .pieces
            .get(self.used..end)
            .context("the text is used up")?
            .concat();
        self.used = end;
        Ok(piece)
    }
}

/// Starts llama.cpp's own server, which ends when its standard input closes.
fn start_llama(python: &Path, model: &Path, threads: usize) -> Result<(Running, SocketAddr)> {
    let mut command = Command::new(python);
    command
        .arg(paths::oracle_script("llama_server.py"))
        .arg(model)
        .args([
            "--threads",
            &threads.to_string(),
            "--context",
            &CONTEXT_TOKENS.to_string(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut running = Running::start(&mut command)?;
    let out = running.child().stdout.take().context("piped")?;
    for line in BufReader::new(out).lines() {
        if let Some(address) = line?.strip_prefix("listening http://") {
            return Ok((running, address.parse()?));
        }
    }
    bail!("llama.cpp's server did not start")
}

impl Figures {
    fn table(&self, arguments: &Arguments) -> String {
        let row = |name: &str, ours: &[f64], theirs: &[f64], other: &str, bound: f64| {
            let (ours, theirs) = (median(ours), median(theirs));
            let ratio = ours / theirs;
            let verdict = if ratio >= bound { "yes" } else { "no" };
            format!(
                "| {name} | {ours:.1} | {theirs:.1} ({other}) | {ratio:.2} | ≥ {bound} | {verdict} |\n"
            )
        };
        format!(
            "{} threads, {} rounds, medians, tokens per second.\n\n\
             | what | ours | beside | ratio | bound | held |\n|---|---|---|---|---|---|\n{}{}{}",
            arguments.threads,
            arguments.rounds,
            row(
                &format!("prompt of {PROMPT_TOKENS}"),
                &self.our_prompt,
                &self.their_prompt,
                "llama.cpp",
                0.8
            ),
            row(
                &format!("decode of {DECODE_TOKENS}"),
                &self.our_decode,
                &self.their_decode,
                "llama.cpp",
                0.8
            ),
            row(
                &format!("decode, batch of {BATCH}"),
                &self.our_batch,
                &self.our_decode,
                "ours, batch of 1",
                2.0
            ),
        )
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Table of both processes' resident memory after the load above, compared with the file and the KV cache.
fn memory_table(worker: &Worker, model: &Path) -> Result<String> {
    const MIB: f64 = 1024.0 * 1024.0;
    let health = worker.client.health();
    let child = health["child"]["pid"]
        .as_u64()
        .context("no child in /health")?;
    let kv = health["vram"]["kv_capacity_bytes"]
        .as_u64()
        .context("no KV capacity in /health")?;
    let file = fs::metadata(model)?.len();
    let resident = resident_bytes(u64::from(worker.pid()))? + resident_bytes(child)?;
    let (budget, resident) = ((file + kv) as f64 / MIB, resident as f64 / MIB);
    let ratio = resident / budget;
    Ok(format!(
        "\n| memory | MiB |\n|---|---|\n| supervisor and child, resident | {resident:.0} |\n\
         | file and KV cache | {budget:.0} |\n| ratio (bound 1.3) | {ratio:.2} |\n"
    ))
}

/// `VmRSS`: resident memory of the process, mapped file pages included.
fn resident_bytes(pid: u64) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn both_apis_are_counted_alike() {
        let start = Instant::now();
        for chunks in [
            [
                json!({"content": "a", "stop": false}),
                json!({"stop": true, "tokens_evaluated": 7, "tokens_predicted": 1}),
            ],
            [
                json!({"choices": [{"text": "a"}], "usage": null}),
                json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}),
            ],
        ] {
            let mut seen = Completion {
                tokens_in: 0,
                tokens_out: 0,
                first: Duration::ZERO,
                last: Duration::ZERO,
            };
            chunks.iter().for_each(|chunk| seen.count(chunk, start));
            assert_eq!((seen.tokens_in, seen.tokens_out), (7, 1));
            assert_eq!(seen.first, seen.last);
        }
    }
}
