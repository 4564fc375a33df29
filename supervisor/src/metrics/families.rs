//! Metrics with labels or buckets: build, status, deaths by cause, memory by purpose, and waits of streams.
//!
//! The values of every label are a closed set: neither clients nor children can add lines.

use super::figure::{Figure, Now, Value};
use super::figures::FIGURES;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use strum::VariantArray as _;
use worker_orcd_engine::Status;
use worker_orcd_lifecycle::DeathCause;
use worker_orcd_requests::Waits;

/// Values at one moment.
#[derive(Debug)]
pub(super) struct Taken {
    figures: Vec<(&'static Figure, Value)>,
    /// Labels of the build: versions, model and devices.
    build: Vec<(&'static str, String)>,
    statuses: Vec<(&'static str, u64)>,
    deaths: Vec<(&'static str, u64)>,
    /// Only the purposes that the child reports, in bytes.
    memory: Vec<(&'static str, u64)>,
    gaps: Waits,
    pauses: Waits,
}

impl Taken {
    pub(super) fn at(now: &Now<'_>) -> Self {
        let by_cause = &now.snapshot.faults.deaths_by_cause;
        let deaths = |label| (label, by_cause.get(label).copied().unwrap_or(0));
        let status = now.snapshot.status(now.at);
        let is_now = |it: &Status| (it.as_str(), u64::from(*it == status));
        Self {
            figures: Figure::known(FIGURES, now),
            build: build(now),
            statuses: Status::VARIANTS.iter().map(is_now).collect(),
            deaths: DeathCause::labels().map(deaths).collect(),
            memory: purposes(now).unwrap_or_default(),
            gaps: now.snapshot.load.gaps,
            pauses: now.snapshot.faults.pauses,
        }
    }
}

fn build(now: &Now<'_>) -> Vec<(&'static str, String)> {
    let child = now.snapshot.child().and_then(|it| it.build.clone());
    let mut labels = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    labels.extend(child.map(|build| ("child", build)));
    labels.extend(now.model.map(|it| ("model", it.facts.name.clone())));
    let ids = now.snapshot.devices.iter().map(|it| it.id.as_str());
    let devices = now.model.map(|_| ids.collect::<Vec<_>>().join(","));
    labels.extend(devices.map(|ids| ("device", ids)));
    labels
}

/// Memory of the child by purpose; the sum is its total. The KV cache counts in full, whatever its use.
pub(super) fn purposes(now: &Now<'_>) -> Option<Vec<(&'static str, u64)>> {
    let memory = now.memory_there()?;
    let purposes = [
        ("weights", Some(memory.weights_bytes)),
        ("kv", Some(memory.kv_capacity_bytes)),
        ("scratch", Some(memory.scratch_bytes)),
        ("graphs", Some(memory.graphs_bytes)),
        (
            "context",
            now.snapshot.context_bytes(now.device, memory, now.at),
        ),
    ];
    let known = purposes.into_iter();
    Some(
        known
            .filter_map(|(purpose, bytes)| Some((purpose, bytes?)))
            .collect(),
    )
}

impl Collector for Taken {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (figure, value) in &self.figures {
            value.encode(figure.describe(value, &mut encoder)?)?;
        }
        let help = "Always 1; what runs here is in the labels.";
        let name = "worker_orcd_build_info";
        let mut info = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(1_u64).encode(info.encode_family(&self.build)?)?;
        let help = "1 for the status that /health says, 0 for the others.";
        let name = "worker_orcd_status";
        let mut statuses = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (status, is_now) in &self.statuses {
            let labels = [("status", *status)];
            ConstGauge::new(*is_now).encode(statuses.encode_family(&labels)?)?;
        }
        let help = "Children that died, by cause.";
        let name = "worker_orcd_child_deaths";
        let mut deaths = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (cause, count) in &self.deaths {
            let labels = [("cause", *cause)];
            ConstCounter::new(*count).encode(deaths.encode_family(&labels)?)?;
        }
        self.encode_memory(&mut encoder)?;
        encode_waits(
            &mut encoder,
            "worker_orcd_inter_token_latency",
            "Time from one token of a stream to its next one, pauses for another child included.",
            &self.gaps,
        )?;
        encode_waits(
            &mut encoder,
            "worker_orcd_stream_pause",
            "Time from the last token that a stream had of a child to its first one of the next child.",
            &self.pauses,
        )
    }
}

impl Taken {
    fn encode_memory(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.memory.is_empty() {
            return Ok(());
        }
        let help = "Memory of the first device that serves that its child takes, by purpose.";
        let name = "worker_orcd_device_memory";
        let (bytes, kind) = (Some(&Unit::Bytes), MetricType::Gauge);
        let mut memory = encoder.encode_descriptor(name, help, bytes, kind)?;
        for (purpose, bytes) in &self.memory {
            let labels = [("purpose", *purpose)];
            ConstGauge::new(*bytes).encode(memory.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn encode_waits(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    waits: &Waits,
) -> fmt::Result {
    let kind = MetricType::Histogram;
    let mut histogram = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
    let (sum, count) = (waits.seconds(), waits.count());
    histogram.encode_histogram::<NoLabelSet>(sum, count, &waits.buckets(), None)
}
