//! Cost of a schema on the CPU device, for the constrained stream and for the streams beside it. Prints one JSON
//! object.

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use worker_orcd_tests::Worker;
use worker_orcd_tests::bench::structured::Structured;

#[derive(Debug, Parser)]
struct Options {
    /// Each measures both sides, one after the other.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 128)]
    tokens: u32,
    /// Streams at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    streams: Vec<usize>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let most = options.streams.iter().copied().max().unwrap_or(1);
    let worker = Worker::real().arg("--max-running", most).start();
    let bench = Structured::new(worker.client(), options.tokens);
    let mut rows = Vec::new();
    for &streams in &options.streams {
        rows.push(bench.constrained(streams, options.rounds)?);
        if streams > 1 {
            rows.push(bench.neighbours(streams, options.rounds)?);
        }
    }
    println!(
        "{}",
        json!({
            "bench": "grammar", "rounds": options.rounds, "tokens_of_an_answer": options.tokens,
            "tokens_per_second": rows,
        })
    );
    Ok(())
}
