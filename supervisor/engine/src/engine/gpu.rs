//! GPU state of a device for `/health` and `/metrics`.

use crate::engine::{DeviceSnapshot, EngineSnapshot};
use crate::nvml::SILENT_AFTER;
use crate::nvml::SeenXid;
use crate::nvml::library::{Gauges, Identity};
use crate::nvml::reckoning::Measure;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use worker_orcd_ipc::MemoryReport;
use worker_orcd_lifecycle::Xid;

#[derive(Debug, Clone, Default)]
pub struct GpuSnapshot {
    pub nvml: Nvml,
    pub identity: Option<Identity>,
    /// Last gauges with their time. Read them by [`Self::gauges`].
    pub taken: Option<(Gauges, Instant)>,
    /// Reason why Xid events are unavailable.
    pub deaf: Option<String>,
    pub last_xid: Option<SeenXid>,
    pub xids: BTreeMap<Xid, u64>,
    /// Bytes that belong to no process, before the first child.
    pub baseline: Option<u64>,
    /// Memory measurement after the last measured death.
    pub last_measure: Option<Measure>,
}

/// State of the NVML library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Nvml {
    /// The device is not one of NVIDIA's, so the library is not loaded.
    #[default]
    Off,
    Opening {
        since: Instant,
    },
    Watching,
    Absent {
        reason: String,
    },
}

impl GpuSnapshot {
    /// Gauges that are recent enough to count as known.
    #[must_use]
    pub fn gauges(&self, now: Instant) -> Option<(&Gauges, Instant)> {
        let (gauges, taken_at) = self.taken.as_ref()?;
        let is_watching = self.nvml == Nvml::Watching;
        (is_watching && age(now, *taken_at) < SILENT_AFTER).then_some((gauges, *taken_at))
    }

    /// Stable name for `/health`, with a reason if there is one.
    #[must_use]
    pub fn state(&self, now: Instant) -> (&'static str, Option<String>) {
        let silent = |since: Instant| {
            let silence = age(now, since);
            let reason = format!(
                "NVML has not answered for {} s: the device or its driver may be wedged",
                silence.as_secs()
            );
            (silence >= SILENT_AFTER).then_some(("silent", Some(reason)))
        };
        match &self.nvml {
            Nvml::Off => ("off", None),
            Nvml::Opening { since } => silent(*since).unwrap_or(("opening", None)),
            Nvml::Watching => {
                let taken = self.taken.as_ref().map(|(_, taken_at)| *taken_at);
                let deaf = self
                    .deaf
                    .as_ref()
                    .map(|reason| format!("Xids cannot be heard: {reason}"));
                taken.and_then(silent).unwrap_or(("watching", deaf))
            }
            Nvml::Absent { reason } => ("absent", Some(reason.clone())),
        }
    }
}

impl EngineSnapshot {
    /// Bytes that a ready child holds beyond its own accounting: its CUDA context and related memory. Without a report
    /// of the child they are derived from NVML, which attributes weights only to the child that placed them. NVML's
    /// values are a second old, so the result is unknown while the child's own values exceed them.
    #[must_use]
    pub fn context_bytes(
        &self,
        device: &DeviceSnapshot,
        memory: &MemoryReport,
        now: Instant,
    ) -> Option<u64> {
        if memory.context_bytes.is_some() {
            return memory.context_bytes;
        }
        let (gauges, taken_at) = device.gpu.gauges(now)?;
        let child = self.child_on(device)?;
        if taken_at < child.ready_at? {
            return None;
        }
        let held = gauges.memory.as_ref()?.of(child.pid)?;
        let imported = device
            .retained
            .is_some_and(|it| it.placed_by != child.generation);
        let known = match imported {
            true => memory.known_bytes().saturating_sub(memory.weights_bytes),
            false => memory.known_bytes(),
        };
        held.checked_sub(known)
    }
}

fn age(now: Instant, moment: Instant) -> Duration {
    now.saturating_duration_since(moment)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use crate::engine::ChildSnapshot;
    use crate::engine::snapshot::RetainedSnapshot;
    use crate::nvml::library::{DeviceMemory, Process};

    #[test]
    fn a_context_is_what_the_driver_counts_beyond_what_the_child_knows_of() {
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        let process = Process {
            pid: 7,
            bytes: Some(600),
        };
        let memory = DeviceMemory {
            total: 1000,
            free: 300,
            used: 700,
            processes: Some(vec![process]),
        };
        let gauges = Gauges {
            memory: Some(memory),
            ..Gauges::default()
        };
        snapshot.devices[0].gpu.nvml = Nvml::Watching;
        snapshot.devices[0].gpu.taken = Some((gauges, start));
        let context = |snapshot: &EngineSnapshot, report: &MemoryReport| {
            let now = start + Duration::from_secs(1);
            snapshot.context_bytes(snapshot.device(), report, now)
        };
        let mut report = MemoryReport {
            weights_bytes: 100,
            kv_capacity_bytes: 20,
            scratch_bytes: 10,
            graphs_bytes: 5,
            ..MemoryReport::default()
        };
        assert_eq!(context(&snapshot, &report), None, "no child");
        snapshot.children = vec![ChildSnapshot::begun(7, 1, start)];
        assert_eq!(context(&snapshot, &report), None, "not ready");
        snapshot.children[0].ready_at = Some(start);
        assert_eq!(context(&snapshot, &report), Some(600 - 135));
        let mut retained = RetainedSnapshot {
            bytes: 100,
            placed_by: 1,
            since: start,
            verified_at: start,
        };
        snapshot.devices[0].retained = Some(retained);
        assert_eq!(context(&snapshot, &report), Some(600 - 135));
        retained.placed_by = 0;
        snapshot.devices[0].retained = Some(retained);
        assert_eq!(context(&snapshot, &report), Some(600 - 35));
        report.kv_capacity_bytes = 1000;
        assert_eq!(context(&snapshot, &report), None, "older figures");
        report.context_bytes = Some(9);
        assert_eq!(context(&snapshot, &report), Some(9), "its own word");
    }

    #[test]
    fn what_was_not_seen_lately_is_unknown_and_that_is_said() {
        let start = Instant::now();
        let mut gpu = GpuSnapshot::default();
        assert_eq!(gpu.state(start), ("off", None));
        gpu.nvml = Nvml::Opening { since: start };
        assert_eq!(gpu.state(start), ("opening", None));
        assert_eq!(gpu.state(start + SILENT_AFTER).0, "silent");
        gpu.nvml = Nvml::Watching;
        gpu.taken = Some((Gauges::default(), start));
        assert_eq!(gpu.state(start), ("watching", None));
        assert!(gpu.gauges(start).is_some());
        assert!(gpu.gauges(start + SILENT_AFTER).is_none());
        let (state, reason) = gpu.state(start + SILENT_AFTER);
        assert_eq!(state, "silent");
        assert!(reason.unwrap().contains("not answered for 5 s"));
        gpu.nvml = Nvml::Absent {
            reason: "no library".to_owned(),
        };
        let absent = ("absent", Some("no library".to_owned()));
        assert_eq!(gpu.state(start), absent);
        assert!(gpu.gauges(start).is_none());
    }
}
