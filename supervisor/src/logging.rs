//! The log: one line an event, JSON for machines, text for people, on standard error.
//!
//! An event is named by its message (`startup`, `ready`, `execute_end`, `child_death`, …); in
//! JSON the name is under `event`, and every line says which worker wrote it. Prompts and
//! completions appear as length and SHA-256, never as text.
//!
//! * [`lines`] turns an event into its line, in which nothing that a stranger said is a control
//!   character; [`queue`] is what stands between whoever logs and a reader who may not read.
//!
//! Deliberately absent: writing to standard error by anybody else. What panics is an event as well.

#![expect(clippy::disallowed_methods, reason = "what a log line is stamped with")]

mod lines;
mod queue;

use crate::hex::hex;
pub(crate) use lines::printable;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Text,
    /// Text where a person is looking.
    Auto,
}

/// The log of this process, once it was started.
static RUNNING: OnceLock<Running> = OnceLock::new();

struct Running {
    style: Style,
    queue: Arc<Queue>,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Starts the log of this process, panics included. A second call changes nothing.
///
/// # Errors
/// When the thread that writes cannot be made.
pub(crate) fn start(format: LogFormat, level: &str, worker_id: Option<Uuid>) -> io::Result<()> {
    let stderr = io::stderr();
    let style = match (format, stderr.is_terminal()) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => Style::Json,
        (LogFormat::Text, false) => Style::Plain,
        (LogFormat::Text | LogFormat::Auto, true) => Style::Coloured,
    };
    // Its own descriptor: std's lock on standard error would be held for as long as nobody reads.
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
    // Only a second start can fail, and the first one's log goes on.
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

/// Logs at another level from now on.
///
/// # Errors
/// When `level` is none; the log goes on as it was.
pub(crate) fn reload(level: &str) -> Result<(), String> {
    let filter = parse_level(level)?;
    match RUNNING.get() {
        Some(running) => running.filter.reload(filter).map_err(|it| it.to_string()),
        None => Ok(()),
    }
}

/// A level, or `tracing`'s own words, such as `info,worker_orcd::http=trace`.
///
/// # Errors
/// When it is neither. A word that is no level would be taken for a module that nobody has.
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
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}

/// The empty word is one for `tracing`.
fn is_level(word: &str) -> bool {
    !word.is_empty() && word.parse::<LevelFilter>().is_ok()
}

/// Gives the last lines `patience` to be written; whoever reads no more misses them.
pub(crate) fn settle(patience: Duration) {
    if let Some(running) = RUNNING.get() {
        running.queue.settle(patience);
    }
}

/// Says something to a person who looks at the log on a terminal, and to nobody else.
pub(crate) fn tell_a_person(text: &str) {
    let running = RUNNING.get().filter(|it| it.style == Style::Coloured);
    if let Some(running) = running {
        running.queue.push(format!("{text}\n").as_bytes());
    }
}

/// Lines that nobody took: there was no room for them, or they could not be written.
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

/// Instead of std's own words, which would wait for whoever reads standard error.
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

/// The form in which a text appears in the log: length and hash.
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
}
