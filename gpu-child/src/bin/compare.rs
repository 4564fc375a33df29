//! `worker-orcd-compare A B`: the largest difference between two logits traces, per checkpoint.

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use worker_orcd_gpu::trace::compare::{Trace, compare, read_trace};

/// Compares two logits traces, matched on (checkpoint, token_idx).
///
/// Exits 1 unless each has every row of the other, in the same shape, and no value differs by more
/// than the tolerance; 2 when a file cannot be read.
#[derive(Parser)]
#[command(name = "worker-orcd-compare", version)]
struct Arguments {
    a: PathBuf,
    b: PathBuf,
    /// Request whose lines of the first file are read.
    #[arg(long)]
    request_a: Option<u64>,
    /// Request whose lines of the second file are read.
    #[arg(long)]
    request_b: Option<u64>,
    /// The largest difference that is still fine.
    #[arg(long, default_value_t = 0.0, value_parser = tolerance)]
    tolerance: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let traces = read(&arguments.a, arguments.request_a)
        .and_then(|a| Ok((a, read(&arguments.b, arguments.request_b)?)));
    let (a, b) = match traces {
        Ok(traces) => traces,
        Err(message) => {
            eprintln!("worker-orcd-compare: {message}");
            return ExitCode::from(2);
        }
    };
    let differences = compare(&a, &b);
    for (checkpoint, difference) in &differences {
        println!("{checkpoint}: {difference}");
    }
    if differences.is_empty() {
        println!("there is no row in either");
    }
    let mut found = differences.values();
    if !differences.is_empty() && found.all(|it| it.agrees_within(arguments.tolerance)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses the tolerance. Infinity is refused: the comparison could never fail.
fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|it: &f64| it.is_finite() && *it >= 0.0)
        .ok_or_else(|| format!("{text:?} is no number from 0 up"))
}

fn read(path: &Path, request: Option<u64>) -> Result<Trace, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    text.and_then(|text| read_trace(&text, request).map_err(|error| error.to_string()))
        .map_err(|error| format!("{}: {error}", path.display()))
}
