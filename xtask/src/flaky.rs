//! `cargo xtask flaky`: the test programs again and again beside busy processes, to find tests that fail now and then.
//!
//! What was done is written after each program to `target/flaky/done.json`, so that a run that was stopped goes on where it was;
//! the output of each failure lies beside it.

use crate::process::Running;
use crate::side_by_side::{self, Program};
use crate::{lanes, paths, test};
use anyhow::{Result, bail};
use clap::value_parser;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

#[derive(clap::Args)]
pub struct Arguments {
    /// Runs of each program.
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
    /// Forget what earlier runs have done.
    #[arg(long)]
    again: bool,
}

/// By program, the rounds that passed and that failed.
type Done = BTreeMap<String, [u32; 2]>;

pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = folder();
    if arguments.again && folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let oracles = test::oracles()?;
    let programs = side_by_side::build(&[])?;
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
    let done = Mutex::new(read()?);
    let settings = oracles.settings();
    let (alone, others): (Vec<&Program>, Vec<_>) =
        chosen.into_iter().partition(|it| it.runs_alone());
    for round in 0..arguments.rounds {
        for (programs, at_once) in [(&others, arguments.at_once), (&alone, 1)] {
            lanes::run(programs, at_once.into(), |program| {
                let runs = |done: &Done| done.get(&program.name()).map_or(0, |it| it.iter().sum());
                if runs(&done.lock().expect("no holder panics")) > round {
                    return Ok(());
                }
                let failed = !once(program, round, &settings)?;
                let mut done = done.lock().expect("no holder panics");
                done.entry(program.name()).or_default()[usize::from(failed)] += 1;
                fs::write(folder.join("done.json"), serde_json::to_vec_pretty(&*done)?)?;
                Ok(())
            })?;
        }
    }
    let done = done.into_inner().expect("no holder panics");
    let chosen = done.iter().filter(|(name, _)| is_chosen(name));
    let failed: Vec<_> = chosen.filter(|(_, [_, failed])| *failed > 0).collect();
    for (name, [passed, failed]) in &failed {
        println!("{name}: failed {failed} of {} times", passed + failed);
    }
    match failed.len() {
        0 => Ok(()),
        count => bail!(
            "{count} programs failed; their output lies in {}",
            folder.display()
        ),
    }
}

/// Whether it passed.
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

fn read() -> Result<Done> {
    match fs::read(folder().join("done.json")) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(_) => Ok(Done::new()),
    }
}

fn folder() -> PathBuf {
    paths::target().join("flaky")
}
