//! Log of a worker, line by line.

use crate::wait;
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Event that contains the address.
const LISTENING: &str = "listening";

/// Lines kept of a watched log.
const LAST_LINES: usize = 40;

/// Callback for each record, with the time at which it was read.
pub type Watch = Box<dyn FnMut(&Value, Instant) + Send>;

/// Log shared with the threads that read the worker's pipes.
#[derive(Clone)]
pub struct Log {
    /// Lines, with the time at which each was read.
    lines: Arc<Mutex<VecDeque<(Instant, String)>>>,
    /// Limit; older lines are dropped.
    kept_lines: usize,
    watch: Option<Arc<Mutex<Watch>>>,
    address: Arc<OnceLock<SocketAddr>>,
    held: Arc<AtomicBool>,
    /// Pipes that have not ended.
    open: Arc<AtomicUsize>,
}

impl Default for Log {
    /// Log without a limit.
    fn default() -> Self {
        Self {
            lines: Arc::default(),
            kept_lines: usize::MAX,
            watch: None,
            address: Arc::default(),
            held: Arc::default(),
            open: Arc::default(),
        }
    }
}

impl Log {
    /// Log of the last lines only, for the message of a failure; `watch` sees each record.
    #[must_use]
    pub fn watched(watch: Watch) -> Self {
        Self {
            kept_lines: LAST_LINES,
            watch: Some(Arc::new(Mutex::new(watch))),
            ..Self::default()
        }
    }

    /// Collects from `pipe` until it ends.
    pub fn follow(&self, pipe: impl Read + Send + 'static) {
        let log = self.clone();
        log.open.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                log.take(String::from_utf8_lossy(&line).into());
                while log.held.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            log.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    fn take(&self, line: String) {
        let now = Instant::now();
        // Measurements need the cores, so not every line is parsed.
        if self.watch.is_some() || line.contains(LISTENING) {
            let record = serde_json::from_str(&line).unwrap_or_default();
            self.note(&record, now);
        }
        let mut lines = self.lines.lock().expect("no holder panics");
        if lines.len() >= self.kept_lines {
            lines.pop_front();
        }
        lines.push_back((now, line));
    }

    fn note(&self, record: &Value, now: Instant) {
        let address = record["address"].as_str().and_then(|it| it.parse().ok());
        if let (Some(LISTENING), Some(address)) = (event_name(record), address) {
            // The first address is kept.
            let _ = self.address.set(address);
        }
        if let Some(watch) = &self.watch {
            watch.lock().expect("no holder panics")(record, now);
        }
    }

    /// Address from the log.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// Waits briefly for the end of the pipes: another process may hold them open.
    pub fn wait_end(&self) {
        let start = Instant::now();
        let has_ended = || self.open.load(Ordering::SeqCst) == 0;
        while !has_ended()
            && !self.held.load(Ordering::Relaxed)
            && start.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops reading and keeps the pipes open, like a stalled reader.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    pub fn release(&self) {
        self.held.store(false, Ordering::Relaxed);
    }

    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let lines = self.lines.lock().expect("no holder panics");
        lines.iter().map(|(_, text)| text.clone()).collect()
    }

    /// Last lines.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    #[must_use]
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// Lines that are JSON objects.
    #[must_use]
    pub fn records(&self) -> Vec<Value> {
        self.lines()
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Records of one event name, such as `ready`.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| event_name(record) == Some(name));
        records
    }

    /// Waits for the first record of this name.
    pub fn wait_for(&self, name: &str) -> Value {
        self.wait_for_many(name, 1).remove(0)
    }

    /// Waits for `count` records of this name.
    pub fn wait_for_many(&self, name: &str, count: usize) -> Vec<Value> {
        wait::until(name, || {
            let records = self.events(name);
            (records.len() >= count).then_some(records)
        })
    }

    /// First record of this name after `since`, and its time.
    #[must_use]
    pub fn next(&self, name: &str, since: Instant) -> Option<(Instant, Value)> {
        let lines = self.lines.lock().expect("no holder panics");
        // Search from the end: the record is recent.
        let recent = lines.iter().rev().take_while(|(at, _)| *at >= since);
        recent
            .filter_map(|(at, text)| Some((*at, serde_json::from_str::<Value>(text).ok()?)))
            .filter(|(_, record)| event_name(record) == Some(name))
            .last()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// Event name of a record.
#[must_use]
pub fn event_name(record: &Value) -> Option<&str> {
    let fields = record.get("fields").unwrap_or(record);
    fields
        .get("event")
        .or_else(|| fields.get("message"))?
        .as_str()
}
