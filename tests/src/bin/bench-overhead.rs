//! Streamed tokens per second through socket, supervisor and SSE, with a child that computes
//! nothing: what everything but the model costs. Prints one JSON object.

use clap::Parser;
use serde_json::json;
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::Pump;
use worker_orcd_tests::{Worker, process, worker};

#[derive(Debug, Parser)]
struct Options {
    /// Streams open at a time; the child runs all of them in every step.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 2048)]
    tokens: u32,
    /// Measured time, after a warm-up of a tenth of it.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let worker = Worker::null()
        .arg("--max-running", options.streams)
        .arg("--max-queue", options.streams)
        .start();
    let child = worker
        .child_pid()
        .expect("a worker that is ready has a child");
    let tokens = options.tokens;
    let mut pump = Pump::new(worker.client().address, options.streams, move |_| {
        worker::request("x", tokens)
    })?;
    let measured = Duration::from_secs(options.seconds);
    run_for(&mut pump, measured / 10)?;
    let pids = [
        ("supervisor", worker.pid()),
        ("child", child),
        ("client", std::process::id()),
    ];
    let cpu_before = pids.map(|(_, pid)| process::cpu_time(pid));
    let (before, start) = (pump.totals, Instant::now());
    run_for(&mut pump, measured)?;
    let elapsed = start.elapsed().as_secs_f64();
    let cpu: serde_json::Map<_, _> = pids
        .iter()
        .zip(cpu_before)
        .map(|((name, pid), before)| {
            let used = process::cpu_time(*pid).saturating_sub(before);
            ((*name).to_owned(), json!(used.as_secs_f64() / elapsed))
        })
        .collect();
    let streamed = pump.totals.tokens - before.tokens;
    let result = json!({
        "bench": "overhead",
        "streams": options.streams,
        "tokens_per_stream": options.tokens,
        "requests": pump.totals.requests - before.requests,
        "tokens": streamed,
        "seconds": elapsed,
        "tokens_per_second": (streamed as f64 / elapsed).round(),
        "bytes_per_token": (pump.totals.bytes - before.bytes) as f64 / streamed as f64,
        "cores_used": cpu,
    });
    println!("{result}");
    Ok(())
}

/// The last streams are let finish, inside the measured time: no token is counted twice or lost.
fn run_for(pump: &mut Pump, time: Duration) -> std::io::Result<()> {
    let start = Instant::now();
    pump.run(|_| start.elapsed() >= time)
}
