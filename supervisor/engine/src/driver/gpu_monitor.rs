//! GPU monitor of one device: NVML samples, their relation to deaths, and verdicts for the lifecycle and the crash log.
//!
//! On the CPU device no library is loaded, and all values are unknown.

use crate::crash::death::{Death, Reaping};
use crate::crash::gpu::{GpuEvidence, MemoryBefore};
use crate::crash::log::CrashLog;
use crate::engine::gpu::{GpuSnapshot, Nvml};
use crate::nvml::library::Gauges;
use crate::nvml::reckoning::Examination;
use crate::nvml::{GpuSample, NvmlMonitor, SeenXid, same_uuid};
use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use worker_orcd_ipc::{DeviceSelector, Generation};
use worker_orcd_lifecycle::{DeviceId, GpuVerdict, Xid};

/// Number of retained Xids. A storm of them (45 occurs once per channel) adds no information.
const XIDS_KEPT: usize = 64;

/// Xids this long before a death belong to it. NVIDIA's driver reports a fault before the child notices it. A child
/// that hangs in a dead device is found only at its heartbeat deadline.
const NEAR: Duration = Duration::from_secs(10);

/// Time limit for the recovery action after a death. Later it is unknown. A device fault blocks the card, and with it
/// each NVML call, for a while.
const WORD_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct GpuMonitor {
    pub(super) device: DeviceId,
    nvml_monitor: Option<NvmlMonitor>,
    snapshot: GpuSnapshot,
    xids: VecDeque<SeenXid>,
    /// Time of the first load. From then on a child may hold memory.
    first_load: Option<Instant>,
    /// True if NVML and this process use the same process ids.
    pids_are_known: bool,
    /// Bytes that remain allocated after a child's death.
    kept: u64,
}

impl GpuMonitor {
    pub(super) fn new(device: DeviceId, selector: DeviceSelector, now: Instant) -> Self {
        let started = match selector {
            DeviceSelector::Cpu => return Self::of(device, None, Nvml::Off),
            DeviceSelector::Cuda(ordinal) => NvmlMonitor::of_device(ordinal),
        };
        match started {
            Ok(nvml_monitor) => Self::of(device, Some(nvml_monitor), Nvml::Opening { since: now }),
            Err(error) => {
                let reason = error.to_string();
                Self::of(device, None, Nvml::Absent { reason })
            }
        }
    }

    fn of(device: DeviceId, nvml_monitor: Option<NvmlMonitor>, nvml: Nvml) -> Self {
        Self {
            device,
            nvml_monitor,
            snapshot: GpuSnapshot {
                nvml,
                ..GpuSnapshot::default()
            },
            xids: VecDeque::new(),
            first_load: None,
            pids_are_known: in_initial_pid_namespace(),
            kept: 0,
        }
    }

    pub(super) fn snapshot(&self) -> &GpuSnapshot {
        &self.snapshot
    }

    /// Next GPU sample. Pending forever without a monitor. Cancel-safe.
    pub(super) async fn next(&mut self) -> GpuSample {
        let Some(nvml_monitor) = &mut self.nvml_monitor else {
            return std::future::pending().await;
        };
        match nvml_monitor.next().await {
            Some(sample) => sample,
            None => {
                self.nvml_monitor = None;
                GpuSample::Absent("its threads have ended".to_owned())
            }
        }
    }

    // === samples ===

    /// Records a sample and returns the verdict for the lifecycle. `children`: process ids of the running children.
    /// Findings on a death are added to it.
    pub(super) fn note(
        &mut self,
        sample: GpuSample,
        children: &[u32],
        crashes: &mut CrashLog,
    ) -> Option<GpuVerdict> {
        match sample {
            GpuSample::Absent(reason) => self.lose(reason),
            GpuSample::Opened(identity) => {
                let (name, uuid) = (identity.name.as_deref(), identity.uuid.as_deref());
                info!(name, uuid, driver = identity.driver.as_deref(), "nvml");
                self.snapshot.identity = Some(identity);
            }
            GpuSample::Gauges(gauges, at) => {
                let mut deaths = crashes.deaths().filter(|it| self.is_of(it));
                let examined = deaths.any(|death| death.gpu.is_some());
                self.figures(gauges, at, children, examined);
            }
            GpuSample::Deaf(reason) => {
                warn!(reason, "nvml_xid_events_unavailable");
                self.snapshot.deaf = Some(reason);
            }
            GpuSample::Xid(seen) => return Some(self.xid(seen)),
            GpuSample::Examined { generation, action } => {
                return self.update(generation, crashes, |evidence| {
                    evidence.action_due = None;
                    evidence.action = action;
                });
            }
            GpuSample::Measured {
                generation,
                measure,
            } => {
                self.snapshot.last_measure = Some(measure);
                info!(
                    generation,
                    freed_after_ms = measure.freed_after.map(|it| it.as_millis() as u64),
                    residual_bytes = measure.residual,
                    "gpu_memory_after_death"
                );
                return self.update(generation, crashes, |it| it.measure = Some(measure));
            }
        }
        None
    }

    fn lose(&mut self, reason: String) {
        if !matches!(self.snapshot.nvml, Nvml::Absent { .. }) {
            warn!(reason, "nvml_absent");
            self.snapshot.nvml = Nvml::Absent { reason };
        }
    }

    fn figures(&mut self, gauges: Gauges, at: Instant, children: &[u32], somebody_died: bool) {
        self.snapshot.nvml = Nvml::Watching;
        if let Some(memory) = &gauges.memory {
            let is_listed = |pid: &u32| memory.lists(*pid) == Some(true);
            self.pids_are_known |= children.iter().any(is_listed);
            let untouched = self.first_load.is_none_or(|load| at < load);
            // A new context is counted shortly before it is listed, so the lowest value before any death is correct.
            if !somebody_died
                && (untouched || self.pids_are_known)
                && let Some(unowned) = memory.unowned()
            {
                let lowest = self.snapshot.baseline.map_or(unowned, |it| it.min(unowned));
                self.snapshot.baseline = Some(lowest);
            }
        }
        self.snapshot.taken = Some((gauges, at));
    }

    fn xid(&mut self, seen: SeenXid) -> GpuVerdict {
        warn!(
            xid = seen.xid.0,
            description = seen.xid.description(),
            "xid"
        );
        if self.xids.len() == XIDS_KEPT {
            self.xids.pop_front();
        }
        self.xids.push_back(seen);
        *self.snapshot.xids.entry(seen.xid).or_default() += 1;
        self.snapshot.last_xid = Some(seen);
        GpuVerdict::Reported(seen.xid)
    }

    // === child lifecycle ===

    /// Records the start of a load, before the child allocates device memory.
    pub(super) fn load_begins(&mut self, now: Instant) {
        self.first_load.get_or_insert(now);
    }

    /// Takes a sample of a child's memory. At readiness all its memory is allocated, and a child that dies within a
    /// second would otherwise leave no sample. A monitor of a different card is removed.
    pub(super) fn child_computes_on(&mut self, uuid: Option<&str>) {
        if let Some(nvml_monitor) = &self.nvml_monitor {
            nvml_monitor.look_now();
        }
        let watched = self
            .snapshot
            .identity
            .as_ref()
            .and_then(|it| it.uuid.as_deref());
        if let (Some(watched), Some(used)) = (watched, uuid)
            && !same_uuid(watched, used)
        {
            let reason = format!(
                "the child computes on {used}, but NVML counts {watched} at its place: set \
                 CUDA_DEVICE_ORDER=PCI_BUS_ID"
            );
            self.nvml_monitor = None;
            self.snapshot = GpuSnapshot::default();
            self.xids.clear();
            self.lose(reason);
        }
    }

    /// Sets the number of bytes that remain allocated, without an owner, after the child's death.
    pub(super) fn keeps(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    // === death of a child ===

    /// First evidence on a death. Later evidence arrives as samples, or not at all. `None` without a GPU or without a
    /// process.
    pub(super) fn examine(&self, death: &Death, reaping: &Reaping) -> Option<GpuEvidence> {
        let child = reaping.child.as_ref()?;
        if self.snapshot.nvml == Nvml::Off {
            return None;
        }
        let now = reaping.at.instant;
        // Older samples belong to the previous child.
        let gauges = self.snapshot.gauges(now);
        let of_its_life = gauges.filter(|(_, at)| *at >= child.spawned_at);
        let before = of_its_life.and_then(|(gauges, at)| {
            let memory = gauges.memory.as_ref()?;
            Some(MemoryBefore {
                child: memory.of(child.pid),
                used: memory.used,
                total: memory.total,
                at,
            })
        });
        let ordered = self.nvml_monitor.as_ref().is_some_and(|nvml_monitor| {
            nvml_monitor.examine(Examination {
                generation: death.generation.0,
                pid: child.pid,
                reaped_at: death.reaped.map_or(now, |(at, _)| at),
                baseline: self
                    .snapshot
                    .baseline
                    .map(|it| it.saturating_add(self.kept)),
                pids_are_known: self.pids_are_known,
            })
        });
        // A thread that accepts no order sends no action, so the action is unknown at the next tick.
        let patience = if ordered { WORD_WITHIN } else { Duration::ZERO };
        let identity = self.snapshot.identity.as_ref();
        let mut evidence = GpuEvidence {
            uuid: identity.and_then(|it| it.uuid.clone()),
            before,
            baseline: self.snapshot.baseline,
            action_due: Some(now + patience),
            ..GpuEvidence::default()
        };
        self.refresh(&mut evidence, reaping);
        Some(evidence)
    }

    /// Time at which [`Self::overdue`] is due.
    pub(super) fn next_deadline(&self, crashes: &CrashLog) -> Option<Instant> {
        if self.snapshot.nvml == Nvml::Off {
            return None;
        }
        let deaths = crashes.deaths().filter(|it| self.is_of(it));
        deaths.filter_map(action_due).min()
    }

    /// Verdicts on deaths without a timely recovery action, which is then unknown.
    pub(super) fn overdue(&self, now: Instant, crashes: &mut CrashLog) -> Vec<GpuVerdict> {
        let is_late = |death: &&mut Arc<Death>| {
            self.is_of(death) && action_due(death).is_some_and(|due| due <= now)
        };
        let late = crashes.deaths_mut().filter(is_late).map(Arc::make_mut);
        late.filter_map(|death| {
            death.gpu.as_mut()?.action_due = None;
            self.verdict(death)
        })
        .collect()
    }

    fn is_of(&self, death: &Death) -> bool {
        death.seat.device() == self.device
    }

    fn update(
        &self,
        generation: u32,
        crashes: &mut CrashLog,
        change: impl FnOnce(&mut GpuEvidence),
    ) -> Option<GpuVerdict> {
        let death = crashes.update(Generation(generation), |death| {
            if let (Some(evidence), Some(reaping)) = (&mut death.gpu, &death.reaping) {
                change(evidence);
                self.refresh(evidence, reaping);
            }
        });
        self.verdict(death?)
    }

    /// Xids may arrive after the death that they explain.
    fn refresh(&self, evidence: &mut GpuEvidence, reaping: &Reaping) {
        if let Some(child) = &reaping.child {
            let lifetime = child.spawned_at..=reaping.at.instant + WORD_WITHIN;
            let of_it = |seen: &&SeenXid| lifetime.contains(&seen.at);
            evidence.xids = self.xids.iter().filter(of_it).copied().collect();
        }
        let gauges = self.snapshot.taken.as_ref();
        evidence.ecc_uncorrected = gauges.and_then(|(gauges, _)| gauges.ecc_uncorrected);
    }

    fn verdict(&self, death: &Death) -> Option<GpuVerdict> {
        let died_at = death.reaping.as_ref()?.at.instant;
        let near = |seen: &&SeenXid| seen.at + NEAR >= died_at;
        let xids: Vec<Xid> = self.xids.iter().filter(near).map(|seen| seen.xid).collect();
        let action = death.gpu.as_ref()?.action;
        Some(GpuVerdict::AfterDeath { xids, action })
    }
}

fn action_due(death: &Arc<Death>) -> Option<Instant> {
    death.gpu.as_ref()?.action_due
}

/// True if this process shares the initial process id namespace with NVIDIA's driver. In any other namespace a match
/// must be observed first.
fn in_initial_pid_namespace() -> bool {
    // PROC_PID_INIT_INO of the kernel.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests;
