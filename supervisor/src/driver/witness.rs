//! What NVIDIA's library has sighted: whom it concerns, and what the lifecycle and the crash log are
//! told about it.
//!
//! On the CPU device there is no witness, nothing is loaded, and everything here is unknown.

use crate::crash::gpu::{GpuEvidence, MemoryBefore};
use crate::driver::Driver;
use crate::engine::gpu::{GpuSnapshot, Nvml};
use crate::nvml::library::Gauges;
use crate::nvml::reckoning::Examination;
use crate::nvml::{SeenXid, Sighting, Witness, same_uuid};
use std::collections::VecDeque;
use std::fs;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_lifecycle::{Event, RecoveryAction, Testimony, Xid};

/// Xids that are kept. A storm of them (45 comes once a channel) has nothing new to say.
const XIDS_KEPT: usize = 64;

/// Xids this long before a death belong to it. NVIDIA's driver reports a fault before the child can
/// notice, and a child that hangs in a dead device is noticed only at its heartbeat deadline.
const NEAR: Duration = Duration::from_secs(10);

/// For the recovery action of a device whose child has just died; then it is unknown. A device fault
/// stops the card for a while, and every call with it.
const WORD_WITHIN: Duration = Duration::from_secs(1);

/// Deaths whose memory may still be coming back; as many as the crash log keeps open.
const DEATHS_KEPT: usize = 16;

#[derive(Debug)]
pub(super) struct GpuWatch {
    witness: Option<Witness>,
    snapshot: GpuSnapshot,
    xids: VecDeque<SeenXid>,
    /// A child may have taken memory since then.
    first_load: Option<Instant>,
    /// The library and we call processes by the same numbers.
    pids_are_known: bool,
    deaths: VecDeque<Death>,
}

/// One that is being examined, or was.
#[derive(Debug)]
struct Death {
    generation: u32,
    spawned_at: Instant,
    at: Instant,
    /// While the recovery action is awaited.
    word_until: Option<Instant>,
    evidence: GpuEvidence,
}

/// A child that was just buried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buried {
    pub generation: u32,
    pub pid: u32,
    pub spawned_at: Instant,
    pub reaped_at: Instant,
}

/// What follows from a sighting.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Consequences {
    /// For the lifecycle.
    pub testimony: Option<Testimony>,
    /// For the crash report of that generation.
    pub evidence: Option<(u32, GpuEvidence)>,
}

impl GpuWatch {
    pub(super) fn new(device: DeviceSelector, now: Instant) -> Self {
        let started = match device {
            DeviceSelector::Cpu => return Self::of(None, Nvml::Off),
            DeviceSelector::Cuda(ordinal) => Witness::of_device(ordinal),
        };
        match started {
            Ok(witness) => Self::of(Some(witness), Nvml::Opening { since: now }),
            Err(error) => {
                let reason = error.to_string();
                Self::of(None, Nvml::Absent { reason })
            }
        }
    }

    fn of(witness: Option<Witness>, nvml: Nvml) -> Self {
        Self {
            witness,
            snapshot: GpuSnapshot {
                nvml,
                ..GpuSnapshot::default()
            },
            xids: VecDeque::new(),
            first_load: None,
            pids_are_known: in_initial_pid_namespace(),
            deaths: VecDeque::new(),
        }
    }

    pub(super) fn snapshot(&self) -> &GpuSnapshot {
        &self.snapshot
    }

    /// Waits for ever where there is no witness. Cancel-safe.
    pub(super) async fn next(&mut self) -> Sighting {
        let Some(witness) = &mut self.witness else {
            return std::future::pending().await;
        };
        match witness.next().await {
            Some(sighting) => sighting,
            None => {
                self.witness = None;
                Sighting::Absent("its threads have ended".to_owned())
            }
        }
    }

    // === what is sighted ===

    /// `child` is the process that lives now.
    pub(super) fn note(&mut self, sighting: Sighting, child: Option<u32>) -> Consequences {
        match sighting {
            Sighting::Absent(reason) => self.lose(reason),
            Sighting::Opened(identity) => {
                let (name, uuid) = (identity.name.as_deref(), identity.uuid.as_deref());
                info!(name, uuid, driver = identity.driver.as_deref(), "nvml");
                self.snapshot.identity = Some(identity);
            }
            Sighting::Gauges(gauges, at) => self.figures(gauges, at, child),
            Sighting::Deaf(reason) => {
                warn!(reason, "nvml_deaf");
                self.snapshot.deaf = Some(reason);
            }
            Sighting::Xid(seen) => return self.xid(seen),
            Sighting::Examined { generation, action } => {
                return self.update(generation, |death| {
                    death.word_until = None;
                    death.evidence.action = action;
                });
            }
            Sighting::Measured {
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
                return self.update(generation, |death| death.evidence.measure = Some(measure));
            }
        }
        Consequences::default()
    }

    fn lose(&mut self, reason: String) {
        if !matches!(self.snapshot.nvml, Nvml::Absent { .. }) {
            warn!(reason, "nvml_absent");
            self.snapshot.nvml = Nvml::Absent { reason };
        }
    }

    fn figures(&mut self, gauges: Gauges, at: Instant, child: Option<u32>) {
        self.snapshot.nvml = Nvml::Watching;
        if let Some(memory) = &gauges.memory {
            self.pids_are_known |= child.is_some_and(|pid| memory.lists(pid) == Some(true));
            let untouched = self.first_load.is_none_or(|load| at < load);
            // A context in the making is counted a moment before it is listed, so the lowest
            // figure before any death is the honest one.
            if self.deaths.is_empty()
                && (untouched || self.pids_are_known)
                && let Some(unowned) = memory.unowned()
            {
                let lowest = self.snapshot.baseline.map_or(unowned, |it| it.min(unowned));
                self.snapshot.baseline = Some(lowest);
            }
        }
        self.snapshot.taken = Some((gauges, at));
    }

    fn xid(&mut self, seen: SeenXid) -> Consequences {
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
        Consequences {
            testimony: Some(Testimony::Reported(seen.xid)),
            evidence: None,
        }
    }

    // === a child's life ===

    /// Its device is named for the first time; the memory it takes comes after this.
    pub(super) fn load_begins(&mut self, now: Instant) {
        self.first_load.get_or_insert(now);
    }

    /// It has all the memory that it will ever have, so this is the time to count it: a child that
    /// dies within a second would leave no figure behind. A witness of another card is worse than
    /// none.
    pub(super) fn child_computes_on(&mut self, uuid: Option<&str>) {
        if let Some(witness) = &self.witness {
            witness.look_now();
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
            self.witness = None;
            self.snapshot = GpuSnapshot::default();
            self.xids.clear();
            self.lose(reason);
        }
    }

    /// What is known so far, for the crash report; the rest comes as a sighting, or never.
    pub(super) fn child_died(&mut self, dead: Buried, now: Instant) -> Option<GpuEvidence> {
        if self.snapshot.nvml == Nvml::Off {
            return None;
        }
        // Older figures are of the child before it.
        let gauges = self.snapshot.gauges(now);
        let of_its_life = gauges.filter(|(_, at)| *at >= dead.spawned_at);
        let before = of_its_life.and_then(|(gauges, at)| {
            let memory = gauges.memory.as_ref()?;
            Some(MemoryBefore {
                child: memory.of(dead.pid),
                used: memory.used,
                total: memory.total,
                at,
            })
        });
        let ordered = self.witness.as_ref().is_some_and(|witness| {
            witness.examine(Examination {
                generation: dead.generation,
                pid: dead.pid,
                reaped_at: dead.reaped_at,
                baseline: self.snapshot.baseline,
                pids_are_known: self.pids_are_known,
            })
        });
        // A thread that takes no orders has no word to wait for: unknown at the next tick.
        let patience = if ordered { WORD_WITHIN } else { Duration::ZERO };
        let mut death = Death {
            generation: dead.generation,
            spawned_at: dead.spawned_at,
            at: now,
            word_until: Some(now + patience),
            evidence: GpuEvidence {
                uuid: self
                    .snapshot
                    .identity
                    .as_ref()
                    .and_then(|it| it.uuid.clone()),
                before,
                baseline: self.snapshot.baseline,
                ..GpuEvidence::default()
            },
        };
        self.refresh(&mut death);
        let evidence = death.evidence.clone();
        if self.deaths.len() == DEATHS_KEPT {
            self.deaths.pop_front();
        }
        self.deaths.push_back(death);
        Some(evidence)
    }

    /// When [`Self::overdue`] has something to say.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deaths
            .iter()
            .filter_map(|death| death.word_until)
            .min()
    }

    /// Deaths whose recovery action did not come in time: it is unknown.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Testimony> {
        let is_late = |death: &Death| death.word_until.is_some_and(|until| until <= now);
        let late: Vec<_> = (0..self.deaths.len())
            .filter(|index| is_late(&self.deaths[*index]))
            .collect();
        late.into_iter()
            .map(|index| {
                self.deaths[index].word_until = None;
                self.testimony(&self.deaths[index])
            })
            .collect()
    }

    fn update(&mut self, generation: u32, change: impl FnOnce(&mut Death)) -> Consequences {
        let found = self
            .deaths
            .iter()
            .position(|it| it.generation == generation);
        let Some(mut death) = found.and_then(|index| self.deaths.remove(index)) else {
            return Consequences::default();
        };
        change(&mut death);
        self.refresh(&mut death);
        let consequences = Consequences {
            testimony: Some(self.testimony(&death)),
            evidence: Some((generation, death.evidence.clone())),
        };
        self.deaths.push_back(death);
        consequences
    }

    /// Xids may arrive after the death they explain.
    fn refresh(&self, death: &mut Death) {
        let lifetime = death.spawned_at..=death.at + WORD_WITHIN;
        let of_it = |seen: &&SeenXid| lifetime.contains(&seen.at);
        death.evidence.xids = self.xids.iter().filter(of_it).copied().collect();
        let gauges = self.snapshot.taken.as_ref();
        death.evidence.ecc_uncorrected = gauges.and_then(|(gauges, _)| gauges.ecc_uncorrected);
    }

    fn testimony(&self, death: &Death) -> Testimony {
        let near = |seen: &&SeenXid| seen.at + NEAR >= death.at;
        let xids: Vec<Xid> = self.xids.iter().filter(near).map(|seen| seen.xid).collect();
        let action: Option<RecoveryAction> = death.evidence.action;
        Testimony::AfterDeath { xids, action }
    }
}

impl Driver {
    pub(super) fn on_sighting(&mut self, sighting: Sighting) {
        let mut children = self.seats.iter().filter_map(|seat| seat.child.as_ref());
        let child = children.next().map(|child| child.pid);
        let consequences = self.gpu.note(sighting, child);
        self.news.touch();
        if let Some((generation, evidence)) = consequences.evidence {
            self.crashes.witnessed(generation, evidence);
        }
        if let Some(testimony) = consequences.testimony {
            self.tell(Event::Gpu(testimony));
        }
    }
}

/// There NVIDIA's driver and we number processes alike; elsewhere it has to be seen first.
fn in_initial_pid_namespace() -> bool {
    // PROC_PID_INIT_INO of the kernel.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

#[cfg(test)]
mod tests;
