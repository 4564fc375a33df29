//! Data of NVIDIA's driver, in fields separate from the child's reports.

use super::{Clock, extend};
use serde_json::{Value, json};
use std::time::Duration;
use worker_orcd_engine::{DeviceSnapshot, EngineSnapshot, GpuSnapshot};
use worker_orcd_lifecycle::RecoveryAction;

/// Fields of `device`. All but the last Xid are `null` without a recent sample.
pub(super) fn device(gpu: &GpuSnapshot, clock: &Clock) -> Value {
    let fresh = gpu.gauges(clock.now);
    let gauges = fresh.map(|(gauges, _)| gauges);
    let (state, reason) = gpu.state(clock.now);
    json!({
        "temperature_celsius": gauges.and_then(|it| it.temperature_celsius),
        "power_watts": gauges
            .and_then(|it| it.power_milliwatts)
            .map(|milliwatts| f64::from(milliwatts) / 1000.0),
        "ecc": gauges.filter(|it| it.ecc_enabled.is_some()).map(|it| json!({
            "enabled": it.ecc_enabled,
            "uncorrected_since_driver_load": it.ecc_uncorrected,
            "remap_pending": it.remap_pending,
            "remap_failed": it.remap_failed,
        })),
        "last_xid": gpu.last_xid.map(|seen| json!({
            "xid": seen.xid.0,
            "description": seen.xid.description(),
            "at": clock.stamp(seen.at),
            "age_ms": clock.age_ms(seen.at),
        })),
        "recovery_action": gauges
            .and_then(|it| it.action)
            .map(RecoveryAction::name),
        "nvml": {
            "state": state,
            "reason": reason,
            "age_ms": gpu.taken.as_ref().map(|(_, taken_at)| clock.age_ms(*taken_at)),
        },
    })
}

/// Fields of `vram`. NVIDIA's driver counts the whole device; `driver_child_bytes` is the child's share.
pub(super) fn memory(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) -> Value {
    let gpu = &device.gpu;
    let fresh = gpu.gauges(clock.now);
    let memory = fresh.and_then(|(gauges, at)| Some((gauges.memory.as_ref()?, at)));
    let pid = snapshot.child_on(device).map(|child| child.pid);
    let measure = gpu.last_measure;
    json!({
        "driver_total_bytes": memory.map(|(memory, _)| memory.total),
        "driver_free_bytes": memory.map(|(memory, _)| memory.free),
        "driver_used_bytes": memory.map(|(memory, _)| memory.used),
        "driver_child_bytes": memory.zip(pid).and_then(|((memory, _), pid)| memory.of(pid)),
        "driver_age_ms": memory.map(|(_, at)| clock.age_ms(at)),
        "baseline_bytes": gpu.baseline,
        "residual_bytes": measure.and_then(|it| it.residual),
        "returned_after_ms": measure.and_then(|it| it.freed_after).map(in_ms),
    })
}

/// Device memory of a process including its context, in bytes, from NVIDIA's driver.
pub(super) fn of_process(device: &DeviceSnapshot, pid: u32, clock: &Clock) -> Option<u64> {
    let (gauges, _) = device.gpu.gauges(clock.now)?;
    gauges.memory.as_ref()?.of(pid)
}

/// Fields of `vram` before the first report of a child; `null` without data of NVIDIA's driver, too.
pub(super) fn memory_alone(
    snapshot: &EngineSnapshot,
    device: &DeviceSnapshot,
    clock: &Clock,
) -> Value {
    if device.gpu.taken.is_none() {
        return Value::Null;
    }
    let mut report = json!({"total_bytes": null, "free_bytes": null, "resident": null});
    extend(&mut report, memory(snapshot, device, clock));
    report
}

fn in_ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use std::time::{Instant, SystemTime};
    use worker_orcd_engine::ChildSnapshot;
    use worker_orcd_engine::engine::gpu::Nvml;
    use worker_orcd_engine::nvml::library::{DeviceMemory, Gauges, Process};
    use worker_orcd_engine::nvml::reckoning::Measure;
    use worker_orcd_engine::nvml::{SILENT_AFTER, SeenXid};
    use worker_orcd_lifecycle::Xid;

    fn clock(now: Instant) -> Clock {
        Clock {
            now,
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(60),
        }
    }

    fn snapshot(start: Instant) -> EngineSnapshot {
        let mut snapshot = EngineSnapshot::before_anything(start);
        let process = Process {
            pid: 7,
            bytes: Some(600),
        };
        snapshot.devices[0].gpu = GpuSnapshot {
            nvml: Nvml::Watching,
            taken: Some((
                Gauges {
                    memory: Some(DeviceMemory {
                        total: 1000,
                        free: 300,
                        used: 700,
                        processes: Some(vec![process]),
                    }),
                    temperature_celsius: Some(41),
                    power_milliwatts: Some(112_500),
                    ecc_enabled: Some(true),
                    ecc_uncorrected: Some(2),
                    remap_pending: Some(true),
                    remap_failed: None,
                    action: Some(RecoveryAction::DrainAndReset),
                },
                start,
            )),
            last_xid: Some(SeenXid {
                xid: Xid(Some(63)),
                at: start,
                wall: SystemTime::UNIX_EPOCH,
                kernel: None,
            }),
            baseline: Some(4),
            last_measure: Some(Measure {
                freed_after: Some(Duration::from_micros(18_250)),
                residual: Some(1),
            }),
            ..GpuSnapshot::default()
        };
        snapshot
    }

    #[test]
    fn the_driver_s_figures_have_fields_of_their_own() {
        let start = Instant::now();
        let mut snapshot = snapshot(start);
        snapshot.children = vec![ChildSnapshot::begun(7, 1, start)];
        let clock = clock(start + Duration::from_secs(1));
        let expected = json!({
            "driver_total_bytes": 1000, "driver_free_bytes": 300, "driver_used_bytes": 700,
            "driver_child_bytes": 600, "driver_age_ms": 1000,
            "baseline_bytes": 4, "residual_bytes": 1, "returned_after_ms": 18.25,
        });
        assert_eq!(memory(&snapshot, snapshot.device(), &clock), expected);
        let expected = json!({
            "temperature_celsius": 41,
            "power_watts": 112.5,
            "ecc": {
                "enabled": true, "uncorrected_since_driver_load": 2,
                "remap_pending": true, "remap_failed": null,
            },
            "last_xid": {
                "xid": 63, "description": "GPU memory row remapped",
                "at": "1970-01-01T00:00:59.000Z", "age_ms": 1000,
            },
            "recovery_action": "drain_and_reset",
            "nvml": {"state": "watching", "reason": null, "age_ms": 1000},
        });
        assert_eq!(device(&snapshot.device().gpu, &clock), expected);
    }

    #[test]
    fn a_witness_that_fell_silent_leaves_unknowns_and_says_so() {
        let start = Instant::now();
        let snapshot = snapshot(start);
        let clock = clock(start + SILENT_AFTER);
        let told = device(&snapshot.device().gpu, &clock);
        for field in [
            "temperature_celsius",
            "power_watts",
            "ecc",
            "recovery_action",
        ] {
            assert!(told[field].is_null(), "{field}: {told}");
        }
        assert_eq!(told["last_xid"]["xid"], 63, "what was, was");
        assert_eq!(told["nvml"]["state"], "silent");
        assert!(told["nvml"]["reason"].as_str().unwrap().contains("wedged"));
        let told = memory(&snapshot, snapshot.device(), &clock);
        assert!(told["driver_used_bytes"].is_null(), "{told}");
        assert_eq!(told["baseline_bytes"], 4);
    }

    #[test]
    fn without_a_witness_everything_is_unknown() {
        let start = Instant::now();
        let snapshot = EngineSnapshot::before_anything(start);
        let clock = clock(start);
        let told = device(&snapshot.device().gpu, &clock);
        for field in ["temperature_celsius", "ecc", "last_xid", "recovery_action"] {
            assert!(told[field].is_null(), "{field}: {told}");
        }
        assert_eq!(told["nvml"]["state"], "off");
        assert!(memory_alone(&snapshot, snapshot.device(), &clock).is_null());
        let told = memory(&snapshot, snapshot.device(), &clock);
        assert!(
            told.as_object().unwrap().values().all(Value::is_null),
            "{told}"
        );
    }
}
