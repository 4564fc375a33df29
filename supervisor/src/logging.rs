//! The log: one line an event, JSON for machines, text for people, on standard error.
//!
//! An event is named by its message (`startup`, `ready`, `execute_end`, `child_death`, …); in
//! JSON the name is under `event`, and every line says which worker wrote it. Prompts and
//! completions appear as length and SHA-256, never as text.

use crate::calendar::rfc3339;
use crate::config::LogFormat;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use uuid::Uuid;

/// Chooses what is logged, in `tracing`'s own words, such as `debug` or `worker_orcd::http=trace`.
const FILTER_VARIABLE: &str = "WORKER_ORCD_LOG";

/// Starts the log of this process. A second call changes nothing.
pub fn start(format: LogFormat, worker_id: Option<Uuid>) {
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    // Only a second start can fail, and the first one's log goes on.
    let _ = if json {
        let worker_id = worker_id.map(|id| id.to_string());
        registry.with(JsonLines { worker_id }).try_init()
    } else {
        let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        registry.with(text.with_target(false)).try_init()
    };
}

struct JsonLines {
    worker_id: Option<String>,
}

impl<S: Subscriber> Layer<S> for JsonLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let line = self.line(event, SystemTime::now());
        // A log that nobody takes is no reason to stop serving.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

impl JsonLines {
    fn line(&self, event: &Event<'_>, time: SystemTime) -> String {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level();
        let mut line = format!(
            "{{\"timestamp\":\"{}\",\"level\":\"{level}\",\"event\":{}",
            rfc3339(time),
            Value::from(fields.message),
        );
        if let Some(worker_id) = &self.worker_id {
            fields
                .others
                .insert("worker_id".to_owned(), worker_id.as_str().into());
        }
        for (name, value) in &fields.others {
            // Writing to a string does not fail.
            let _ = write!(line, ",{}:{value}", Value::from(name.as_str()));
        }
        line.push_str("}\n");
        line
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }
}

/// How a text appears in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    pub chars: usize,
    pub sha256: String,
}

impl Fingerprint {
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self {
            chars: text.chars().count(),
            sha256: hex(&Sha256::digest(text)),
        }
    }
}

#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::time::UNIX_EPOCH;

    /// Keeps lines instead of writing them.
    struct Kept {
        lines: JsonLines,
        kept: Arc<Mutex<Vec<String>>>,
    }

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            self.kept
                .lock()
                .unwrap()
                .push(self.lines.line(event, UNIX_EPOCH));
        }
    }

    #[test]
    fn a_line_is_one_json_object_that_names_its_event_and_its_worker() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let lines = JsonLines {
            worker_id: Some("w".to_owned()),
        };
        let layer = Kept {
            lines,
            kept: Arc::clone(&kept),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(generation = 3, ok = true, reason = %"a \"b\"\n", none = None::<u64>, "x");
        });
        let lines = kept.lock().unwrap();
        assert_eq!(
            lines[0],
            "{\"timestamp\":\"1970-01-01T00:00:00.000Z\",\"level\":\"INFO\",\"event\":\"x\",\
             \"generation\":3,\"ok\":true,\"reason\":\"a \\\"b\\\"\\n\",\"worker_id\":\"w\"}\n"
        );
    }
}
