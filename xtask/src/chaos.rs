//! `cargo xtask chaos`: builds the worker with fault injection, and the chaos program of `tests/src/bin/chaos`; then
//! runs it.

use crate::bench::report;
use crate::{fetch_model, paths, process};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Arguments of the runner: --minutes N, --seed S, --faults N, --streams N, --report FILE, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs a siege, of an hour by default: 16 honest streams, random faults, and all attacks. The report is beside those
/// of the benchmarks.
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

/// Honest clients read to the end, so that missing text is a violation.
const SIEGE: [&str; 6] = ["--siege", "--steady", "--minutes", "60", "--streams", "16"];

/// Chaos program, and the programs that it starts.
const PROGRAMS: [&str; 4] = [
    "chaos",
    "tested-worker-orcd",
    "tested-worker-orcd-gpu",
    "faulty-worker-orcd-gpu",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    let model = fetch_model::run()?;
    process::run(&mut build())?;
    process::run(&mut runner("release", &model, &arguments.arguments)?)
}

/// Runs a minute of requests of every kind with deaths of children, a standby and pages that change before they are
/// adopted. It uses the binaries of the tests before it: a build of these alone has other features, and would compile
/// most of the workspace once more.
pub fn for_ci(model: &Path) -> Result<()> {
    beside_a_standby(
        model,
        &["--minutes", "1", "--seed", "20261121", "--shallow"],
    )
}

/// Runs the same for longer, with a new seed.
pub fn fresh(model: &Path) -> Result<()> {
    beside_a_standby(model, &["--minutes", "5"])
}

fn beside_a_standby(model: &Path, flags: &[&str]) -> Result<()> {
    let all = [&["--standby", "--kinds", "any|flipped-page"], flags].concat();
    let all: Vec<_> = all.into_iter().map(str::to_owned).collect();
    process::run(&mut runner("debug", model, &all)?)
}

fn build() -> Command {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "worker-orcd-tests"]);
    for program in PROGRAMS {
        command.args(["--bin", program]);
    }
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
    // The report's path is relative to this folder.
    command
        .current_dir(paths::root())
        .env("WORKER_ORCD_MODEL", model);
    Ok(command)
}
