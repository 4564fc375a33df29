//! `cargo xtask verify MODEL`: a model file beside llama.cpp, and its answers over HTTP under disturbances.
//!
//! `tests/oracle/verify.py` compares and prints a table. Here are its surroundings: the Python environment, the built
//! programs, the file of a model's name, the devices of this machine, and the report.

use crate::bench::report;
use crate::process::{self, Running};
use crate::{kernels, paths, python};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use worker_orcd_harness::launch::AT_A_FREE_PORT;
use worker_orcd_harness::{Launched, Log};

#[derive(clap::Args)]
pub struct Arguments {
    /// A GGUF file, or a name, as for `worker-orcd --model`; a missing model is downloaded.
    model: String,
    /// cpu or cuda:N; may be repeated [default: cpu, and cuda:0 if it is usable]
    #[arg(long)]
    device: Vec<String>,
    /// Compute threads of both engines [default: all cores]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
    /// Write the table here, with versions, file and machine, for an issue.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// Programs that the script runs, built with one set of features.
const PROGRAMS: [&str; 4] = [
    "orcd-logits",
    "orcd-tokenize",
    "tested-worker-orcd",
    "tested-worker-orcd-gpu",
];

/// 1 min: a worker without a model to download logs its start before it loads anything.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

pub fn run(arguments: &Arguments) -> Result<()> {
    let python = python::interpreter()?;
    kernels::for_this_machine()?;
    build()?;
    let model = file_of(&arguments.model)?;
    let devices = devices(&arguments.device)?;
    let mut compare = Command::new(python);
    compare
        .arg(paths::oracle_script("verify.py"))
        .arg(&model)
        .arg("--programs")
        .arg(paths::target().join("release"));
    for device in &devices {
        compare.args(["--device", &device.selector]);
    }
    if let Some(threads) = arguments.threads {
        compare.args(["--threads", &threads.to_string()]);
    }
    let (table, all_hold) = table(&mut compare)?;
    if let Some(path) = &arguments.report {
        let head = report::head("verify", &report::typed_command())?;
        let named: String = devices.iter().map(Device::line).collect();
        let version = env!("CARGO_PKG_VERSION");
        fs::write(path, format!("{head}- version: {version}\n{named}{table}"))
            .with_context(|| format!("{} cannot be written", path.display()))?;
        println!("written to {}", path.display());
    }
    ensure!(
        all_hold,
        "a row does not hold: attach the report (--report FILE) to an issue"
    );
    Ok(())
}

fn build() -> Result<()> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "worker-orcd-tests"]);
    for name in PROGRAMS {
        command.args(["--bin", name]);
    }
    process::run(&mut command)
}

/// Path of a model's file, which the worker finds or downloads if this is a name.
fn file_of(model: &str) -> Result<PathBuf> {
    if Path::new(model).is_file() {
        return Ok(PathBuf::from(model));
    }
    let not_here = match file_of_worker(model) {
        Ok(path) => return Ok(path),
        Err(error) => error,
    };
    let output = worker(&["pull", model]).stderr(Stdio::inherit()).output()?;
    ensure!(
        output.status.success(),
        "{model} was neither found nor downloaded:\n{not_here:#}"
    );
    let path = String::from_utf8_lossy(&output.stdout);
    Ok(PathBuf::from(path.trim()))
}

/// File that a worker would load without a download.
fn file_of_worker(model: &str) -> Result<PathBuf> {
    let mut command = worker(&["--offline", "--device", "cpu", "--model", model]);
    command.args(AT_A_FREE_PORT);
    let launched = Launched::start(&mut command, Log::default())?;
    let startup = || launched.log.events("startup").pop();
    let record = launched.wait(STARTS_WITHIN, "to find its model", startup)?;
    let path = record["model"].as_str().context("its start has a model")?;
    Ok(PathBuf::from(path))
}

fn worker(arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::built("release", "tested-worker-orcd"));
    command
        .args(arguments)
        .arg("--child-binary")
        .arg(child_program());
    command
}

fn child_program() -> PathBuf {
    paths::built("release", "tested-worker-orcd-gpu")
}

struct Device {
    selector: String,
    /// Name of a card.
    name: Option<String>,
}

impl Device {
    fn line(&self) -> String {
        let name = self.name.as_ref();
        name.map_or_else(String::new, |name| format!("- {}: {name}\n", self.selector))
    }
}

/// The requested devices; without a request the CPU, and the first card if it is usable.
fn devices(requested: &[String]) -> Result<Vec<Device>> {
    let of = |selector: &str, name| Device {
        selector: selector.to_owned(),
        name,
    };
    if requested.is_empty() {
        let card = card("0").ok().map(|name| of("cuda:0", Some(name)));
        return Ok([of("cpu", None)].into_iter().chain(card).collect());
    }
    let each = requested.iter().map(|selector| {
        Ok(match selector.strip_prefix("cuda:") {
            Some(ordinal) => of(selector, Some(card(ordinal)?)),
            None if selector == "cpu" => of(selector, None),
            None => bail!("--device {selector}: it is neither cpu nor cuda:N"),
        })
    });
    each.collect()
}

/// Name of a usable card, from the child's program.
fn card(ordinal: &str) -> Result<String> {
    let output = Command::new(child_program())
        .args(["--probe", ordinal])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "--device cuda:{ordinal}: {said}");
    Ok(said)
}

/// Runs the script and shows its output while it grows. Returns the output, and whether all rows hold.
fn table(compare: &mut Command) -> Result<(String, bool)> {
    println!("$ {}", process::shown(compare));
    let mut running = Running::start(compare.stdout(Stdio::piped()))?;
    let stdout = running.child().stdout.take().context("it is piped")?;
    let mut table = String::new();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        table.push_str(&line);
        table.push('\n');
    }
    let status = running.wait()?;
    ensure!(
        matches!(status.code(), Some(0 | 1)) && !table.is_empty(),
        "verify.py ended with {status}"
    );
    Ok((table, status.success()))
}
