//! `cargo xtask flaky`: the test programs again and again beside busy processes, to find tests that fail now and then.
//!
//! What was done is written after each program to `target/flaky/done.json`, so that a run that was stopped goes on where it was;
//! the output of each failure lies beside it.

use crate::process::Running;
use crate::side_by_side::{self, Program};
use crate::{paths, test};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

#[derive(clap::Args)]
pub struct Arguments {
    /// Runs of each program.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Processes that keep the cores busy meanwhile.
    #[arg(long, default_value_t = 4)]
    load: u32,
    /// Programs that run beside each other.
    #[arg(long, default_value_t = 2)]
    at_once: usize,
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
    let _busy = (0..arguments.load)
        .map(|_| Running::start(Command::new("sh").args(["-c", "while :; do :; done"])))
        .collect::<Result<Vec<_>>>()?;
    let runs = (0..arguments.rounds).flat_map(|round| chosen.iter().map(move |it| (round, it)));
    let (left, done) = (Mutex::new(runs), Mutex::new(read()?));
    let lane = || -> Result<()> {
        loop {
            let next = left.lock().expect("no holder panics").next();
            let Some((round, program)) = next else {
                return Ok(());
            };
            let before = |done: &Done| done.get(&program.name()).map_or(0, |it| it.iter().sum());
            if before(&done.lock().expect("no holder panics")) > round {
                continue;
            }
            let failed = !once(program, round, &oracles.settings())?;
            let mut done = done.lock().expect("no holder panics");
            done.entry(program.name()).or_default()[usize::from(failed)] += 1;
            fs::write(folder.join("done.json"), serde_json::to_vec_pretty(&*done)?)?;
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..arguments.at_once).map(|_| scope.spawn(lane)).collect();
        let mut lanes = lanes.into_iter();
        lanes.try_for_each(|it| it.join().expect("a lane does not panic"))
    })?;
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
