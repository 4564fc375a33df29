//! Metrics with one line for each device: whether it is in use, its child, memory and deaths.
//!
//! Two CPU devices have the same name, so each line also has the device's number: its position in the worker's list, as
//! in `POST /devices/N/readmit`. A figure without a device label is about all devices, or about the first that serves;
//! its help text names which.

use super::families::purposes;
use super::figure::{Figure, Labels, Now, by, figures};
use super::gpu::{of_xids, uuid};
use worker_orcd_engine::DeviceSnapshot;
use worker_orcd_lifecycle::DeviceStatus;

pub(super) const FIGURES: &[Figure] = figures! { now:
    Gauge "worker_orcd_device_in_use": Whole(now.device.out_since.is_none().into()),
        "1 while the device is in use, 0 while it is out of use or on its way there.";
    Gauge "worker_orcd_device_serving": Whole(now.device.serving.into()),
        "1 while requests are answered on the device.";
    Gauge "worker_orcd_device_may_readmit": Whole(now.device.may_readmit.into()),
        "1 while the device is out and would be used again after POST /devices/N/readmit.";
    Gauge "worker_orcd_device_standby_ready": Whole(now.device.standby.as_ref()?.is_ready.into()),
        "1 while a child stands by on the device, 0 while none does although there should be one.";
    Gauge "worker_orcd_device_requests_running": Whole(now.snapshot.load_on(now.device)?.0.running.into()),
        "Requests in the batches of the device's children, by their last heartbeats.";
    Gauge "worker_orcd_device_requests_waiting": Whole(now.snapshot.load_on(now.device)?.0.waiting.into()),
        "Requests that wait for a place in the batch of the device's child, by its last heartbeat.";
    Gauge "worker_orcd_device_kv_used_tokens": Whole(now.snapshot.load_on(now.device)?.0.kv_used_tokens),
        "Tokens in the device's KV cache, by its child's last heartbeat.";
    Gauge "worker_orcd_device_kv_capacity_tokens": Whole(now.device.kv_capacity_tokens?),
        "Tokens that the device's KV cache can hold.";
    Gauge "worker_orcd_device_tokens_per_second": Real(now.snapshot.tokens_per_second_on(now.device)),
        "Tokens accepted from the device's children per second, over the last 5 seconds.";
    Gauge "worker_orcd_device_deaths_in_window": Whole(now.device.deaths_in_window.into()),
        "Deaths of the device's children in the last minute; more than 5 make it unsteady.";
    Gauge "worker_orcd_device_deaths_in_a_row": Whole(now.device.deaths_in_a_row.into()),
        "Children of the device in a row that died and delivered nothing.";
    Gauge "worker_orcd_device_custody" in Bytes: Whole(now.device.retained?.bytes),
        "Memory of the device that outlives a child.";
    Gauge "worker_orcd_device_info": Lines(vec![(card(now.device), 1)]),
        "Always 1; the card is in the labels, as NVIDIA's driver names it.";
    Gauge "worker_orcd_device_standing": Lines({
        let is_it = |name| (name, u64::from(name == now.device.status));
        by("standing", DeviceStatus::NAMES.into_iter().map(is_it))
    }),
        "1 for the standing that /health says of the device, 0 for the others.";
    Gauge "worker_orcd_device_memory_by_purpose" in Bytes: Lines(purposes(now)),
        "Memory of each device that its child takes, by purpose.";
    Counter "worker_orcd_device_xids": Lines(of_xids(&now.device.gpu.xids)),
        "Xids that NVIDIA's driver reported of each device, by number.";
};

/// Every device with its labels.
pub(super) fn each<'a>(now: &Now<'a>) -> Vec<(Labels, Now<'a>)> {
    let labels = |device: &DeviceSnapshot| {
        let number = device.place.to_string();
        vec![("device", device.id.clone()), ("number", number)]
    };
    let devices = now.of_each_device();
    devices.map(|now| (labels(now.device), now)).collect()
}

/// Labels of the card, as far as they are known.
fn card(device: &DeviceSnapshot) -> Labels {
    let identity = device.gpu.identity.as_ref();
    let name = identity.and_then(|it| it.name.clone());
    let labels = [("name", name), ("uuid", uuid(device))].into_iter();
    labels
        .filter_map(|(label, value)| Some((label, value?)))
        .collect()
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
        (out.status, out.out_since, out.may_readmit) = ("failed", Some(now), true);
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
