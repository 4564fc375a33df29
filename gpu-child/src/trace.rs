//! The logits trace: one JSON line for each sampled token, flushed line by line, so that a killed child's results stay
//! available.
//!
//! | field | |
//! |---|---|
//! | `ts` | seconds since 1970 |
//! | `team` | `worker-orcd` |
//! | `request` | the supervisor's number for the request |
//! | `checkpoint` | `logits`: before penalties and temperature |
//! | `token_idx` | index of the token being sampled in its sequence, prompt included |
//! | `dtype`, `shape` | of the whole row |
//! | `argmax` | over the whole row, the lowest of equals; `null` if no value is a number |
//! | `values` | the row's first values |
//! | `source` | build and device |
//!
//! A non-finite value is written as `NaN`, `Infinity` or `-Infinity`, as Python's `json` writes and reads them: hiding
//! one as `null` or 0 has cost this project's ancestor months. A request that is recomputed after parking repeats no
//! line, because only sampling is traced. Lines are appended: a successor continues in the same file. A line that
//! cannot be written ends the trace, and nothing else.
//!
//! Layers are not traced: at every position and layer they would be hundreds of times the size of the logits. Parity
//! tests read them through [`Tap`] directly.

pub mod compare;

use crate::device::{Checkpoint, Tap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};
use worker_orcd_ipc::{RequestId, TraceOrder};

#[derive(Debug)]
pub struct LogitsTrace {
    path: String,
    file: File,
    first_values: usize,
    source: String,
    /// The first failure: a tap has no return value for it.
    error: Option<io::Error>,
}

impl LogitsTrace {
    /// Opens the trace.
    ///
    /// # Errors
    /// If the file cannot be opened for appending.
    pub fn create(order: &TraceOrder, device: &str) -> io::Result<Self> {
        let file = File::options()
            .append(true)
            .create(true)
            .open(&order.path)
            .map_err(|error| named(&order.path, &error))?;
        let source = format!("worker-orcd-gpu {} ({device})", env!("CARGO_PKG_VERSION"));
        Ok(Self {
            path: order.path.clone(),
            file,
            first_values: order.first_values as usize,
            source,
            error: None,
        })
    }

    /// Returns the first failure.
    ///
    /// # Errors
    /// The first line that could not be written, once.
    pub fn check(&mut self) -> io::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}

impl Tap for LogitsTrace {
    fn wants(&self, _: RequestId, checkpoint: &Checkpoint) -> bool {
        *checkpoint == Checkpoint::Logits
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        if *checkpoint != Checkpoint::Logits {
            return;
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let row = TracedRow {
            request,
            token_idx: position + 1,
            values,
            source: &self.source,
        };
        let line = line(now.as_secs_f64(), &row, self.first_values);
        // One write for the whole line: a reader never sees half of one.
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            self.error.get_or_insert(named(&self.path, &error));
        }
    }
}

fn named(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

struct TracedRow<'a> {
    request: RequestId,
    token_idx: u32,
    values: &'a [f32],
    source: &'a str,
}

fn line(ts: f64, row: &TracedRow<'_>, first_values: usize) -> String {
    let TracedRow {
        request,
        token_idx,
        values,
        source,
    } = row;
    let mut line = format!(
        r#"{{"ts":{ts:.6},"team":"worker-orcd","request":{request},"checkpoint":"logits","token_idx":{token_idx},"dtype":"f32","shape":[{}],"argmax":"#,
        values.len()
    );
    match argmax(values) {
        Some(index) => push(&mut line, format_args!("{index}")),
        None => line.push_str("null"),
    }
    line.push_str(r#","values":["#);
    for (index, value) in values.iter().take(first_values).enumerate() {
        if index > 0 {
            line.push(',');
        }
        push_number(&mut line, *value);
    }
    // The source is built from constants and names that need no escaping.
    push(&mut line, format_args!("],\"source\":\"{source}\"}}\n"));
    line
}

fn push(line: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = line.write_fmt(text);
}

fn push_number(line: &mut String, value: f32) {
    if value.is_nan() {
        line.push_str("NaN");
    } else if value.is_infinite() {
        line.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        // The shortest text that reads back as the same f32.
        push(line, format_args!("{value:?}"));
    }
}

fn argmax(values: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &value) in values.iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|(_, most)| value > most) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_everything_and_hides_nothing() {
        let values = [0.5, f32::NAN, -1e-9, f32::NEG_INFINITY, 3.25, f32::INFINITY];
        let row = TracedRow {
            request: RequestId(4),
            token_idx: 12,
            values: &values,
            source: "test",
        };
        assert_eq!(
            line(1.5, &row, 5),
            "{\"ts\":1.500000,\"team\":\"worker-orcd\",\"request\":4,\"checkpoint\":\"logits\",\
             \"token_idx\":12,\"dtype\":\"f32\",\"shape\":[6],\"argmax\":5,\
             \"values\":[0.5,NaN,-1e-9,-Infinity,3.25],\"source\":\"test\"}\n"
        );
    }

    #[test]
    fn only_logits_are_traced_and_lines_are_appended() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        for request in [1, 2] {
            let order = TraceOrder {
                path: path.clone(),
                first_values: 2,
            };
            let mut trace = LogitsTrace::create(&order, "cpu").unwrap();
            assert!(!trace.wants(RequestId(1), &Checkpoint::Layer(0)));
            trace.see(RequestId(request), &Checkpoint::Layer(0), 4, &[1.0]);
            trace.see(RequestId(request), &Checkpoint::Logits, 4, &[1.0, 2.0, 3.0]);
            trace.check().unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.contains(r#""token_idx":5,"#)));
        assert!(text.contains(r#""argmax":2,"values":[1.0,2.0],"#), "{text}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let order = TraceOrder {
            path: "/dev/full".to_owned(),
            first_values: 1,
        };
        let mut trace = LogitsTrace::create(&order, "cpu").unwrap();
        trace.see(RequestId(1), &Checkpoint::Logits, 0, &[1.0]);
        let error = trace.check().unwrap_err().to_string();
        assert!(error.starts_with("/dev/full: "), "{error}");
    }
}
