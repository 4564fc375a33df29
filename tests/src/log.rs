//! What a worker wrote, line by line, as it wrote it.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex};

/// Shared with the threads that read the worker's pipes.
#[derive(Debug, Clone, Default)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
}

impl Log {
    /// Collects from `pipe` until it ends; a grandchild may keep it open for longer than the
    /// worker lives, so nobody waits for this thread.
    pub fn follow(&self, pipe: impl Read + Send + 'static) {
        let log = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { return };
                log.lines
                    .lock()
                    .expect("no holder panics")
                    .push(String::from_utf8_lossy(&line).into());
            }
        });
    }

    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no holder panics").clone()
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
}

fn event_name(record: &Value) -> Option<&str> {
    let fields = record.get("fields").unwrap_or(record);
    fields
        .get("event")
        .or_else(|| fields.get("message"))?
        .as_str()
}
