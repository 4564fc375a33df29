//! Speed of a device for one model: `bench-gpu bare` calls the executor in a loop, `bench-gpu served` uses a worker
//! over HTTP. Both first compare answers over batch sizes, and end without a figure when one differs.
//!
//! ```text
//! bench/gpu/run.py ── bare ─── bare::Bare (executor) ◄── lines (sequences) ── check, speed
//!                  └─ served ─ Worker ◄── Burst ── served, long, mixed, structured
//! ```
//!
//! Every finding is one JSON object on a line of its own, printed at once, so that an interrupted run keeps its
//! findings. `"what"` is its kind.

mod bare;
mod check;
mod lines;
mod long;
mod mixed;
mod prompts;
mod served;
mod speed;
mod structured;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Debug, Parser)]
#[command(name = "bench-gpu")]
struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// The executor in a loop: no scheduler, no socket, no text.
    #[command(args_override_self = true)]
    Bare(Settings),
    /// Streams over HTTP, through supervisor and child.
    #[command(args_override_self = true)]
    Served(served::Arguments),
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Sequences decoded together, behind short prompts.
    Decode,
    /// From a prompt to its first token.
    Prompt,
    /// Served only: sequences decoded behind long prompts.
    Long,
    /// Served only: streams while prompts arrive.
    Mixed,
    /// Served only: streams under a schema, and those beside them.
    Structured,
}

/// What both sides are told.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    #[arg(long)]
    model: PathBuf,
    /// As the worker's own flag: cuda:N or cpu.
    #[arg(long, default_value = "cuda:0")]
    device: String,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Measure::Decode, Measure::Prompt])]
    measure: Vec<Measure>,
    /// Sequences decoded in one step.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 64, 128, 256])]
    batches: Vec<usize>,
    /// Prompts whose time to the first token is taken.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 1024])]
    prompts: Vec<usize>,
    /// Tokens of the prompt in front of a decode.
    #[arg(long, default_value_t = 128)]
    prompt_tokens: usize,
    /// Tokens that are decoded.
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// Prompt tokens computed in one step [default: the worker's].
    #[arg(long)]
    chunk: Option<u32>,
    /// In MiB.
    #[arg(long, default_value_t = 16 << 10)]
    kv_cache: u64,
    /// Each figure is the median of so many.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds after which no further round of a figure begins.
    #[arg(long, default_value_t = 8.0)]
    patience: f64,
    /// Tokens of each answer that is compared over batch sizes.
    #[arg(long, default_value_t = 16)]
    check_tokens: usize,
}

impl Settings {
    fn measures(&self, what: Measure) -> bool {
        self.measure.contains(&what)
    }

    fn largest_batch(&self) -> usize {
        let batches = self
            .batches
            .iter()
            .filter(|_| self.measures(Measure::Decode));
        batches.copied().max().unwrap_or(1)
    }

    /// Longest sequence that is decoded beside others.
    fn decode_context(&self) -> usize {
        self.prompt_tokens.max(check::LONGEST_PROMPT) + self.tokens.max(self.check_tokens)
    }

    /// Longest sequence.
    fn context(&self) -> usize {
        let prompts = self
            .prompts
            .iter()
            .filter(|_| self.measures(Measure::Prompt));
        let prompt = prompts.copied().max().unwrap_or(0);
        self.decode_context().max(prompt + 2)
    }

    /// Numbers of rounds; round 0 is the warm-up. At least one more is run, and then as many as `wanted` and patience
    /// permit.
    fn rounds(&self, wanted: usize) -> impl Iterator<Item = usize> {
        let (began, patience) = (Instant::now(), Duration::from_secs_f64(self.patience));
        (0..=wanted.max(1)).take_while(move |round| *round <= 1 || began.elapsed() < patience)
    }
}

fn main() -> Result<()> {
    match Options::parse().side {
        Side::Bare(settings) => bare::run(&settings),
        Side::Served(arguments) => served::run(&arguments),
    }
}

/// Prints a finding.
fn print(finding: &Value) {
    println!("{finding}");
}

/// Median; sorts the values. NaN if there are none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
