//! Streamed tokens per second through socket, supervisor and SSE, with null children: cost of everything but the model,
//! by number of devices. Prints one JSON object.

use clap::Parser;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::Pump;
use worker_orcd_tests::{Worker, process, wait, worker};

#[derive(Debug, Parser)]
struct Options {
    /// Devices of the worker, with a child each: every number is measured.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    devices: Vec<usize>,
    /// Streams open at a time; the children run all of them in every step.
    #[arg(long, default_value_t = 64)]
    streams: usize,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 2048)]
    tokens: u32,
    /// Measured time of each, after a warm-up of a tenth of it.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runs = options
        .devices
        .iter()
        .map(|devices| measure(&options, *devices));
    let result = json!({
        "bench": "overhead",
        "tokens_per_stream": options.tokens,
        "runs": runs.collect::<anyhow::Result<Vec<_>>>()?,
    });
    println!("{result}");
    Ok(())
}

fn measure(options: &Options, devices: usize) -> anyhow::Result<Value> {
    let worker = Worker::null()
        .arg("--device", vec!["cpu"; devices].join(","))
        .arg("--max-running", options.streams.div_ceil(devices))
        .arg("--max-queue", options.streams)
        .start();
    let children = children(&worker, devices);
    let tokens = options.tokens;
    let mut pump = Pump::new(worker.client().address, options.streams, move |_| {
        worker::request("x", tokens)
    })?;
    let measured = Duration::from_secs(options.seconds);
    run_for(&mut pump, measured / 10)?;
    let cores = |pids: &[u32]| pids.iter().map(|pid| process::cpu_time(*pid)).sum();
    let used = || [&[worker.pid()], &children[..], &[std::process::id()]].map(cores);
    let before: [Duration; 3] = used();
    let (totals, start) = (pump.totals, Instant::now());
    run_for(&mut pump, measured)?;
    let elapsed = start.elapsed().as_secs_f64();
    let after = used();
    let cores = |of: usize| after[of].saturating_sub(before[of]).as_secs_f64() / elapsed;
    let streamed = (pump.totals.tokens - totals.tokens) as f64;
    Ok(json!({
        "devices": devices,
        "streams": options.streams,
        "requests": pump.totals.requests - totals.requests,
        "tokens": streamed,
        "seconds": hundredths(elapsed),
        "tokens_per_second": (streamed / elapsed).round(),
        "bytes_per_token": hundredths((pump.totals.bytes - totals.bytes) as f64 / streamed),
        "supervisor_ns_per_token": (cores(0) * elapsed * 1e9 / streamed).round(),
        "supervisor_cores": hundredths(cores(0)),
        "children_cores": hundredths(cores(1)),
        "client_cores": hundredths(cores(2)),
    }))
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Processes of all devices, once each has one that serves.
fn children(worker: &Worker, devices: usize) -> Vec<u32> {
    wait::until("a child on every device", || {
        let health = worker.client().health();
        let each = health["devices"].as_array()?.iter();
        let serving = each.filter(|device| device["state"] == "serving");
        let pids: Vec<_> = serving
            .filter_map(|it| it["child"]["pid"].as_u64())
            .collect();
        let pids: Vec<_> = pids
            .into_iter()
            .filter_map(|it| u32::try_from(it).ok())
            .collect();
        (pids.len() == devices).then_some(pids)
    })
}

/// Finishes the last streams inside the measured time: no token is counted twice or lost.
fn run_for(pump: &mut Pump, time: Duration) -> std::io::Result<()> {
    let start = Instant::now();
    pump.run(|_| start.elapsed() >= time)
}
