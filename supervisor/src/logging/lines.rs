//! Format of an event as one line: a JSON object, or text.
//!
//! Text of a model file, a child or a client is a value. A value cannot end its line, begin another or control a
//! terminal: control characters, line separators and marks of writing direction are escaped in both formats. A value
//! has at most [`MAX_VALUE_BYTES`].

use serde_json::{Map, Value};
use std::fmt;
use std::fmt::Write as _;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use uuid::Uuid;
use worker_orcd_text::calendar::rfc3339;
use worker_orcd_text::printable::{escape, is_hazard};

/// Twice the longest line that is read from a child.
const MAX_VALUE_BYTES: usize = 8 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Json,
    Plain,
    /// Text with colours, for a terminal.
    Coloured,
}

#[derive(Debug)]
pub(super) struct Lines {
    style: Style,
    worker_id: Option<String>,
}

impl Lines {
    pub(super) fn new(style: Style, worker_id: Option<Uuid>) -> Self {
        Self {
            style,
            worker_id: worker_id.map(|id| id.to_string()),
        }
    }

    /// One line, with its newline.
    pub(super) fn line(&self, event: &Event<'_>, time: SystemTime) -> String {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(worker_id) = &self.worker_id {
            let worker_id = worker_id.as_str().into();
            fields.others.insert("worker_id".to_owned(), worker_id);
        }
        let level = *event.metadata().level();
        let time = rfc3339(time);
        match self.style {
            Style::Json => json(&time, level, &fields),
            Style::Plain => text(&time, level, &fields, &Paint::NONE),
            Style::Coloured => text(&time, level, &fields, &Paint::of(level)),
        }
    }
}

fn json(time: &str, level: Level, fields: &Fields) -> String {
    let mut line = format!(
        "{{\"timestamp\":\"{time}\",\"level\":\"{level}\",\"event\":{}",
        quoted(&fields.message),
    );
    for (name, value) in &fields.others {
        let value = match value {
            Value::String(text) => quoted(text),
            other => other.to_string(),
        };
        // Writing to a string does not fail.
        let _ = write!(line, ",{}:{value}", quoted(name));
    }
    line.push_str("}\n");
    line
}

fn text(time: &str, level: Level, fields: &Fields, paint: &Paint) -> String {
    let Paint {
        level: on,
        dim,
        off,
    } = paint;
    let event = word(&fields.message);
    let mut line = format!("{dim}{time}{off} {on}{level:>5}{off} {event}");
    for (name, value) in &fields.others {
        let value = match value {
            Value::String(text) => word(text),
            other => other.to_string(),
        };
        // Writing to a string does not fail.
        let _ = write!(line, " {dim}{name}={off}{value}");
    }
    line.push('\n');
    line
}

/// Escape sequences for parts of a line on a terminal.
struct Paint {
    level: &'static str,
    dim: &'static str,
    off: &'static str,
}

impl Paint {
    const NONE: Self = Self {
        level: "",
        dim: "",
        off: "",
    };

    fn of(level: Level) -> Self {
        let level = match level {
            Level::ERROR => "\u{1b}[31m",
            Level::WARN => "\u{1b}[33m",
            Level::INFO => "\u{1b}[32m",
            _ => "\u{1b}[34m",
        };
        Self {
            level,
            dim: "\u{1b}[2m",
            off: "\u{1b}[0m",
        }
    }
}

/// The text unchanged if it is unambiguous, else as a JSON string.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:+@,%#()".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// JSON string without control characters.
fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    if !json.contains(is_hazard) {
        return json;
    }
    escape(&json, |c| format!("\\u{:04x}", u32::from(c)))
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
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut cut = value.len().min(MAX_VALUE_BYTES);
        while !value.is_char_boundary(cut) {
            cut -= 1;
        }
        let mut text = value[..cut].to_owned();
        if cut < value.len() {
            let _ = write!(text, "… ({} bytes more)", value.len() - cut);
        }
        self.set(field, text.into());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use std::time::UNIX_EPOCH;
    use tracing::Subscriber;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    /// Keeps lines instead of writing them.
    struct Kept {
        lines: Lines,
        kept: Arc<Mutex<Vec<String>>>,
    }

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let line = self.lines.line(event, UNIX_EPOCH);
            self.kept.lock().unwrap().push(line);
        }
    }

    fn kept(style: Style, log: impl FnOnce()) -> Vec<String> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let lines = Lines {
            style,
            worker_id: Some("w".to_owned()),
        };
        let layer = Kept {
            lines,
            kept: Arc::clone(&kept),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        Arc::into_inner(kept).unwrap().into_inner().unwrap()
    }

    #[test]
    fn a_line_is_one_json_object_that_names_its_event_and_its_worker() {
        let lines = kept(Style::Json, || {
            tracing::info!(generation = 3, ok = true, reason = %"a \"b\"\n", none = None::<u64>, "x");
        });
        assert_eq!(
            lines,
            [
                "{\"timestamp\":\"1970-01-01T00:00:00.000Z\",\"level\":\"INFO\",\"event\":\"x\",\
              \"generation\":3,\"ok\":true,\"reason\":\"a \\\"b\\\"\\n\",\"worker_id\":\"w\"}\n"
            ]
        );
    }

    #[test]
    fn a_line_of_text_has_the_same_fields_and_colours_only_for_a_terminal() {
        let log = || tracing::warn!(device = "cuda:0", reason = "it is so", "x");
        assert_eq!(
            kept(Style::Plain, log),
            ["1970-01-01T00:00:00.000Z  WARN x device=cuda:0 reason=\"it is so\" worker_id=w\n"]
        );
        let coloured = &kept(Style::Coloured, log)[0];
        assert!(coloured.contains("\u{1b}[33m WARN"), "{coloured:?}");
    }

    /// A forged line, a cleared screen in seven and in eight bits, and a reversed direction.
    #[test]
    fn nothing_that_is_said_ends_its_line_or_reaches_a_terminal() {
        let hostile = "llama\n{\"event\":\"ready\"}\r\u{1b}[2J\u{9b}2J\u{202e}\u{2028}\u{7f}";
        for style in [Style::Json, Style::Plain] {
            let line = &kept(style, || tracing::info!(model = hostile, ?hostile, "x"))[0];
            let (line, rest) = line.split_at(line.len() - 1);
            assert_eq!(rest, "\n");
            assert!(!line.contains(is_hazard), "{line:?}");
        }
        let json = &kept(Style::Json, || tracing::info!(model = "a\u{9b}b", "x"))[0];
        let read: Value = serde_json::from_str(json).unwrap();
        assert_eq!(read["model"], "a\u{9b}b");
    }

    #[test]
    fn a_long_value_is_cut_and_says_so() {
        let long = "ä".repeat(MAX_VALUE_BYTES);
        let line = &kept(Style::Json, || tracing::info!(reason = long, "x"))[0];
        assert!(line.len() < MAX_VALUE_BYTES + 200);
        assert!(line.contains("bytes more)"), "{}", &line[line.len() - 60..]);
    }
}
