//! What a worker wrote, line by line, as it wrote it.

use crate::wait;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shared with the threads that read the worker's pipes.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// With the moment at which each was read.
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
    held: Arc<AtomicBool>,
    /// Pipes that have not ended.
    open: Arc<AtomicUsize>,
}

impl Log {
    /// Collects from `pipe` until it ends.
    pub fn follow(&self, pipe: impl Read + Send + 'static) {
        let log = self.clone();
        log.open.fetch_add(1, Ordering::SeqCst);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                let line = (Instant::now(), String::from_utf8_lossy(&line).into());
                log.lines.lock().expect("no holder panics").push(line);
                while log.held.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            log.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Waits for the end of the pipes; not for long, because somebody else may hold them open.
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

    /// Reads nothing any more, and keeps the pipes open: the reader that stalls.
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

    #[must_use]
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The lines that are JSON objects.
    #[must_use]
    pub fn records(&self) -> Vec<Value> {
        self.lines()
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The records of one event name, such as `ready`.
    #[must_use]
    pub fn events(&self, name: &str) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| event_name(record) == Some(name));
        records
    }

    /// The first record of this name, once it has come.
    pub fn wait_for(&self, name: &str) -> Value {
        self.wait_for_many(name, 1).remove(0)
    }

    /// The records of this name, once there are so many.
    pub fn wait_for_many(&self, name: &str, count: usize) -> Vec<Value> {
        wait::until(name, || {
            let records = self.events(name);
            (records.len() >= count).then_some(records)
        })
    }

    /// The first record of this name that was read after `since`, and when.
    #[must_use]
    pub fn next(&self, name: &str, since: Instant) -> Option<(Instant, Value)> {
        let lines = self.lines.lock().expect("no holder panics");
        // From the end: what is looked for is new.
        let recent = lines.iter().rev().take_while(|(at, _)| *at >= since);
        recent
            .filter_map(|(at, text)| Some((*at, serde_json::from_str::<Value>(text).ok()?)))
            .filter(|(_, record)| event_name(record) == Some(name))
            .last()
    }
}

fn event_name(record: &Value) -> Option<&str> {
    let fields = record.get("fields").unwrap_or(record);
    fields
        .get("event")
        .or_else(|| fields.get("message"))?
        .as_str()
}
