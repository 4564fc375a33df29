//! Cost of the split into two processes: tokens per second of streams over HTTP, through supervisor, journal, socket,
//! child and flight recorder, beside the same executor called in a loop. Both alternate in one run. Prints one JSON
//! object.
//!
//! Measured once with a spare core for everything that does not compute, this client included, and once with a compute
//! thread on every core.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::time::Instant;
use worker_orcd_gpu::device::cpu::{CpuExecutor, Device};
use worker_orcd_gpu::device::{
    Batch, Beside, Executor, LoadOptions, NoTap, PageId, SampleWork, SequenceWork, Source,
};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{KvReaders, RequestId, Sampling, TokenId};
use worker_orcd_kernels::cpu::Isa;
use worker_orcd_tests::model::real_model;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Worker};

#[derive(Debug, Parser)]
struct Options {
    /// Each runs both sides, one after the other.
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 96)]
    tokens: u32,
}

const PROMPT_TOKENS: usize = 12;
const BATCHES: [usize; 2] = [1, 8];
const CONTEXT: u32 = 512;

fn main() -> Result<()> {
    let options = Options::parse();
    let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
    let mut rows = Vec::new();
    for threads in [cores.saturating_sub(1).max(1), cores] {
        compare(&options, threads, &mut rows)?;
    }
    println!(
        "{}",
        json!({
            "bench": "isolation", "cores": cores, "rounds": options.rounds,
            "tokens_per_stream": options.tokens, "speeds": rows,
        })
    );
    Ok(())
}

fn compare(options: &Options, threads: u32, rows: &mut Vec<Value>) -> Result<()> {
    let mut bare = Bare::load(threads)?;
    let worker = Worker::real().arg("--threads", threads).start();
    let client = worker.client();
    for streams in BATCHES {
        let (mut alone, mut served, mut ratios) = (vec![], vec![], vec![]);
        for round in 0..=options.rounds {
            let bare_speed = bare.decode(streams, options.tokens)?;
            let served_speed = stream(&client, streams, options.tokens)?;
            // The first round is a warm-up.
            if round > 0 {
                alone.push(bare_speed);
                served.push(served_speed);
                ratios.push(served_speed / bare_speed);
            }
        }
        rows.push(json!({
            "compute_threads": threads,
            "streams": streams,
            "bare_tokens_per_second": median(&mut alone).round(),
            "served_tokens_per_second": median(&mut served).round(),
            "median_of_ratios": (median(&mut ratios) * 1e3).round() / 1e3,
            "least_ratio": (ratios[0] * 1e3).round() / 1e3,
            "largest_ratio": (ratios[ratios.len() - 1] * 1e3).round() / 1e3,
        }));
    }
    Ok(())
}

/// Median; sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Executor without scheduler and server.
struct Bare {
    executor: CpuExecutor,
    pages_each: u32,
}

impl Bare {
    fn load(threads: u32) -> Result<Self> {
        let path = real_model();
        let file = GgufFile::open(&path)?;
        let header = file.header()?;
        let config = ModelConfig::from_gguf(&header, Some(CONTEXT))?;
        let weights = ModelWeights::from_gguf(&header, &config)?;
        let options = LoadOptions {
            kv_cache_bytes: None,
            max_batch_tokens: CONTEXT,
            max_sequence_tokens: CONTEXT,
            role: worker_orcd_ipc::Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: Beside::default(),
            model: path.display().to_string(),
        };
        let device = Device::open(Some(threads), Isa::detect())?;
        let executor = CpuExecutor::load(
            device,
            Source {
                config: &config,
                weights: &weights,
                file: None,
                retained: None,
            },
            &options,
            &mut |_, _| {},
        )?;
        let geometry = executor.kv_geometry();
        let pages_each = geometry.table_entries(CONTEXT as usize) as u32;
        Ok(Self {
            executor,
            pages_each,
        })
    }

    /// Tokens per second of the steps after the prompts.
    fn decode(&mut self, sequences: usize, tokens: u32) -> Result<f64> {
        let prompt: Vec<_> = (0..PROMPT_TOKENS).map(|_| TokenId(260)).collect();
        let mut last: Vec<Vec<TokenId>> = vec![prompt; sequences];
        let mut position = 0;
        self.step(&mut last, &mut position)?;
        let start = Instant::now();
        for _ in 1..tokens {
            self.step(&mut last, &mut position)?;
        }
        let drawn = sequences as f64 * f64::from(tokens - 1);
        Ok(drawn / start.elapsed().as_secs_f64())
    }

    fn step(&mut self, last: &mut [Vec<TokenId>], position: &mut u32) -> Result<()> {
        let pages: Vec<Vec<PageId>> = (0..last.len() as u32)
            .map(|i| {
                (i * self.pages_each..(i + 1) * self.pages_each)
                    .map(PageId)
                    .collect()
            })
            .collect();
        let sampling = Sampling {
            temperature: 0.0,
            ..Sampling::default()
        };
        let sequences: Vec<_> = last
            .iter()
            .zip(&pages)
            .zip(1..)
            .map(|((tokens, pages), request)| SequenceWork {
                request: RequestId(request),
                tokens,
                first_position: *position,
                pages,
                sample: Some(SampleWork::new(sampling, &[], &[])),
                drafts: 0,
            })
            .collect();
        let batch = Batch {
            step: 1,
            sequences: &sequences,
        };
        let drawn = self.executor.step(&batch, &mut NoTap);
        let drawn = drawn.map_err(|fault| anyhow::anyhow!("{fault}"))?;
        *position += last[0].len() as u32;
        for (last, drawn) in last.iter_mut().zip(drawn) {
            *last = vec![drawn.token];
        }
        Ok(())
    }
}

fn body(tokens: u32) -> Value {
    // Its answer is plain prose, with a text event for every token.
    let mut body = request(
        "The history of the Roman Empire began when Augustus became",
        tokens,
    );
    body["temperature"] = json!(0.0);
    body["ignore_eos"] = json!(true);
    body
}

/// Tokens per second from the moment at which every stream has its first token to the end of the first stream.
fn stream(client: &Client, streams: usize, tokens: u32) -> Result<f64> {
    let readers: Vec<_> = (0..streams)
        .map(|_| {
            let client = client.clone();
            std::thread::spawn(move || {
                let mut events = client.execute(&body(tokens));
                let mut arrivals = Vec::with_capacity(tokens as usize);
                while let Ok(Some(event)) = events.try_next() {
                    if event.name == "token" {
                        arrivals.push(Instant::now());
                    }
                }
                arrivals
            })
        })
        .collect();
    let mut arrivals = Vec::new();
    for reader in readers {
        let stream = reader.join().ok().context("a reader panicked")?;
        anyhow::ensure!(
            stream.len() == tokens as usize,
            "{} text events",
            stream.len()
        );
        arrivals.push(stream);
    }
    let from = arrivals.iter().map(|stream| stream[0]).max();
    let to = arrivals.iter().map(|stream| stream[stream.len() - 1]).min();
    let (from, to) = from.zip(to).context("there are streams")?;
    let counted = arrivals
        .iter()
        .flatten()
        .filter(|at| (from..to).contains(at));
    Ok(counted.count() as f64 / (to - from).as_secs_f64())
}
