//! `cargo xtask test`: checks that every change must pass, fastest failures first.

mod deep;

use crate::side_by_side::{self, Lints, Program};
use crate::{chaos, fetch_model, javascript, kernels, played, process, python};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

#[derive(clap::Args)]
pub struct Arguments {
    /// Only formatting, lints and the tests that need neither Python, nor Node, nor a model.
    #[arg(long, conflicts_with = "deep")]
    quick: bool,
    /// Then what takes long: kernels for every architecture, long and fresh runs of chaos, siege, Schemathesis and endurance.
    #[arg(long)]
    deep: bool,
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
    let left_out = match arguments.quick {
        true => {
            quick(arguments)?;
            None
        }
        false => whole(arguments)?,
    };
    let seconds = start.elapsed().as_secs();
    match left_out {
        None => println!("all of it passed in {seconds} s"),
        Some(why) => println!("all but the CUDA kernels passed in {seconds} s: {why}"),
    }
    Ok(())
}

/// Runs everything. Returns the reason if the kernels were left out.
fn whole(arguments: &Arguments) -> Result<Option<String>> {
    let (oracles, compiled) = thread::scope(|scope| {
        // Their installation mostly waits.
        let oracles = scope.spawn(|| phase("oracles", oracles));
        let compiled = compiled(arguments);
        (oracles.join().expect("it does not panic"), compiled)
    });
    let (oracles, (mut programs, left_out)) = (oracles?, compiled?);
    if left_out.is_none() {
        // First, because they take longest.
        programs.splice(0..0, played::for_ci(&programs)?);
    }
    let settings = oracles.settings();
    phase("tests", || side_by_side::run(&programs, &settings))?;
    phase("chaos", || chaos::for_ci(&oracles.model))?;
    if arguments.deep {
        deep::run(&programs, &oracles)?;
    }
    Ok(left_out)
}

/// Builds the test programs. Also returns the reason if the kernels were left out.
fn compiled(arguments: &Arguments) -> Result<(Vec<Program>, Option<String>)> {
    // The child embeds them.
    let left_out = phase("kernels", || {
        kernels::for_ci(arguments.require_kernels, arguments.deep)
    })?;
    let programs = phase("build", || side_by_side::build(&[], lints(arguments)))?;
    if !arguments.no_lint {
        phase("lints of what ships", lints_of_what_ships)?;
    }
    Ok((programs, left_out))
}

fn lints(arguments: &Arguments) -> Lints {
    match arguments.no_lint {
        true => Lints::Off,
        false => Lints::Denied,
    }
}

/// Lints released packages without the features that `tests` turns on, of their own and of dependencies.
fn lints_of_what_ships() -> Result<()> {
    let mut clippy = process::cargo();
    clippy
        .args(["clippy", "--quiet", "--lib", "--bins", "--examples"])
        .args(["--", "--deny", "warnings"]);
    process::run(&mut clippy)
}

/// Runs unit tests, and the static checks of the repository.
fn quick(arguments: &Arguments) -> Result<()> {
    let mut selection: Vec<_> = ["--lib", "--bins", "--test", "tidy"]
        .map(str::to_owned)
        .into();
    for name in tests_beside_sources()? {
        selection.extend(["--test".to_owned(), name]);
    }
    let programs = phase("build", || {
        side_by_side::build(&selection, lints(arguments))
    })?;
    phase("tests", || side_by_side::run(&programs, &[]))
}

/// Test programs of all packages but `tests`.
fn tests_beside_sources() -> Result<Vec<String>> {
    let mut metadata = process::cargo();
    metadata.args(["metadata", "--format-version", "1", "--no-deps"]);
    let metadata: Value = serde_json::from_str(&process::output(&mut metadata)?)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    let others = packages
        .iter()
        .filter(|it| it["name"] != "worker-orcd-tests");
    let targets = others.filter_map(|it| it["targets"].as_array()).flatten();
    let tests = targets.filter(|target| target["kind"][0] == "test");
    Ok(tests
        .filter_map(|it| it["name"].as_str())
        .map(str::to_owned)
        .collect())
}

/// Runs a phase and prints its duration.
fn phase<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let done = run();
    println!("{name} took {} s", start.elapsed().as_secs());
    done
}

/// Python and model for the tests of real models; vocabularies of others; clients of docs/guide/clients.md.
pub struct Oracles {
    python: PathBuf,
    families: PathBuf,
    javascript: PathBuf,
    model: PathBuf,
}

/// # Errors
/// One of them is unavailable.
pub fn oracles() -> Result<Oracles> {
    python::clients()?;
    Ok(Oracles {
        model: fetch_model::run()?,
        python: python::interpreter()?,
        families: python::families()?,
        javascript: javascript::folder()?,
    })
}

impl Oracles {
    pub fn settings(&self) -> [(&str, &Path); 4] {
        [
            ("WORKER_ORCD_PYTHON", self.python.as_path()),
            ("WORKER_ORCD_JAVASCRIPT", &self.javascript),
            ("WORKER_ORCD_FAMILIES", &self.families),
            ("WORKER_ORCD_MODEL", &self.model),
        ]
    }
}
