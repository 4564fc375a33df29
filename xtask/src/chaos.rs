//! `cargo xtask chaos`: builds the worker with a child that fails on command, and the runner
//! that lives in `tests/src/bin/chaos`; then runs it.

use crate::bench::report;
use crate::{fetch_model, paths, process};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Arguments of the runner: --minutes N, --seed S, --faults N, --streams N, --report FILE, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Everything at once, an hour long unless told otherwise: 16 honest streams, faults at random, and
/// whatever a stranger may send. The report goes where the benchmarks' do.
pub fn siege(arguments: &Arguments) -> Result<()> {
    let mut all: Vec<String> = SIEGE.map(str::to_owned).to_vec();
    all.push("--report".to_owned());
    all.push(
        paths::bench_results()
            .join("siege.md")
            .display()
            .to_string(),
    );
    all.extend_from_slice(&arguments.arguments);
    run(&Arguments { arguments: all })
}

/// Every honest client reads to the end: what it does not get is a loss.
const SIEGE: [&str; 6] = ["--siege", "--steady", "--minutes", "60", "--streams", "16"];

/// Variable with the length of the run of `cargo xtask test`; 0 leaves it out.
const MINUTES_VARIABLE: &str = "WORKER_ORCD_CHAOS_MINUTES";
const CI_MINUTES: f64 = 1.5;

pub fn run(arguments: &Arguments) -> Result<()> {
    let model = fetch_model::run()?;
    process::run(&mut build())?;
    process::run(&mut runner("release", &model, &arguments.arguments)?)
}

/// A run with a fresh seed, with a child that stands by and with pages that change before they are adopted; the seeded
/// runs are in `tests/tests/chaos.rs`. It takes what the tests before it built: a build of these binaries alone has
/// other features, and would compile most of the workspace once more.
pub fn for_ci(model: &Path) -> Result<()> {
    let minutes = match std::env::var(MINUTES_VARIABLE) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{MINUTES_VARIABLE} is no number"))?,
        Err(_) => CI_MINUTES,
    };
    if minutes == 0.0 {
        return Ok(());
    }
    let minutes = minutes.to_string();
    let run = [
        "--minutes",
        &minutes,
        "--standby",
        "--kinds",
        "any|flipped-page",
    ];
    process::run(&mut runner("debug", model, &run.map(str::to_owned))?)
}

fn build() -> Command {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "worker-orcd-tests"]);
    command.args(["--features", "fault-injection", "--bin", "chaos"]);
    command.args([
        "--bin",
        "tested-worker-orcd",
        "--bin",
        "tested-worker-orcd-gpu",
    ]);
    command
}

fn runner(profile: &str, model: &Path, arguments: &[String]) -> Result<Command> {
    let mut command = Command::new(paths::built(profile, "chaos"));
    command
        .arg("--commit")
        .arg(report::commit()?)
        .arg("--command")
        .arg(report::typed_command())
        .args(arguments);
    // Where the report's path is meant to start from.
    command
        .current_dir(paths::root())
        .env("WORKER_ORCD_MODEL", model);
    Ok(command)
}
