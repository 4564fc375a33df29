//! Row of a table of figures, and the rows of one moment.

use super::process::Process;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::time::Instant;
use worker_orcd_engine::{ChildSnapshot, DeviceSnapshot, EngineSnapshot, LoadedModel};
use worker_orcd_ipc::MemoryReport;
use worker_orcd_requests::Waits;

/// Sources of all figures.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub snapshot: &'a EngineSnapshot,
    /// Device of the figures.
    pub device: &'a DeviceSnapshot,
    /// Admitted requests that have not ended.
    pub live: usize,
    pub model: Option<&'a LoadedModel>,
    pub at: Instant,
    pub supervisor: Option<Process>,
    pub child: Option<Process>,
}

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) struct Figure {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
    pub unit: Option<&'static Unit>,
    pub source: Source,
}

/// What a figure's lines are read from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// One number; no line where it is unknown.
    Whole(fn(&Now<'_>) -> Option<u64>),
    Real(fn(&Now<'_>) -> Option<f64>),
    /// One number for each value of a label.
    Lines(fn(&Now<'_>) -> Vec<(Labels, u64)>),
    Waits(fn(&Now<'_>) -> Waits),
}

#[derive(Debug)]
enum Value {
    Whole(u64),
    Real(f64),
    Waits(Waits),
}

/// Declares a table. A row is a kind, a name, a unit if it has one, the source of its lines, and the help text. Where a
/// number is unknown (`?`), there is no line.
macro_rules! figures {
    ($now:ident: $($kind:ident $name:literal $(in $unit:ident)?: $source:ident($value:expr), $help:literal;)+) => {
        &[$($crate::metrics::figure::Figure {
            name: $name,
            help: $help,
            kind: prometheus_client::metrics::MetricType::$kind,
            unit: figures!(@unit $($unit)?),
            source: $crate::metrics::figure::Source::$source(|$now| {
                let _ = $now;
                figures!(@lines $source $value)
            }),
        },)+]
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(&prometheus_client::registry::Unit::$unit) };
    (@lines Whole $value:expr) => { Some($value) };
    (@lines Real $value:expr) => { Some($value) };
    (@lines $other:ident $value:expr) => { $value };
}
pub(super) use figures;

/// Lines that differ in one label.
pub(super) fn by<L: Into<String>>(
    label: &'static str,
    values: impl Iterator<Item = (L, u64)>,
) -> Vec<(Labels, u64)> {
    let line = |(value, number): (L, u64)| (vec![(label, value.into())], number);
    values.map(line).collect()
}

impl<'a> Now<'a> {
    /// The same moment for each device.
    pub(super) fn of_each_device(self) -> impl Iterator<Item = Now<'a>> {
        let devices = self.snapshot.devices.iter();
        devices.map(move |device| Now { device, ..self })
    }

    /// Child that serves on the device, or is about to.
    pub(super) fn child_there(&self) -> Option<&'a ChildSnapshot> {
        self.snapshot.child_on(self.device)
    }

    /// Unknown before the child's first report.
    pub(super) fn memory_there(&self) -> Option<&'a MemoryReport> {
        let (memory, _) = self.child_there()?.memory.as_ref()?;
        Some(memory)
    }
}

impl Figure {
    fn lines(&self, now: &Now<'_>) -> Vec<(Labels, Value)> {
        let one = |value| vec![(Labels::new(), value)];
        match self.source {
            Source::Whole(of) => of(now).map(Value::Whole).map_or_else(Vec::new, one),
            Source::Real(of) => of(now).map(Value::Real).map_or_else(Vec::new, one),
            Source::Waits(of) => one(Value::Waits(of(now))),
            Source::Lines(of) => {
                let lines = of(now).into_iter();
                lines
                    .map(|(labels, it)| (labels, Value::Whole(it)))
                    .collect()
            }
        }
    }
}

/// Rows of a table that have lines at one moment, with these.
#[derive(Debug)]
pub(super) struct Taken(Vec<(&'static Figure, Vec<(Labels, Value)>)>);

impl Taken {
    /// The lines of each of these, with its labels.
    pub(super) fn of(table: &'static [Figure], each: &[(Labels, Now<'_>)]) -> Self {
        let row = |figure: &'static Figure| {
            let lines = each.iter().flat_map(|(labels, now)| {
                let own = figure.lines(now).into_iter();
                own.map(|(more, value)| ([labels.clone(), more].concat(), value))
            });
            (figure, lines.collect::<Vec<_>>())
        };
        let rows = table.iter().map(row);
        Self(rows.filter(|(_, lines)| !lines.is_empty()).collect())
    }
}

impl Collector for Taken {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (figure, lines) in &self.0 {
            let (name, help, kind) = (figure.name, figure.help, figure.kind);
            let mut metric = encoder.encode_descriptor(name, help, figure.unit, kind)?;
            match lines.as_slice() {
                [(labels, value)] if labels.is_empty() => value.encode(kind, metric)?,
                lines => {
                    for (labels, value) in lines {
                        value.encode(kind, metric.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, kind: MetricType, mut line: MetricEncoder<'_>) -> fmt::Result {
        match (self, kind) {
            (Self::Whole(it), MetricType::Counter) => ConstCounter::new(*it).encode(line),
            (Self::Real(it), MetricType::Counter) => ConstCounter::new(*it).encode(line),
            (Self::Whole(it), _) => ConstGauge::new(*it).encode(line),
            (Self::Real(it), _) => ConstGauge::new(*it).encode(line),
            (Self::Waits(it), _) => {
                let (sum, count) = (it.seconds(), it.count());
                line.encode_histogram::<NoLabelSet>(sum, count, &it.buckets(), None)
            }
        }
    }
}
