//! Data of NVIDIA's driver, in fields separate from the child's reports.

use super::Clock;
use super::part::parts;
use std::time::Duration;
use worker_orcd_engine::nvml::SeenXid;
use worker_orcd_engine::nvml::library::Gauges;
use worker_orcd_engine::{DeviceSnapshot, EngineSnapshot, GpuSnapshot};
use worker_orcd_lifecycle::RecoveryAction;

parts! {
    /// Fields of `device`. All but the last Xid are `null` without a recent sample.
    Gpu(gpu: &GpuSnapshot, clock: &Clock)
    let gauges = gpu.gauges(clock.now).map(|(gauges, _)| gauges);
    {
        temperature_celsius: Option<u32> = gauges.and_then(|it| it.temperature_celsius),
        power_watts: Option<f64> = gauges
            .and_then(|it| it.power_milliwatts)
            .map(|milliwatts| f64::from(milliwatts) / 1000.0),
        ecc: Option<Ecc> = gauges.filter(|it| it.ecc_enabled.is_some()).map(Ecc::of),
        last_xid: Option<LastXid> = gpu.last_xid.as_ref().map(|seen| LastXid::of(seen, clock)),
        recovery_action: Option<&'static str> = gauges
            .and_then(|it| it.action)
            .map(RecoveryAction::name),
        nvml: Nvml = Nvml::of(gpu, clock),
    }

    Ecc(gauges: &Gauges) {
        enabled: Option<bool> = gauges.ecc_enabled,
        uncorrected_since_driver_load: Option<u64> = gauges.ecc_uncorrected,
        remap_pending: Option<bool> = gauges.remap_pending,
        remap_failed: Option<bool> = gauges.remap_failed,
    }

    LastXid(seen: &SeenXid, clock: &Clock) {
        xid: Option<u32> = seen.xid.0,
        description: Option<&'static str> = seen.xid.description(),
        at: String = clock.stamp(seen.at),
        age_ms: u64 = clock.age_ms(seen.at),
    }

    Nvml(gpu: &GpuSnapshot, clock: &Clock)
    let status = gpu.state(clock.now);
    {
        state: &'static str = status.0,
        reason: Option<String> = status.1,
        age_ms: Option<u64> = gpu.taken.as_ref().map(|(_, taken_at)| clock.age_ms(*taken_at)),
    }

    /// Fields of `vram`. NVIDIA's driver counts the whole device; `driver_child_bytes` is the child's share.
    DriverMemory(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock)
    let fresh = device.gpu.gauges(clock.now);
    let memory = fresh.and_then(|(gauges, at)| Some((gauges.memory.as_ref()?, at)));
    let pid = snapshot.child_on(device).map(|child| child.pid);
    let measure = device.gpu.last_measure;
    {
        driver_total_bytes: Option<u64> = memory.map(|(memory, _)| memory.total),
        driver_free_bytes: Option<u64> = memory.map(|(memory, _)| memory.free),
        driver_used_bytes: Option<u64> = memory.map(|(memory, _)| memory.used),
        driver_child_bytes: Option<u64> = memory.zip(pid).and_then(|((memory, _), pid)| memory.of(pid)),
        driver_age_ms: Option<u64> = memory.map(|(_, at)| clock.age_ms(at)),
        baseline_bytes: Option<u64> = device.gpu.baseline,
        residual_bytes: Option<u64> = measure.and_then(|it| it.residual),
        returned_after_ms: Option<f64> = measure.and_then(|it| it.freed_after).map(in_ms),
    }
}

/// Device memory of a process including its context, in bytes, from NVIDIA's driver.
pub(super) fn of_process(device: &DeviceSnapshot, pid: u32, clock: &Clock) -> Option<u64> {
    let (gauges, _) = device.gpu.gauges(clock.now)?;
    gauges.memory.as_ref()?.of(pid)
}

fn in_ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::super::Vram;
    use super::*;
    use serde_json::{Value, json};
    use std::time::{Instant, SystemTime};
    use worker_orcd_engine::ChildSnapshot;
    use worker_orcd_engine::engine::gpu;
    use worker_orcd_engine::nvml::SILENT_AFTER;
    use worker_orcd_engine::nvml::library::{DeviceMemory, Process};
    use worker_orcd_engine::nvml::reckoning::Measure;
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
            nvml: gpu::Nvml::Watching,
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

    fn memory(snapshot: &EngineSnapshot, clock: &Clock) -> Value {
        json!(DriverMemory::of(snapshot, snapshot.device(), clock))
    }

    fn device(snapshot: &EngineSnapshot, clock: &Clock) -> Value {
        json!(Gpu::of(&snapshot.device().gpu, clock))
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
        assert_eq!(memory(&snapshot, &clock), expected);
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
        assert_eq!(device(&snapshot, &clock), expected);
    }

    #[test]
    fn a_witness_that_fell_silent_leaves_unknowns_and_says_so() {
        let start = Instant::now();
        let snapshot = snapshot(start);
        let clock = clock(start + SILENT_AFTER);
        let shown = device(&snapshot, &clock);
        for field in [
            "temperature_celsius",
            "power_watts",
            "ecc",
            "recovery_action",
        ] {
            assert!(shown[field].is_null(), "{field}: {shown}");
        }
        assert_eq!(shown["last_xid"]["xid"], 63, "what was, was");
        assert_eq!(shown["nvml"]["state"], "silent");
        assert!(shown["nvml"]["reason"].as_str().unwrap().contains("wedged"));
        let shown = memory(&snapshot, &clock);
        assert!(shown["driver_used_bytes"].is_null(), "{shown}");
        assert_eq!(shown["baseline_bytes"], 4);
    }

    #[test]
    fn without_a_witness_everything_is_unknown() {
        let start = Instant::now();
        let snapshot = EngineSnapshot::before_anything(start);
        let clock = clock(start);
        let shown = device(&snapshot, &clock);
        for field in ["temperature_celsius", "ecc", "last_xid", "recovery_action"] {
            assert!(shown[field].is_null(), "{field}: {shown}");
        }
        assert_eq!(shown["nvml"]["state"], "off");
        assert!(Vram::on(&snapshot, snapshot.device(), &clock).is_none());
        let shown = memory(&snapshot, &clock);
        assert!(
            shown.as_object().unwrap().values().all(Value::is_null),
            "{shown}"
        );
    }
}
