//! `worker-orcd top`: status of a running worker, as a refreshed screen, or once as text.
//!
//! ```text
//! polling thread: /health, /metrics, /crashes ─→ watch: last answer, rates, silence ─→ view: text
//!                                                                  screen: a terminal ←─┴─→ plain text
//! ```
//!
//! It continues while the worker does not answer: the worker may be restarted or replaced meanwhile.
//!
//! Deliberately absent: anything that would change the worker, and figures that the worker does not report.

#![expect(
    clippy::disallowed_methods,
    reason = "silence is stamped with the time of day"
)]

mod asked;
mod figures;
mod screen;
mod sections;
mod view;
mod watch;

use crate::remote::{self, Remote};
use crate::units;
use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, SystemTime};
use tokio::runtime::Runtime;
use watch::Watch;
use worker_orcd_text::printable::printable;

/// Timeout of a wait for a key, before new answers and signals are handled.
const GLANCE: Duration = Duration::from_millis(200);

#[must_use]
pub fn command_line() -> Command {
    let [url, key] = remote::arguments();
    Command::new("top")
        .about("Watch a running worker: state, load, memory, deaths")
        .after_help(
            "q, Esc and Ctrl-C end it. With --once the exit code is 0 if the worker is healthy, else 1.\n\
             p50 and p99 are bounds under which so many waits for tokens lie, of all since the worker's start.",
        )
        .arg(url)
        .arg(key)
        .arg(
            Arg::new("admin-socket")
                .long("admin-socket")
                .value_name("PATH")
                .value_hint(ValueHint::FilePath)
                .conflicts_with_all(["url", "api-key-file"])
                .help("Ask at the worker's --admin-socket, which needs no key"),
        )
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("SECONDS")
                .default_value("1")
                .value_parser(interval)
                .help("Time between two updates"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .conflicts_with("interval")
                .help("Print once as text and exit [default if stdout is not a terminal]"),
        )
}

fn interval(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    let interval = units::duration(text)?;
    if bounds.contains(&interval) {
        Ok(interval)
    } else {
        Err("must be from 0.1 to 3600 seconds".to_owned())
    }
}

/// Shows the status, refreshed or once. Returns a failure if it cannot begin, or if it prints once and the worker is
/// unhealthy.
#[must_use]
pub fn run(arguments: &ArgMatches) -> ExitCode {
    let is_once = arguments.get_flag("once");
    let is_terminal = io::stdout().is_terminal();
    if !is_once && !is_terminal {
        eprintln!("stdout is not a terminal: printing once, as with --once");
    }
    let outcome = match is_once || !is_terminal {
        true => once(arguments),
        false => live(arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("{}", printable(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}

fn begin(arguments: &ArgMatches) -> Result<(Runtime, Remote)> {
    let remote = match arguments.get_one::<String>("admin-socket") {
        Some(path) => Remote::at_admin_socket(&PathBuf::from(path)),
        None => Remote::new(arguments),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok((runtime, remote?))
}

fn once(arguments: &ArgMatches) -> Result<ExitCode> {
    let (runtime, remote) = begin(arguments)?;
    let mut watch = Watch::new(remote.name());
    watch.take(runtime.block_on(asked::ask(&remote)), SystemTime::now());
    let view = watch.view();
    io::stdout().write_all(view.to_string().as_bytes())?;
    Ok(match view.is_healthy() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn live(arguments: &ArgMatches) -> Result<()> {
    let (runtime, remote) = begin(arguments)?;
    let interval = arguments.get_one("interval").copied().unwrap_or_default();
    let told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
    }
    let watch = Watch::new(remote.name());
    let (sender, answers) = mpsc::channel();
    std::thread::Builder::new()
        .name("asking".to_owned())
        .spawn(move || keep_asking(&runtime, &remote, interval, &sender))?;
    let shown = ratatui::try_init()
        .and_then(|mut terminal| show(&mut terminal, watch, &answers, &told_to_end));
    // Restores the terminal also after an error.
    let restored = ratatui::try_restore();
    shown.and(restored).context("the terminal")
}

/// Polls on a thread: a worker that does not answer blocks no key.
fn keep_asking(
    runtime: &Runtime,
    remote: &Remote,
    interval: Duration,
    sender: &Sender<asked::Outcome>,
) {
    while sender.send(runtime.block_on(asked::ask(remote))).is_ok() {
        std::thread::sleep(interval);
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    mut watch: Watch,
    answers: &Receiver<asked::Outcome>,
    told_to_end: &AtomicBool,
) -> io::Result<()> {
    while !told_to_end.load(Ordering::Relaxed) {
        for answer in answers.try_iter() {
            watch.take(answer, SystemTime::now());
        }
        let view = watch.view();
        terminal.draw(|frame| screen::draw(&view, frame))?;
        if event::poll(GLANCE)? && is_end(&event::read()?) {
            break;
        }
    }
    Ok(())
}

fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event
    else {
        return false;
    };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}
