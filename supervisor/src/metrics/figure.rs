//! One row of a table of figures: name, unit, what it is in a sentence, and where it comes from.

use super::process::Process;
use crate::engine::{EngineSnapshot, LoadedModel};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::time::Instant;

/// Everything that is looked at.
pub(super) struct Now<'a> {
    pub snapshot: &'a EngineSnapshot,
    /// Requests that were let in and have not ended.
    pub live: usize,
    pub model: Option<&'a LoadedModel>,
    pub at: Instant,
    pub supervisor: Option<Process>,
    pub child: Option<Process>,
}

pub(super) struct Figure {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&Now<'_>) -> Option<Value>,
}

pub(super) enum Value {
    Gauge(u64),
    Real(f64),
    Count(u64),
    RealCount(f64),
}

pub(super) const fn figure(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&Now<'_>) -> Option<Value>,
) -> Figure {
    Figure {
        name,
        unit,
        help,
        value,
    }
}

pub(super) fn gauge(value: u64) -> Option<Value> {
    Some(Value::Gauge(value))
}

pub(super) fn count(value: u64) -> Option<Value> {
    Some(Value::Count(value))
}

impl Figure {
    /// The rows of `table` that have a value, in its order.
    pub(super) fn known(table: &'static [Self], now: &Now<'_>) -> Vec<(&'static Self, Value)> {
        let value = |it: &'static Self| (it.value)(now).map(|value| (it, value));
        table.iter().filter_map(value).collect()
    }

    /// Name, kind and sentence of the lines that follow.
    pub(super) fn describe<'e>(
        &'e self,
        value: &Value,
        encoder: &'e mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'e>, fmt::Error> {
        encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), value.kind())
    }
}

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Gauge(_) | Self::Real(_) => MetricType::Gauge,
            Self::Count(_) | Self::RealCount(_) => MetricType::Counter,
        }
    }

    pub(super) fn encode(&self, metric: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Gauge(it) => ConstGauge::new(*it).encode(metric),
            Self::Real(it) => ConstGauge::new(*it).encode(metric),
            Self::Count(it) => ConstCounter::new(*it).encode(metric),
            Self::RealCount(it) => ConstCounter::new(*it).encode(metric),
        }
    }
}

impl fmt::Debug for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gauge(it) | Self::Count(it) => it.fmt(f),
            Self::Real(it) | Self::RealCount(it) => it.fmt(f),
        }
    }
}
