//! `cargo xtask test`: what a change has to pass, in the order in which it fails fastest.

use crate::{chaos, fetch_model, javascript, kernels, paths, process, python};
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Arguments {
    /// Only formatting, lints and the tests that need neither Python, nor Node, nor a model.
    #[arg(long)]
    quick: bool,
    /// Leave out formatting and lints.
    #[arg(long)]
    no_lint: bool,
    /// Fail where PyPI cannot be reached for a CUDA compiler, instead of leaving out the kernels.
    #[arg(long, conflicts_with = "quick")]
    require_kernels: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    if !arguments.no_lint {
        process::run(process::cargo().args(["fmt", "--all", "--check"]))?;
    }
    // Before anything is compiled: a machine that cannot have the oracles should say so now.
    let oracles = if arguments.quick {
        None
    } else {
        Some(oracles()?)
    };
    // Before the child is built, which embeds them.
    let left_out = match arguments.quick {
        true => None,
        false => kernels::for_ci(arguments.require_kernels)?,
    };
    if !arguments.no_lint {
        process::run(
            process::cargo()
                .args(["clippy", "--quiet", "--workspace", "--all-targets", "--"])
                .args(["--deny", "warnings"]),
        )?;
    }
    // The binaries that ship, without the features that `tests` turns on.
    process::run(process::cargo().args(["test", "--no-fail-fast"]))?;
    match &oracles {
        Some(environment) => {
            process::run(&mut everything_else(environment))?;
            process::run(&mut failing_on_command(environment))?;
            chaos::for_ci(&environment.model)?;
        }
        // Static checks of the repository need neither.
        None => process::run(process::cargo().args([
            "test",
            "-p",
            "worker-orcd-tests",
            "--test",
            "tidy",
        ]))?,
    }
    let seconds = start.elapsed().as_secs();
    match left_out {
        None => println!("all of it passed in {seconds} s"),
        Some(why) => println!("all but the CUDA kernels passed in {seconds} s: {why}"),
    }
    Ok(())
}

/// Python and model for the tests of real models; the clients of docs/clients.md.
struct Oracles {
    python: PathBuf,
    javascript: PathBuf,
    model: PathBuf,
}

fn oracles() -> Result<Oracles> {
    python::clients()?;
    Ok(Oracles {
        model: fetch_model::run()?,
        python: python::interpreter()?,
        javascript: javascript::folder()?,
    })
}

/// The tests that run real binaries and compare with other engines.
fn everything_else(oracles: &Oracles) -> Command {
    let mut command = process::cargo();
    command
        .args(["test", "--no-fail-fast", "-p", "worker-orcd-tests"])
        .env("WORKER_ORCD_PYTHON", &oracles.python)
        .env("WORKER_ORCD_JAVASCRIPT", &oracles.javascript)
        .env("WORKER_ORCD_MODEL", &oracles.model)
        .current_dir(paths::root());
    command
}

/// The same package again, with a child that was built to fail: what ships is tested without.
fn failing_on_command(oracles: &Oracles) -> Command {
    let mut command = process::cargo();
    command
        .args([
            "test",
            "-p",
            "worker-orcd-tests",
            "--features",
            "fault-injection",
        ])
        .args([
            "--test",
            "faults",
            "--test",
            "gpu_faults",
            "--test",
            "escapes",
        ])
        .args(["--test", "endurance", "--bin", "endurance"])
        .args(["--test", "chaos", "--bin", "chaos"])
        .env("WORKER_ORCD_PYTHON", &oracles.python)
        .env("WORKER_ORCD_MODEL", &oracles.model);
    command
}
