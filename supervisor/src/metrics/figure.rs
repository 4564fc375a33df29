//! Row of a table of figures: name, unit, help text, and source.

use super::process::Process;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::time::Instant;
use worker_orcd_engine::{ChildSnapshot, DeviceSnapshot, EngineSnapshot, LoadedModel};
use worker_orcd_ipc::MemoryReport;

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
    /// Rows of `table` that have a value, in order.
    pub(super) fn known(table: &'static [Self], now: &Now<'_>) -> Vec<(&'static Self, Value)> {
        let value = |it: &'static Self| (it.value)(now).map(|value| (it, value));
        table.iter().filter_map(value).collect()
    }

    /// Rows of `table` that have a value for one of these devices, each with all its values.
    pub(super) fn of_each(
        table: &'static [Self],
        each: &[(Now<'_>, Labels)],
    ) -> Vec<(&'static Self, Vec<(Labels, Value)>)> {
        let row = |it: &'static Self| {
            let value =
                |(now, labels): &(Now<'_>, Labels)| Some((labels.clone(), (it.value)(now)?));
            (it, each.iter().filter_map(value).collect::<Vec<_>>())
        };
        let rows = table.iter().map(row);
        rows.filter(|(_, values)| !values.is_empty()).collect()
    }

    /// Writes the lines of one row, one for each label.
    pub(super) fn encode_each(
        &self,
        values: &[(Labels, Value)],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let Some((_, first)) = values.first() else {
            return Ok(());
        };
        let mut metric = self.describe(first, encoder)?;
        for (labels, value) in values {
            value.encode(metric.encode_family(labels)?)?;
        }
        Ok(())
    }

    /// Writes name, type and help text of the following lines.
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
