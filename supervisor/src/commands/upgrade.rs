//! `worker-orcd upgrade PID`: upgrades a running worker to the program that is on disk now.
//!
//! It sends SIGUSR2 and waits for the worker's report, which is in a memory file among the worker's descriptors. A user
//! that may read `/proc/PID/exe` may read it.

#![expect(clippy::disallowed_methods, reason = "the operator waits for it")]

use crate::commands::serve::upgrade::{REPORT_NAME, TAKEN_OVER, as_named};
use anyhow::{Context, Result, bail, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than a request's transmission and the start of the new program.
const PATIENCE: Duration = Duration::from_secs(60);

const GLANCE: Duration = Duration::from_millis(20);

/// Time without a program after which the process has ended. `/proc/PID/exe` is empty for a moment while a thread other
/// than the first calls `exec`, as in the rollback of a hanging upgrade.
const WITHOUT_PROGRAM: Duration = Duration::from_secs(1);

#[must_use]
pub fn command_line() -> Command {
    let pid = Arg::new("pid")
        .value_name("PID")
        .required(true)
        .value_parser(value_parser!(i32).range(1..))
        .help("PID of the worker; systemctl show --property=MainPID --value UNIT prints it");
    Command::new("upgrade")
        .about(
            "Replace the program of a running worker by the installed one, without losing a stream",
        )
        .arg(pid)
}

/// Prints the program that runs afterwards.
///
/// # Errors
/// If it is no worker, runs this program already, or refused the upgrade.
pub fn run(arguments: &ArgMatches) -> Result<()> {
    let pid = arguments.get_one::<i32>("pid").copied().unwrap_or_default();
    let (path, running) = program_of(pid)?;
    let is_worker = path
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().ends_with(b"worker-orcd"));
    ensure!(
        is_worker,
        "process {pid} is no worker-orcd: it runs {}",
        path.display()
    );
    let next = fs::metadata(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let next = (next.dev(), next.ino());
    ensure!(
        next != running,
        "process {pid} runs {} as it is already",
        path.display()
    );
    let before = report_of(pid);
    kill(Pid::from_raw(pid), Signal::SIGUSR2).with_context(|| format!("process {pid}"))?;
    let told_at = Instant::now();
    let mut seen_at = told_at;
    while told_at.elapsed() < PATIENCE {
        sleep(GLANCE);
        let running = match program_of(pid) {
            Ok((_, running)) => running,
            Err(_) if seen_at.elapsed() < WITHOUT_PROGRAM => continue,
            Err(error) => return Err(error.context("it has ended")),
        };
        seen_at = Instant::now();
        let Some(report) = report_of(pid).filter(|report| Some(report) != before.as_ref()) else {
            continue;
        };
        let outcome = report.lines().next().unwrap_or_default();
        if outcome == TAKEN_OVER && running == next {
            println!("process {pid} goes on as {}", path.display());
            return Ok(());
        }
        if outcome != TAKEN_OVER {
            bail!("process {pid} goes on as before: {outcome}");
        }
    }
    bail!(
        "process {pid} has not reported within {} s; its log says how far it is",
        PATIENCE.as_secs()
    )
}

/// Last upgrade report of a worker. `None`: there is none, or it is incomplete.
fn report_of(pid: i32) -> Option<String> {
    let name = format!("/memfd:{REPORT_NAME}");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_it = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().starts_with(&name)
    };
    let mut paths = descriptors.flatten().map(|entry| entry.path());
    let report = fs::read_to_string(paths.find(is_it)?).ok()?;
    (report.lines().count() == 2).then_some(report)
}

type File = (u64, u64);

/// Path from which a process was started, and its program file, which may be unlinked.
fn program_of(pid: i32) -> Result<(PathBuf, File)> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let reason = || format!("process {pid} cannot be looked at");
    let file = fs::metadata(&link).with_context(reason)?;
    let path = fs::read_link(&link).with_context(reason)?;
    Ok((as_named(&path), (file.dev(), file.ino())))
}
