//! View as text: a pure function of the answers.
//!
//! All text of a worker becomes [`Words`] first, without control characters.

use super::asked::Answers;
use super::figures::words;
use super::sections::{columns, lists};
use serde_json::Value;
use std::fmt;
use worker_orcd_text::printable::printable;

/// Text of another source, safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words(String);

impl Words {
    fn new(text: &str) -> Self {
        Self(printable(text))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug)]
pub(super) struct Silence {
    /// Time of day.
    pub(super) since: String,
    pub(super) why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    /// The worker serves or will serve, with a problem.
    Uneasy,
    Bad,
}

#[derive(Debug)]
pub(super) struct View {
    pub(super) server: Words,
    pub(super) tone: Tone,
    /// Status in one line.
    pub(super) verdict: Words,
    /// The figures are old: the worker does not answer now.
    pub(super) is_stale: bool,
    is_healthy: bool,
    /// Side by side, if there is room.
    pub(super) columns: [Vec<Section>; 2],
    /// Below both columns.
    pub(super) lists: Vec<Section>,
    pub(super) rates: Vec<Option<u64>>,
}

#[derive(Debug)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) label: Words,
    pub(super) value: Words,
}

impl Section {
    pub(super) fn new<L: AsRef<str>>(
        title: &'static str,
        rows: impl IntoIterator<Item = (L, String)>,
    ) -> Self {
        let rows = rows.into_iter().map(|(label, value)| Row {
            label: Words::new(label.as_ref()),
            value: Words::new(&value),
        });
        let rows = rows.collect();
        Self { title, rows }
    }

    /// Width of the longest label.
    pub(super) fn label_width(&self) -> usize {
        let lengths = self
            .rows
            .iter()
            .map(|row| row.label.as_str().chars().count());
        lengths.max().unwrap_or_default()
    }
}

impl View {
    pub(super) fn new(
        server: &str,
        answers: Option<&Answers>,
        silence: Option<&Silence>,
        rates: Vec<Option<u64>>,
    ) -> Self {
        let (tone, verdict) = match (silence, answers) {
            (Some(Silence { since, why }), _) => {
                (Tone::Bad, format!("no answer since {since}: {why}"))
            }
            (None, Some(answers)) => verdict(&answers.health),
            (None, None) => (Tone::Uneasy, "it is being asked".to_owned()),
        };
        let is_healthy = answers.is_some_and(|it| it.health["status"] == "healthy");
        Self {
            server: Words::new(server),
            tone,
            verdict: Words::new(&verdict),
            is_stale: silence.is_some(),
            is_healthy: silence.is_none() && is_healthy,
            columns: answers.map(columns).unwrap_or_default(),
            lists: answers.map(lists).unwrap_or_default(),
            rates,
        }
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.is_healthy
    }
}

fn verdict(health: &Value) -> (Tone, String) {
    let is_impaired = health["impaired"]
        .as_array()
        .is_some_and(|it| !it.is_empty());
    let tone = match health["status"].as_str() {
        Some("healthy") if !is_impaired => Tone::Good,
        Some("healthy" | "degraded" | "recovering" | "draining") => Tone::Uneasy,
        _ => Tone::Bad,
    };
    let [status, state, since] = ["status", "state", "since"].map(|name| words(&health[name]));
    let reason = health["reason"].as_str().filter(|it| !it.is_empty());
    let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
    (tone, format!("{status}: {state} since {since}{reason}"))
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "worker-orcd at {}", self.server.as_str())?;
        writeln!(f, "{}", self.verdict.as_str())?;
        for section in self.columns.iter().flatten().chain(&self.lists) {
            writeln!(f, "\n{}", section.title)?;
            let width = section.label_width();
            for Row { label, value } in &section.rows {
                let line = format!("  {:width$}  {}", label.as_str(), value.as_str());
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
