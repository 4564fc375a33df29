//! Table of NVIDIA's driver's figures of each card. An unknown figure has no line: zero would be wrong, and the last
//! value would be wrong once the device is wedged.

use super::figure::{Figure, Labels, Now, by, figures};
use std::collections::BTreeMap;
use worker_orcd_engine::DeviceSnapshot;
use worker_orcd_engine::nvml::library::{DeviceMemory, Gauges};
use worker_orcd_engine::nvml::reckoning::Measure;
use worker_orcd_lifecycle::{RecoveryAction, Xid};

pub(super) const FIGURES: &[Figure] = figures! { now:
    Gauge "worker_orcd_gpu_watched": Whole(watched(now)?.into()),
        "1 while NVML answers, 0 when it has stopped to.";
    Gauge "worker_orcd_gpu_memory_total_bytes": Whole(memory(now)?.total),
        "Memory of the device, as NVIDIA's driver counts.";
    Gauge "worker_orcd_gpu_memory_used_bytes": Whole(memory(now)?.used),
        "Memory in use by all processes, as NVIDIA's driver counts.";
    Gauge "worker_orcd_gpu_memory_child_bytes": Whole(memory(now)?.of(now.child_there()?.pid)?),
        "Memory in use by the child, as NVIDIA's driver counts.";
    Gauge "worker_orcd_gpu_memory_baseline_bytes": Whole(now.device.gpu.baseline?),
        "Memory that was in use before the first child.";
    Gauge "worker_orcd_gpu_memory_residual_bytes": Whole(measure(now)?.residual?),
        "Memory above the baseline after the last death, beside what is kept on purpose.";
    Gauge "worker_orcd_gpu_temperature_celsius": Whole(gauges(now)?.temperature_celsius?.into()),
        "Temperature of the die.";
    Gauge "worker_orcd_gpu_ecc_uncorrected": Whole(gauges(now)?.ecc_uncorrected?),
        "Uncorrected errors of memory since NVIDIA's driver was loaded.";
    Gauge "worker_orcd_gpu_remap_pending": Whole(gauges(now)?.remap_pending?.into()),
        "1 when a row of memory will be replaced at the next reset.";
    Gauge "worker_orcd_gpu_remap_failed": Whole(gauges(now)?.remap_failed?.into()),
        "1 when a row of memory could not be replaced: the card is for the workshop.";
    Gauge "worker_orcd_gpu_needs_recovery": Whole(u64::from(gauges(now)?.action? != RecoveryAction::None)),
        "1 when NVIDIA's driver asks for a reset, a reboot or a drain.";
    Gauge "worker_orcd_gpu_power_watts": Real(f64::from(gauges(now)?.power_milliwatts?) / 1000.0),
        "Power that the device draws now.";
    Gauge "worker_orcd_gpu_memory_returned_seconds": Real(measure(now)?.freed_after?.as_secs_f64()),
        "Time from the last reaping of a child to the return of its memory.";
};

fn watched(now: &Now<'_>) -> Option<bool> {
    let state = now.device.gpu.state(now.at).0;
    (state != "off").then_some(state == "watching")
}

fn gauges<'a>(now: &Now<'a>) -> Option<&'a Gauges> {
    now.device.gpu.gauges(now.at).map(|(gauges, _)| gauges)
}

fn memory<'a>(now: &Now<'a>) -> Option<&'a DeviceMemory> {
    gauges(now)?.memory.as_ref()
}

fn measure(now: &Now<'_>) -> Option<Measure> {
    now.device.gpu.last_measure
}

/// Sums over all cards.
pub(super) const SUMS: &[Figure] = figures! { now:
    Counter "worker_orcd_gpu_xids": Lines({
        let mut xids = BTreeMap::new();
        for (xid, count) in now.snapshot.devices.iter().flat_map(|it| &it.gpu.xids) {
            *xids.entry(*xid).or_insert(0) += count;
        }
        of_xids(&xids)
    }),
        "Xids that NVIDIA's driver reported, by number.";
};

/// Every device with the label of its card.
pub(super) fn each<'a>(now: &Now<'a>) -> Vec<(Labels, Now<'a>)> {
    let several = now.snapshot.devices.len() > 1;
    let labelled = now.of_each_device().map(|now| {
        let uuid = uuid(now.device).unwrap_or_else(|| match several {
            // Two lines with the same labels would be invalid.
            true => format!("unknown ({})", now.device.id),
            false => "unknown".to_owned(),
        });
        (vec![("uuid", uuid)], now)
    });
    labelled.collect()
}

pub(super) fn uuid(device: &DeviceSnapshot) -> Option<String> {
    device.gpu.identity.as_ref()?.uuid.clone()
}

pub(super) fn of_xids(xids: &BTreeMap<Xid, u64>) -> Vec<(Labels, u64)> {
    let unknown = || "unknown".to_owned();
    let number = |xid: &Xid| xid.0.map_or_else(unknown, |it| it.to_string());
    by("xid", xids.iter().map(|(xid, count)| (number(xid), *count)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use crate::metrics::Metrics;
    use crate::metrics::exposition::Format;
    use std::time::{Duration, Instant};
    use worker_orcd_engine::EngineSnapshot;
    use worker_orcd_engine::engine::gpu::Nvml;
    use worker_orcd_engine::nvml::SILENT_AFTER;
    use worker_orcd_engine::nvml::library::{DeviceMemory, Gauges, Identity};
    use worker_orcd_engine::nvml::reckoning::Measure;

    const WHOLE: &str = r##"
# HELP worker_orcd_gpu_watched 1 while NVML answers, 0 when it has stopped to.
# TYPE worker_orcd_gpu_watched gauge
worker_orcd_gpu_watched{uuid="GPU-1"} 1
# HELP worker_orcd_gpu_memory_total_bytes Memory of the device, as NVIDIA's driver counts.
# TYPE worker_orcd_gpu_memory_total_bytes gauge
worker_orcd_gpu_memory_total_bytes{uuid="GPU-1"} 1000
# HELP worker_orcd_gpu_memory_used_bytes Memory in use by all processes, as NVIDIA's driver counts.
# TYPE worker_orcd_gpu_memory_used_bytes gauge
worker_orcd_gpu_memory_used_bytes{uuid="GPU-1"} 700
# HELP worker_orcd_gpu_memory_baseline_bytes Memory that was in use before the first child.
# TYPE worker_orcd_gpu_memory_baseline_bytes gauge
worker_orcd_gpu_memory_baseline_bytes{uuid="GPU-1"} 5
# HELP worker_orcd_gpu_memory_residual_bytes Memory above the baseline after the last death, beside what is kept on purpose.
# TYPE worker_orcd_gpu_memory_residual_bytes gauge
worker_orcd_gpu_memory_residual_bytes{uuid="GPU-1"} 7
# HELP worker_orcd_gpu_temperature_celsius Temperature of the die.
# TYPE worker_orcd_gpu_temperature_celsius gauge
worker_orcd_gpu_temperature_celsius{uuid="GPU-1"} 51
# HELP worker_orcd_gpu_ecc_uncorrected Uncorrected errors of memory since NVIDIA's driver was loaded.
# TYPE worker_orcd_gpu_ecc_uncorrected gauge
worker_orcd_gpu_ecc_uncorrected{uuid="GPU-1"} 0
# HELP worker_orcd_gpu_remap_pending 1 when a row of memory will be replaced at the next reset.
# TYPE worker_orcd_gpu_remap_pending gauge
worker_orcd_gpu_remap_pending{uuid="GPU-1"} 0
# HELP worker_orcd_gpu_remap_failed 1 when a row of memory could not be replaced: the card is for the workshop.
# TYPE worker_orcd_gpu_remap_failed gauge
worker_orcd_gpu_remap_failed{uuid="GPU-1"} 0
# HELP worker_orcd_gpu_needs_recovery 1 when NVIDIA's driver asks for a reset, a reboot or a drain.
# TYPE worker_orcd_gpu_needs_recovery gauge
worker_orcd_gpu_needs_recovery{uuid="GPU-1"} 0
# HELP worker_orcd_gpu_power_watts Power that the device draws now.
# TYPE worker_orcd_gpu_power_watts gauge
worker_orcd_gpu_power_watts{uuid="GPU-1"} 71.25
# HELP worker_orcd_gpu_memory_returned_seconds Time from the last reaping of a child to the return of its memory.
# TYPE worker_orcd_gpu_memory_returned_seconds gauge
worker_orcd_gpu_memory_returned_seconds{uuid="GPU-1"} 0.25
# HELP worker_orcd_gpu_xids Xids that NVIDIA's driver reported, by number.
# TYPE worker_orcd_gpu_xids counter
worker_orcd_gpu_xids_total{xid="unknown"} 1
worker_orcd_gpu_xids_total{xid="31"} 2
"##;

    fn text(snapshot: &EngineSnapshot) -> Vec<String> {
        let text = Metrics::default().render(snapshot, 0, None, Format::OpenMetrics);
        let is_of_the_gpu = |line: &&str| line.contains("_gpu_");
        text.lines()
            .filter(is_of_the_gpu)
            .map(str::to_owned)
            .collect()
    }

    fn samples(snapshot: &EngineSnapshot) -> Vec<String> {
        let mut lines = text(snapshot);
        lines.retain(|line| !line.starts_with('#'));
        lines
    }

    fn watched(gauges: Gauges, taken_at: Instant) -> EngineSnapshot {
        let mut snapshot = EngineSnapshot::before_anything(taken_at);
        snapshot.devices[0].gpu.nvml = Nvml::Watching;
        snapshot.devices[0].gpu.identity = Some(Identity {
            uuid: Some("GPU-1".to_owned()),
            ..Identity::default()
        });
        snapshot.devices[0].gpu.taken = Some((gauges, taken_at));
        snapshot.devices[0].gpu.xids.insert(Xid(Some(31)), 2);
        snapshot
    }

    fn memory() -> DeviceMemory {
        DeviceMemory {
            total: 1000,
            free: 300,
            used: 700,
            processes: None,
        }
    }

    #[test]
    fn what_is_unknown_has_no_line() {
        let now = Instant::now();
        let nothing = EngineSnapshot::before_anything(now);
        assert_eq!(text(&nothing), [""; 0], "no GPU, no figures");

        let gauges = Gauges {
            memory: Some(memory()),
            action: Some(RecoveryAction::GpuReset),
            ..Gauges::default()
        };
        let known = [
            "worker_orcd_gpu_watched{uuid=\"GPU-1\"} 1",
            "worker_orcd_gpu_memory_total_bytes{uuid=\"GPU-1\"} 1000",
            "worker_orcd_gpu_memory_used_bytes{uuid=\"GPU-1\"} 700",
            "worker_orcd_gpu_needs_recovery{uuid=\"GPU-1\"} 1",
            "worker_orcd_gpu_xids_total{xid=\"31\"} 2",
        ];
        assert_eq!(samples(&watched(gauges.clone(), now)), known);
        let long_ago = now.checked_sub(SILENT_AFTER).expect("uptime");
        assert_eq!(
            samples(&watched(gauges, long_ago)),
            ["worker_orcd_gpu_watched{uuid=\"GPU-1\"} 0", known[4]]
        );
    }

    #[test]
    fn each_card_has_lines_of_its_own_and_xids_are_counted_together() {
        let now = Instant::now();
        let gauges = |celsius| Gauges {
            temperature_celsius: Some(celsius),
            ..Gauges::default()
        };
        let mut snapshot = watched(gauges(40), now);
        let mut other = watched(gauges(60), now).devices.remove(0);
        other.place = 1;
        other.id = "cuda:1".to_owned();
        other.gpu.identity = None;
        snapshot.devices.push(other);
        assert_eq!(
            samples(&snapshot),
            [
                "worker_orcd_gpu_watched{uuid=\"GPU-1\"} 1",
                "worker_orcd_gpu_watched{uuid=\"unknown (cuda:1)\"} 1",
                "worker_orcd_gpu_temperature_celsius{uuid=\"GPU-1\"} 40",
                "worker_orcd_gpu_temperature_celsius{uuid=\"unknown (cuda:1)\"} 60",
                "worker_orcd_gpu_xids_total{xid=\"31\"} 4",
            ]
        );
    }

    #[test]
    fn what_is_known_is_told_with_its_kind_and_a_sentence() {
        let gauges = Gauges {
            memory: Some(memory()),
            temperature_celsius: Some(51),
            power_milliwatts: Some(71_250),
            ecc_uncorrected: Some(0),
            remap_pending: Some(false),
            remap_failed: Some(false),
            action: Some(RecoveryAction::None),
            ..Gauges::default()
        };
        let mut snapshot = watched(gauges, Instant::now());
        snapshot.devices[0].gpu.baseline = Some(5);
        snapshot.devices[0].gpu.last_measure = Some(Measure {
            residual: Some(7),
            freed_after: Some(Duration::from_millis(250)),
        });
        snapshot.devices[0].gpu.xids.insert(Xid(None), 1);
        let text = text(&snapshot).join("\n");
        assert_eq!(text, WHOLE.trim());
    }
}
