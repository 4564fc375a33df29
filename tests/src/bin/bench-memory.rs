//! Growth of the supervisor's memory over many requests. Prints one JSON object with the supervisor's private memory
//! (`RssAnon`) after each tenth of them.

use clap::Parser;
use serde_json::json;
use std::time::Instant;
use worker_orcd_tests::bench::Pump;
use worker_orcd_tests::{Worker, process, worker};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Connections, each with one request after another.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    #[arg(long, default_value_t = 4)]
    tokens: u32,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let worker = Worker::null()
        .arg("--max-running", options.streams)
        .arg("--max-queue", options.streams)
        .start();
    let tokens = options.tokens;
    let mut pump = Pump::new(worker.client().address, options.streams, move |n| {
        worker::request(&format!("request number {n}"), tokens)
    })?;
    let start = Instant::now();
    let mut samples = Vec::new();
    for tenth in 1..=10 {
        let goal = options.requests * tenth / 10;
        pump.run(|totals| totals.requests + options.streams as u64 > goal)?;
        samples.push(json!({
            "requests": pump.totals.requests,
            "supervisor_anonymous_bytes": process::anonymous_rss_bytes(worker.pid()),
            "supervisor_open_files": process::open_files(worker.pid()),
        }));
    }
    let elapsed = start.elapsed().as_secs_f64();
    let bytes = |at: usize| {
        samples[at]["supervisor_anonymous_bytes"]
            .as_f64()
            .unwrap_or(f64::NAN)
    };
    let result = json!({
        "bench": "memory",
        "requests": pump.totals.requests,
        "seconds": elapsed,
        "requests_per_second": (pump.totals.requests as f64 / elapsed).round(),
        // From the second sample on: the first tenth fills pools and caches.
        "growth_bytes_per_request":
            (bytes(9) - bytes(1)) / (pump.totals.requests as f64 * 0.8),
        "samples": samples,
    });
    println!("{result}");
    Ok(())
}
