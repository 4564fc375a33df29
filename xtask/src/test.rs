//! `cargo xtask test`: what a change has to pass, in the order in which it fails fastest.

use crate::{chaos, fetch_model, javascript, kernels, played, process, python, side_by_side};
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
        let mut fmt = process::cargo();
        fmt.args(["fmt", "--all", "--check"]);
        phase("formatting", || process::run(&mut fmt))?;
    }
    // Before anything is compiled: a machine that cannot have the oracles should say so now.
    let oracles = if arguments.quick {
        None
    } else {
        Some(phase("oracles", oracles)?)
    };
    // Before the child is built, which embeds them.
    let left_out = match arguments.quick {
        true => None,
        false => phase("kernels", || kernels::for_ci(arguments.require_kernels))?,
    };
    if !arguments.no_lint {
        let mut clippy = process::cargo();
        clippy
            .args(["clippy", "--quiet", "--workspace", "--all-targets", "--"])
            .args(["--deny", "warnings"]);
        phase("lints", || process::run(&mut clippy))?;
    }
    // The binaries that ship, without the features that `tests` turns on.
    let mut shipped = process::cargo();
    shipped.args(["test", "--no-fail-fast"]);
    phase("what ships", || process::run(&mut shipped))?;
    if left_out.is_none() && !arguments.quick {
        phase("kernels on a played card", played::for_ci)?;
    }
    match &oracles {
        Some(environment) => {
            phase("through the programs", || everything_else(environment))?;
            let mut failing = failing_on_command(environment);
            phase("children that fail", || process::run(&mut failing))?;
            phase("chaos", || chaos::for_ci(&environment.model))?;
        }
        // Static checks of the repository need neither.
        None => {
            let mut tidy = process::cargo();
            tidy.args(["test", "-p", "worker-orcd-tests", "--test", "tidy"]);
            phase("tidy", || process::run(&mut tidy))?;
        }
    }
    let seconds = start.elapsed().as_secs();
    match left_out {
        None => println!("all of it passed in {seconds} s"),
        Some(why) => println!("all but the CUDA kernels passed in {seconds} s: {why}"),
    }
    Ok(())
}

/// Says how long it took, for whoever wants it shorter.
fn phase<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = run();
    println!("{name} took {} s", start.elapsed().as_secs());
    done
}

/// Python and model for the tests of real models; vocabularies of others; the clients of docs/clients.md.
struct Oracles {
    python: PathBuf,
    families: PathBuf,
    javascript: PathBuf,
    model: PathBuf,
}

fn oracles() -> Result<Oracles> {
    python::clients()?;
    Ok(Oracles {
        model: fetch_model::run()?,
        python: python::interpreter()?,
        families: python::families()?,
        javascript: javascript::folder()?,
    })
}

/// The tests that run real binaries and compare with other engines.
fn everything_else(oracles: &Oracles) -> Result<()> {
    let settings = [
        ("WORKER_ORCD_PYTHON", oracles.python.as_path()),
        ("WORKER_ORCD_JAVASCRIPT", &oracles.javascript),
        ("WORKER_ORCD_FAMILIES", &oracles.families),
        ("WORKER_ORCD_MODEL", &oracles.model),
    ];
    side_by_side::test("worker-orcd-tests", &settings)
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
            "played_faults",
            "--test",
            "escapes",
        ])
        .args(["--test", "endurance", "--bin", "endurance"])
        .args(["--test", "chaos", "--bin", "chaos"])
        .env("WORKER_ORCD_PYTHON", &oracles.python)
        .env("WORKER_ORCD_MODEL", &oracles.model);
    command
}
