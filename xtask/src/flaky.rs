//! `cargo xtask flaky`: repeats the test programs beside busy processes, to find flaky tests.
//!
//! The runs are counted in `bench/results/flaky.md` after each program, so a sitting continues where the previous one
//! stopped. The output of a failure is in `target/flaky/`.

mod report;

use self::report::Report;
use crate::bench::report::{commit, date, typed_command};
use crate::process::Running;
use crate::side_by_side::{self, Lints, Program};
use crate::{lanes, paths, test};
use anyhow::{Result, bail};
use clap::value_parser;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

#[derive(clap::Args)]
pub struct Arguments {
    /// Runs of each program, earlier sittings included.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Processes that keep the cores busy meanwhile.
    #[arg(long, default_value_t = 4)]
    load: u32,
    /// Programs that run beside each other, but for those that a check runs alone.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u8).range(1..))]
    at_once: u8,
    /// Only programs whose path contains one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Forget earlier runs of these programs.
    #[arg(long)]
    again: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(folder())?;
    let path = paths::bench_results().join("flaky.md");
    let oracles = test::oracles()?;
    let programs = side_by_side::build(&[], Lints::Denied)?;
    let is_chosen = |name: &str| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part))
    };
    let chosen: Vec<_> = programs.iter().filter(|it| is_chosen(&it.name())).collect();
    if chosen.is_empty() {
        bail!(
            "no test program has a path that contains {:?}",
            arguments.only
        );
    }
    let _busy = (0..arguments.load)
        .map(|_| Running::start(Command::new("sh").args(["-c", "while :; do :; done"])))
        .collect::<Result<Vec<_>>>()?;
    let mut report = Report::read(&path);
    if arguments.again {
        report.forget(is_chosen);
    }
    report.begin(&date()?, &commit()?, &typed_command());
    let report = Mutex::new(report);
    let settings = oracles.settings();
    let (alone, others): (Vec<&Program>, Vec<_>) =
        chosen.into_iter().partition(|it| it.runs_alone());
    for round in 0..arguments.rounds {
        for (programs, at_once) in [(&others, arguments.at_once), (&alone, 1)] {
            lanes::run(programs, at_once.into(), |program| {
                let name = program.name();
                if report.lock().expect("no holder panics").runs(&name) > round {
                    return Ok(());
                }
                let passed = once(program, round, &settings)?;
                let mut report = report.lock().expect("no holder panics");
                report.add(&name, passed);
                report.write(&path)
            })?;
        }
    }
    let report = report.into_inner().expect("no holder panics");
    let failed: Vec<_> = report
        .failed()
        .filter(|(name, ..)| is_chosen(name))
        .collect();
    for (name, passed, failed) in &failed {
        println!("{name}: failed {failed} of {} times", passed + failed);
    }
    match failed.len() {
        0 => Ok(()),
        count => bail!(
            "{count} programs failed; their output lies in {}",
            folder().display()
        ),
    }
}

/// Runs a program once; true if it passed.
fn once(program: &Program, round: u32, settings: &side_by_side::Settings) -> Result<bool> {
    let ended = program.run(settings)?;
    let outcome = if ended.passed { "passed" } else { "FAILED" };
    println!("round {}: {} {outcome}", round + 1, program.name());
    if !ended.passed {
        let name = program.name().replace('/', "-");
        fs::write(
            folder().join(format!("{name}.{}", round + 1)),
            &ended.output,
        )?;
    }
    Ok(ended.passed)
}

fn folder() -> PathBuf {
    paths::target().join("flaky")
}
