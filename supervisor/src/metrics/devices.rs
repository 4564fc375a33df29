//! Metrics with one line for each device: whether it is in use, its child, memory and deaths.
//!
//! Two CPU devices have the same name, so each line also has the device's number: its position in the worker's list, as
//! in `POST /devices/N/readmit`. A figure without a device label is about all devices, or about the first that serves;
//! its help text names which.

use super::families::purposes;
use super::figure::{Figure, Labels, Now, Value, figure, gauge};
use super::gpu::{uuid, xid_in_words};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use worker_orcd_engine::DeviceSnapshot;
use worker_orcd_lifecycle::DeviceStatus;

const BYTES: Option<Unit> = Some(Unit::Bytes);

const FIGURES: &[Figure] = &[
    figure(
        "worker_orcd_device_in_use",
        None,
        "1 while the device is in use, 0 while it is out of use or on its way there.",
        |now| gauge(u64::from(now.device.out_since.is_none())),
    ),
    figure(
        "worker_orcd_device_serving",
        None,
        "1 while requests are answered on the device.",
        |now| gauge(u64::from(now.device.serving)),
    ),
    figure(
        "worker_orcd_device_may_readmit",
        None,
        "1 while the device is out and would be used again after POST /devices/N/readmit.",
        |now| gauge(u64::from(now.device.may_readmit)),
    ),
    figure(
        "worker_orcd_device_standby_ready",
        None,
        "1 while a child stands by on the device, 0 while none does although there should be one.",
        |now| gauge(u64::from(now.device.standby.as_ref()?.is_ready)),
    ),
    figure(
        "worker_orcd_device_requests_running",
        None,
        "Requests in the batches of the device's children, by their last heartbeats.",
        |now| gauge(now.snapshot.load_on(now.device)?.0.running.into()),
    ),
    figure(
        "worker_orcd_device_requests_waiting",
        None,
        "Requests that wait for a place in the batch of the device's child, by its last heartbeat.",
        |now| gauge(now.snapshot.load_on(now.device)?.0.waiting.into()),
    ),
    figure(
        "worker_orcd_device_kv_used_tokens",
        None,
        "Tokens in the device's KV cache, by its child's last heartbeat.",
        |now| gauge(now.snapshot.load_on(now.device)?.0.kv_used_tokens),
    ),
    figure(
        "worker_orcd_device_kv_capacity_tokens",
        None,
        "Tokens that the device's KV cache can hold.",
        |now| gauge(now.device.kv_capacity_tokens?),
    ),
    figure(
        "worker_orcd_device_tokens_per_second",
        None,
        "Tokens accepted from the device's children per second, over the last 5 seconds.",
        |now| {
            let pace = now.snapshot.tokens_per_second_on(now.device);
            Some(Value::Real(pace))
        },
    ),
    figure(
        "worker_orcd_device_deaths_in_window",
        None,
        "Deaths of the device's children in the last minute; more than 5 make it unsteady.",
        |now| gauge(now.device.deaths_in_window.into()),
    ),
    figure(
        "worker_orcd_device_deaths_in_a_row",
        None,
        "Children of the device in a row that died and delivered nothing.",
        |now| gauge(now.device.deaths_in_a_row.into()),
    ),
    figure(
        "worker_orcd_device_custody",
        BYTES,
        "Memory of the device that outlives a child.",
        |now| gauge(now.device.custody?.bytes),
    ),
];

/// Lines of a family with further labels beside the device.
type Lines = Vec<(Labels, u64)>;

/// Values at one moment.
#[derive(Debug)]
pub(super) struct TakenOfDevices {
    figures: Vec<(&'static Figure, Vec<(Labels, Value)>)>,
    info: Lines,
    standings: Lines,
    memory: Lines,
    xids: Lines,
}

impl TakenOfDevices {
    pub(super) fn at(now: &Now<'_>) -> Self {
        let each: Vec<_> = now
            .of_each_device()
            .map(|now| (now, labels(now.device)))
            .collect();
        let lines = |of: fn(&Now<'_>) -> Lines| -> Lines {
            let of_device = |(now, labels): &(Now<'_>, Labels)| {
                let own = of(now).into_iter();
                let with = |(more, value)| ([labels.clone(), more].concat(), value);
                own.map(with).collect::<Vec<_>>()
            };
            each.iter().flat_map(of_device).collect()
        };
        Self {
            info: lines(info),
            standings: lines(standings),
            memory: lines(memory),
            xids: lines(xids),
            figures: Figure::of_each(FIGURES, &each),
        }
    }
}

fn labels(device: &DeviceSnapshot) -> Labels {
    vec![
        ("device", device.id.clone()),
        ("number", device.place.to_string()),
    ]
}

fn info(now: &Now<'_>) -> Lines {
    let identity = now.device.gpu.identity.as_ref();
    let name = identity.and_then(|it| it.name.clone());
    let name = name.map(|name| ("name", name));
    let uuid = uuid(now.device).map(|uuid| ("uuid", uuid));
    vec![(name.into_iter().chain(uuid).collect(), 1)]
}

fn standings(now: &Now<'_>) -> Lines {
    let line = |word: &str| {
        let is_it = u64::from(word == now.device.standing);
        (vec![("standing", word.to_owned())], is_it)
    };
    DeviceStatus::NAMES.into_iter().map(line).collect()
}

fn memory(now: &Now<'_>) -> Lines {
    let line = |(purpose, bytes): (&str, u64)| (vec![("purpose", purpose.to_owned())], bytes);
    let purposes = purposes(now).unwrap_or_default();
    purposes.into_iter().map(line).collect()
}

fn xids(now: &Now<'_>) -> Lines {
    let seen = now.device.gpu.xids.iter();
    seen.map(|(xid, count)| (vec![("xid", xid_in_words(*xid))], *count))
        .collect()
}

impl Collector for TakenOfDevices {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (figure, values) in &self.figures {
            figure.encode_each(values, &mut encoder)?;
        }
        let gauges = [
            (
                "worker_orcd_device_info",
                "Always 1; the card is in the labels, as NVIDIA's driver names it.",
                None,
                &self.info,
            ),
            (
                "worker_orcd_device_standing",
                "1 for the standing that /health says of the device, 0 for the others.",
                None,
                &self.standings,
            ),
            (
                "worker_orcd_device_memory_by_purpose",
                "Memory of each device that its child takes, by purpose.",
                Some(&Unit::Bytes),
                &self.memory,
            ),
        ];
        for (name, help, unit, lines) in gauges {
            if lines.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for (labels, value) in lines {
                ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
            }
        }
        if self.xids.is_empty() {
            return Ok(());
        }
        let help = "Xids that NVIDIA's driver reported of each device, by number.";
        let (name, kind) = ("worker_orcd_device_xids", MetricType::Counter);
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, count) in &self.xids {
            ConstCounter::new(*count).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use crate::metrics::Metrics;
    use crate::metrics::exposition::Format;
    use std::collections::BTreeSet;
    use std::time::Instant;
    use worker_orcd_engine::{ChildSnapshot, EngineSnapshot};
    use worker_orcd_ipc::{Load, MemoryReport, Role};
    use worker_orcd_lifecycle::Xid;

    /// Two CPU devices, of which the second is out of service and the first computes.
    fn snapshot(now: Instant) -> EngineSnapshot {
        let mut snapshot = EngineSnapshot::before_anything(now);
        snapshot.devices[0].id = "cpu".to_owned();
        let mut out = snapshot.devices[0].clone();
        out.place = 1;
        (out.standing, out.out_since, out.may_readmit) = ("failed", Some(now), true);
        out.deaths_in_window = 6;
        out.deaths_in_a_row = 4;
        out.gpu.xids.insert(Xid(Some(79)), 1);
        snapshot.devices[0].serving = true;
        snapshot.devices[0].kv_capacity_tokens = Some(1000);
        snapshot.devices.push(out);
        let load = Load {
            running: 3,
            waiting: 2,
            kv_used_tokens: 700,
            ..Load::default()
        };
        let memory = MemoryReport {
            weights_bytes: 100,
            ..MemoryReport::default()
        };
        snapshot.children = vec![ChildSnapshot {
            role: Some(Role::Active),
            load: Some((load, now)),
            memory: Some((memory, now)),
            tokens_per_second: 12.5,
            ..ChildSnapshot::begun(7, 1, now)
        }];
        snapshot
    }

    fn text() -> String {
        let snapshot = snapshot(Instant::now());
        Metrics::default().render(&snapshot, 0, None, Format::OpenMetrics)
    }

    #[test]
    fn each_device_has_lines_of_its_own_and_what_is_unknown_has_none() {
        let text = text();
        let (first, second) = ("device=\"cpu\",number=\"0\"", "device=\"cpu\",number=\"1\"");
        for line in [
            format!("in_use{{{first}}} 1"),
            format!("in_use{{{second}}} 0"),
            format!("serving{{{first}}} 1"),
            format!("serving{{{second}}} 0"),
            format!("may_readmit{{{second}}} 1"),
            format!("standing{{{first},standing=\"in_use\"}} 1"),
            format!("standing{{{second},standing=\"failed\"}} 1"),
            format!("standing{{{second},standing=\"in_use\"}} 0"),
            format!("requests_running{{{first}}} 3"),
            format!("requests_waiting{{{first}}} 2"),
            format!("kv_used_tokens{{{first}}} 700"),
            format!("kv_capacity_tokens{{{first}}} 1000"),
            format!("tokens_per_second{{{first}}} 12.5"),
            format!("deaths_in_window{{{second}}} 6"),
            format!("deaths_in_a_row{{{second}}} 4"),
            format!("memory_by_purpose_bytes{{{first},purpose=\"weights\"}} 100"),
            format!("xids_total{{{second},xid=\"79\"}} 1"),
        ] {
            let line = format!("worker_orcd_device_{line}");
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        for unknown in ["requests_running", "kv_capacity_tokens", "standby_ready"] {
            let begin = format!("worker_orcd_device_{unknown}{{{second}");
            assert!(!text.contains(&begin), "{begin} is in\n{text}");
        }
    }

    #[test]
    fn no_two_lines_have_the_same_labels() {
        let text = text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let mut seen = BTreeSet::new();
        for sample in samples {
            let (series, _) = sample.rsplit_once(' ').expect("a value");
            assert!(seen.insert(series.to_owned()), "twice: {series}");
        }
    }
}
