//! The GPU's driver in numbers. What is unknown has no line at all: a zero would be a lie, and
//! the last value would be one as soon as the device is wedged.

use crate::engine::EngineSnapshot;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use worker_orcd_lifecycle::RecoveryAction;

type OneLabel = [(&'static str, String); 1];
type Integers = Family<OneLabel, Gauge>;
type Reals = Family<OneLabel, Gauge<f64, AtomicU64>>;

/// All by UUID, but the counts of Xids, which are by number.
#[derive(Debug, Default)]
pub(super) struct GpuGauges {
    watched: Integers,
    memory_total: Integers,
    memory_used: Integers,
    memory_child: Integers,
    memory_baseline: Integers,
    memory_residual: Integers,
    memory_returned: Reals,
    temperature: Integers,
    power: Reals,
    ecc_uncorrected: Integers,
    remap_pending: Integers,
    needs_recovery: Integers,
    xids: Family<OneLabel, Counter>,
}

impl GpuGauges {
    pub(super) fn register(&self, own: &mut Registry) {
        let integers = [
            (
                "gpu_watched",
                "1 while NVML answers, 0 when it has stopped to",
                &self.watched,
            ),
            (
                "gpu_memory_total_bytes",
                "Memory of the device, as the driver counts",
                &self.memory_total,
            ),
            (
                "gpu_memory_used_bytes",
                "Memory in use by whomever, as the driver counts",
                &self.memory_used,
            ),
            (
                "gpu_memory_child_bytes",
                "Memory in use by the child, as the driver counts",
                &self.memory_child,
            ),
            (
                "gpu_memory_baseline_bytes",
                "Memory that was in use before the first child",
                &self.memory_baseline,
            ),
            (
                "gpu_memory_residual_bytes",
                "Memory above the baseline after the last death",
                &self.memory_residual,
            ),
            (
                "gpu_temperature_celsius",
                "Temperature of the die",
                &self.temperature,
            ),
            (
                "gpu_ecc_uncorrected",
                "Uncorrected errors of memory since the driver was loaded",
                &self.ecc_uncorrected,
            ),
            (
                "gpu_remap_pending",
                "1 when a row of memory is replaced at the next reset",
                &self.remap_pending,
            ),
            (
                "gpu_needs_recovery",
                "1 when the driver asks for a reset, a reboot or a drain",
                &self.needs_recovery,
            ),
        ];
        for (name, help, family) in integers {
            own.register(name, help, family.clone());
        }
        own.register(
            "gpu_power_watts",
            "Power that the device draws now",
            self.power.clone(),
        );
        own.register(
            "gpu_memory_returned_seconds",
            "Time from the last reaping of a child to the return of its memory",
            self.memory_returned.clone(),
        );
        own.register(
            "gpu_xids",
            "Xids that the driver reported, by number",
            self.xids.clone(),
        );
    }

    pub(super) fn set(&self, snapshot: &EngineSnapshot, now: Instant) {
        let gpu = &snapshot.gpu;
        let uuid = gpu.identity.as_ref().and_then(|it| it.uuid.as_deref());
        let label = [("uuid", uuid.unwrap_or("unknown").to_owned())];
        let integer = |family: &Integers, value: Option<u64>| {
            family.clear();
            if let Some(value) = value {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                family.get_or_create(&label).set(value);
            }
        };
        let real = |family: &Reals, value: Option<f64>| {
            family.clear();
            if let Some(value) = value {
                family.get_or_create(&label).set(value);
            }
        };
        let (state, _) = gpu.state(now);
        integer(
            &self.watched,
            (state != "off").then_some(u64::from(state == "watching")),
        );
        let gauges = gpu.gauges(now).map(|(gauges, _)| gauges);
        let memory = gauges.and_then(|it| it.memory.as_ref());
        let pid = snapshot.child.as_ref().map(|child| child.pid);
        let measure = gpu.last_measure;
        integer(&self.memory_total, memory.map(|it| it.total));
        integer(&self.memory_used, memory.map(|it| it.used));
        integer(
            &self.memory_child,
            memory.zip(pid).and_then(|(it, pid)| it.of(pid)),
        );
        integer(&self.memory_baseline, gpu.baseline);
        integer(&self.memory_residual, measure.and_then(|it| it.residual));
        let returned = measure.and_then(|it| it.freed_after);
        real(&self.memory_returned, returned.map(|it| it.as_secs_f64()));
        let temperature = gauges.and_then(|it| it.temperature_celsius);
        integer(&self.temperature, temperature.map(u64::from));
        let power = gauges.and_then(|it| it.power_milliwatts);
        real(&self.power, power.map(|it| f64::from(it) / 1000.0));
        integer(
            &self.ecc_uncorrected,
            gauges.and_then(|it| it.ecc_uncorrected),
        );
        let pending = gauges.and_then(|it| it.remap_pending);
        integer(&self.remap_pending, pending.map(u64::from));
        let action = gauges.and_then(|it| it.action);
        integer(
            &self.needs_recovery,
            action.map(|it| u64::from(it != RecoveryAction::None)),
        );
        for (xid, count) in &gpu.xids {
            let number = xid
                .0
                .map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            let counter = self.xids.get_or_create(&[("xid", number)]);
            counter.inner().store(*count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use crate::engine::gpu::Nvml;
    use crate::nvml::SILENT_AFTER;
    use crate::nvml::library::{DeviceMemory, Gauges, Identity};
    use prometheus_client::encoding::text::encode;
    use worker_orcd_lifecycle::Xid;

    fn render(gauges: &GpuGauges, snapshot: &EngineSnapshot, now: Instant) -> String {
        let mut registry = Registry::default();
        gauges.register(&mut registry);
        gauges.set(snapshot, now);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let is_figure = |line: &&str| !line.starts_with('#');
        text.lines()
            .filter(is_figure)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn what_is_unknown_has_no_line() {
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        let gauges = GpuGauges::default();
        assert_eq!(render(&gauges, &snapshot, start), "", "no GPU, no figures");

        snapshot.gpu.nvml = Nvml::Watching;
        snapshot.gpu.identity = Some(Identity {
            uuid: Some("GPU-1".to_owned()),
            ..Identity::default()
        });
        let figures = Gauges {
            memory: Some(DeviceMemory {
                total: 1000,
                free: 300,
                used: 700,
                processes: None,
            }),
            action: Some(RecoveryAction::GpuReset),
            ..Gauges::default()
        };
        snapshot.gpu.taken = Some((figures, start));
        snapshot.gpu.xids.insert(Xid(Some(31)), 2);
        let text = render(&gauges, &snapshot, start);
        for line in [
            "gpu_watched{uuid=\"GPU-1\"} 1",
            "gpu_memory_used_bytes{uuid=\"GPU-1\"} 700",
            "gpu_needs_recovery{uuid=\"GPU-1\"} 1",
            "gpu_xids_total{xid=\"31\"} 2",
        ] {
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("temperature"), "{text}");
        assert!(!text.contains("child_bytes"), "{text}");

        let text = render(&gauges, &snapshot, start + SILENT_AFTER);
        assert_eq!(
            text,
            "gpu_watched{uuid=\"GPU-1\"} 0\ngpu_xids_total{xid=\"31\"} 2"
        );
    }
}
