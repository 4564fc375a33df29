//! Log on standard error: one line for each event, JSON or text.
//!
//! The message is the event's name (`startup`, `ready`, `execute_end`, `child_death`, …). In JSON the name is in
//! `event`, and every line has the worker's id. Prompts and completions appear as length and SHA-256, never as text.
//!
//! * [`lines`]: formats an event as a line, with control characters of values escaped. [`queue`]: decouples the program
//!   from a slow reader.
//!
//! Deliberately absent: other writers to standard error. A panic is an event as well.

#![expect(clippy::disallowed_methods, reason = "what a log line is stamped with")]

mod lines;
mod queue;

use lines::{Lines, Style};
use queue::Queue;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;
use worker_orcd_text::hex::hex;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Text,
    /// Text on a terminal, else JSON.
    Auto,
}

/// Modules of the engine's crate that a filter may name as modules of this program.
const MODULES_OF_THE_ENGINE: [&str; 7] = [
    "child",
    "crash",
    "driver",
    "engine",
    "handoff",
    "interpreter",
    "nvml",
];

/// Log of this process, once started.
static RUNNING: OnceLock<Running> = OnceLock::new();

struct Running {
    style: Style,
    queue: Arc<Queue>,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Starts the log of this process, with a panic hook. A second call has no effect.
///
/// # Errors
/// If the writer thread cannot start.
pub(crate) fn start(format: LogFormat, level: &str, worker_id: Option<Uuid>) -> io::Result<()> {
    let stderr = io::stderr();
    let style = match (format, stderr.is_terminal()) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => Style::Json,
        (LogFormat::Text, false) => Style::Plain,
        (LogFormat::Text | LogFormat::Auto, true) => Style::Coloured,
    };
    // A separate descriptor: std's lock on standard error could be held for as long as the reader stalls.
    let file = File::from(stderr.as_fd().try_clone_to_owned()?);
    let queue = queue::start(file, |count| tracing::warn!(count, "log_lines_dropped"))?;
    let filter = parse_level(level).unwrap_or_else(|_| EnvFilter::new("info"));
    let (filter, handle) = reload::Layer::new(filter);
    let writer = Writer {
        lines: Lines::new(style, worker_id),
        queue: Arc::clone(&queue),
    };
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(writer)
        .try_init();
    // Only a second start can fail; the first log continues.
    if started.is_ok() {
        let filter = handle;
        let running = Running {
            style,
            queue,
            filter,
        };
        let _ = RUNNING.set(running);
        std::panic::set_hook(Box::new(log_panic));
    }
    Ok(())
}

/// Changes the log level.
///
/// # Errors
/// If `level` is invalid; the level stays as it was.
pub(crate) fn reload(level: &str) -> Result<(), String> {
    let filter = parse_level(level)?;
    match RUNNING.get() {
        Some(running) => running.filter.reload(filter).map_err(|it| it.to_string()),
        None => Ok(()),
    }
}

/// Parses a level, or a filter of `tracing` such as `info,worker_orcd::http=trace`.
///
/// # Errors
/// If it is neither. `tracing` would read an unknown word as the name of a module.
pub(crate) fn parse_level(text: &str) -> Result<EnvFilter, String> {
    let wrong = text
        .split(',')
        .map(str::trim)
        .find(|word| !word.contains(['=', '[']) && !is_level(word));
    if let Some(word) = wrong {
        return Err(format!(
            "{word:?} is neither error, warn, info, debug, trace nor off"
        ));
    }
    EnvFilter::try_new(with_crates(text)).map_err(|error| error.to_string())
}

/// Filter in which a module of the engine has the path of its crate. The path is the target of its events.
fn with_crates(filter: &str) -> String {
    let modules = MODULES_OF_THE_ENGINE.iter();
    modules.fold(filter.to_owned(), |filter, module| {
        let named = format!("worker_orcd::{module}");
        filter.replace(&named, &format!("worker_orcd_engine::{module}"))
    })
}

/// `tracing` also accepts an empty text.
fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

/// Waits until the last lines are written, for at most `patience`.
pub(crate) fn settle(patience: Duration) {
    if let Some(running) = RUNNING.get() {
        running.queue.settle(patience);
    }
}

/// Prints a text if the log is text on a terminal.
pub(crate) fn print_on_terminal(text: &str) {
    let running = RUNNING.get().filter(|it| it.style == Style::Coloured);
    if let Some(running) = running {
        running.queue.push(format!("{text}\n").as_bytes());
    }
}

/// Dropped lines: the queue was full, or the write failed.
#[must_use]
pub(crate) fn dropped_lines() -> u64 {
    RUNNING.get().map_or(0, |running| running.queue.dropped())
}

struct Writer {
    lines: Lines,
    queue: Arc<Queue>,
}

impl<S: Subscriber> Layer<S> for Writer {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let line = self.lines.line(event, SystemTime::now());
        self.queue.push(line.as_bytes());
    }
}

/// Logs a panic. Replaces std's hook, which would block on a stalled reader.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = std::backtrace::Backtrace::capture();
    let captured = backtrace.status() == std::backtrace::BacktraceStatus::Captured;
    let payload = panic.payload();
    let reason = payload.downcast_ref::<&str>().copied();
    let reason = reason.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        reason,
        location = panic.location().map(ToString::to_string),
        thread = std::thread::current().name(),
        backtrace = captured.then(|| backtrace.to_string()),
        "panic"
    );
}

/// Form of a text in the log: length and hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextDigest {
    pub chars: usize,
    pub sha256: String,
}

impl TextDigest {
    #[must_use]
    pub(crate) fn of(text: &str) -> Self {
        Self {
            chars: text.chars().count(),
            sha256: hex(&Sha256::digest(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_level_or_a_directive_and_a_misspelt_one_is_neither() {
        for good in [
            "info",
            "OFF",
            "warn,worker_orcd::http=trace",
            "worker_orcd=debug",
        ] {
            assert!(parse_level(good).is_ok(), "{good}");
        }
        for bad in ["infoo", "", "warn,worker_orcd", "worker_orcd=loud"] {
            assert!(parse_level(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_module_of_the_engine_may_be_named_as_one_of_the_program() {
        let filter = parse_level("info,worker_orcd::driver::words=debug").unwrap();
        let of_its_crate = "worker_orcd_engine::driver::words=debug,info";
        assert_eq!(filter.to_string(), of_its_crate);
        let filter = parse_level("info,worker_orcd::http=trace,worker_orcd=debug").unwrap();
        let as_written = "worker_orcd::http=trace,worker_orcd=debug,info";
        assert_eq!(filter.to_string(), as_written);
    }
}
