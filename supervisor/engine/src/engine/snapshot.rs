//! State snapshot for `/health` and `/metrics`. The driver takes it at each change and each heartbeat. Readers get it
//! from memory.
//!
//! Unknown values are `None`, and values that age carry their time.

use crate::crash::Death;
use crate::engine::gpu::GpuSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{Counters, DeviceSelector, Generation, Load, MemoryReport, Role};
use worker_orcd_requests::{Quarantined, Waits};

/// Time limit of a child's replacement before the worker reports itself unhealthy. It covers the reload of a large
/// model from a warm page cache.
pub(crate) const RECOVERY_PROMISE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct EngineSnapshot {
    pub taken_at: Instant,
    pub started_at: Instant,
    /// State name of the lifecycle, such as `serving`.
    pub state: &'static str,
    pub state_since: Instant,
    /// Human-readable reason of the state.
    pub reason: String,
    /// True if a child answers requests now.
    pub serving: bool,
    /// Time of the death that ended service. `None` while serving and before the first service.
    pub interrupted_at: Option<Instant>,
    pub draining: bool,
    pub failed: bool,
    /// Children in the order of their seats.
    pub children: Vec<ChildSnapshot>,
    /// Devices in the order of the worker's list, at least one.
    pub devices: Vec<DeviceSnapshot>,
    /// True if running streams do not depend on the file's path, so the file may be replaced or removed.
    pub model_kept_open: bool,
    pub load: LoadSnapshot,
    pub faults: FaultsSnapshot,
    /// Impairments by name. The worker serves in spite of them.
    pub impaired: BTreeMap<&'static str, Impairment>,
}

/// One device with the common state of its children.
#[derive(Debug, Clone)]
pub struct DeviceSnapshot {
    /// Index in the worker's list.
    pub place: u8,
    /// Device id in the syntax of the command line.
    pub id: String,
    /// `in_use`, or the lifecycle's name of the out-of-service reason.
    pub status: &'static str,
    /// Human-readable out-of-service reason.
    pub reason: Option<String>,
    /// Time since which the device is out of service or leaving it.
    pub out_since: Option<Instant>,
    /// True if the operator can return the device to service.
    pub may_readmit: bool,
    /// State name of the child that serves or is to serve.
    pub state: &'static str,
    /// True if a child of the device answers requests now.
    pub serving: bool,
    /// Standby. `None`: none is configured.
    pub standby: Option<StandbySnapshot>,
    /// Last memory report of any child, with its time.
    pub memory: Option<(MemoryReport, Instant)>,
    pub gpu: GpuSnapshot,
    /// Weights that outlive a child.
    pub retained: Option<RetainedSnapshot>,
    /// KV cache of the serving child, or of the last one, in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// Deaths within the window that interrupted service.
    pub deaths_in_window: u32,
    /// Deaths of children in a row without a delivered result.
    pub deaths_in_a_row: u32,
    /// End of the present burst of deaths, as far as known. It may be in the past.
    pub unsteady_until: Option<Instant>,
}

#[derive(Debug, Clone)]
pub struct Impairment {
    pub because: String,
    pub since: Instant,
}

/// Memory retained between two children.
#[derive(Debug, Clone, Copy)]
pub struct RetainedSnapshot {
    pub bytes: u64,
    /// Generation of the child that placed the weights.
    pub placed_by: u32,
    pub since: Instant,
    /// Time of the last successful check of all bytes by a child.
    pub verified_at: Instant,
}

/// Standby, or the reason why there is none.
#[derive(Debug, Clone)]
pub struct StandbySnapshot {
    /// State name of its life, or `given_up`.
    pub state: &'static str,
    /// True if it can take over at once.
    pub is_ready: bool,
    pub since: Instant,
    pub reason: Option<String>,
    /// Child with KV cache pages that the standby can adopt.
    pub adopts_from: Option<Generation>,
}

/// Name of a role in `/health`, metrics and logs.
#[must_use]
pub fn word_for(role: Role) -> &'static str {
    match role {
        Role::Active => "active",
        Role::Standby => "standby",
    }
}

#[derive(Debug, Clone)]
pub struct ChildSnapshot {
    /// Index of its device in the worker's list.
    pub device: u8,
    /// Role. `None`: the child is dying.
    pub role: Option<Role>,
    pub pid: u32,
    pub generation: u32,
    /// Build from its `Hello`.
    pub build: Option<String>,
    pub features: Vec<String>,
    pub spawned_at: Instant,
    pub ready_at: Option<Instant>,
    pub heartbeat_at: Option<Instant>,
    /// Time of its last finished step or load progress.
    pub progress_at: Option<Instant>,
    pub steps: Option<u64>,
    /// Run time of the step in progress at the last heartbeat.
    pub step_elapsed: Option<Duration>,
    /// Bytes done and total bytes during a load.
    pub load_progress: Option<(u64, u64)>,
    /// Last memory report, with its time.
    pub memory: Option<(MemoryReport, Instant)>,
    pub load: Option<(Load, Instant)>,
    /// Name of the draft model that it uses.
    pub draft_model: Option<String>,
    /// Reason for which it serves without the ordered draft model.
    pub draft_model_stopped: Option<String>,
    /// Mean over the last seconds, 0 if idle.
    pub tokens_per_second: f64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct LoadSnapshot {
    /// Sum of the children's own gauges, with their time.
    pub children: Option<(Load, Instant)>,
    /// Live requests that are with no child.
    pub unassigned: usize,
    /// Maximum number of live requests.
    pub capacity: usize,
    /// Tokens accepted from children since the start.
    pub tokens_total: u64,
    /// Mean over the last seconds, 0 if idle.
    pub tokens_per_second: f64,
    /// Sum over all children since the start.
    pub counters: Counters,
    /// Histogram of the time between tokens of streams since the start.
    pub gaps: Waits,
}

#[derive(Debug, Clone, Default)]
pub struct FaultsSnapshot {
    pub deaths_by_cause: BTreeMap<&'static str, u64>,
    /// Deaths within the window on the device with the most.
    pub deaths_in_window: u32,
    pub window: Duration,
    /// Number of deaths within the window above which a device is unsteady.
    pub burst: u32,
    /// Deaths of children in a row without a delivered result, on the device with the most.
    pub deaths_in_a_row: u32,
    pub deaths_allowed: u32,
    pub last: Option<Arc<Death>>,
    /// Number of spawns or promotions of a child in place of an earlier one.
    pub restarts: u64,
    /// Number of continuations of a request with another child.
    pub recoveries: u64,
    /// Number of overdue children that lost their requests to another child.
    pub overdue_children: u64,
    /// Histogram of the pauses of streams that moved to another child, from last token to next, since the start.
    pub pauses: Waits,
    /// Messages of dead children that were dropped.
    pub stale_events: u64,
    /// Requests that must run alone.
    pub on_probation: usize,
    /// Number of requests put on probation.
    pub probations: u64,
    /// Number of requests that ended as queries of death.
    pub quarantined_total: u64,
    /// Requests that are refused now.
    pub quarantined: Vec<Quarantined>,
    /// Number of reported deaths.
    pub crash_reports: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Status {
    Healthy,
    /// All requests are answered, but by fewer devices than configured, or with a pause at each death on an unsteady
    /// device.
    Degraded,
    /// A child is being replaced, and clients see a pause.
    Recovering,
    Draining,
    /// The worker does not serve: the first load, or a recovery beyond its time limit.
    Unhealthy,
    Failed,
}

impl Status {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// True if new requests are accepted and will be answered.
    #[must_use]
    pub fn can_serve(self) -> bool {
        matches!(self, Self::Healthy | Self::Degraded | Self::Recovering)
    }
}

impl DeviceSnapshot {
    fn before_anything() -> Self {
        Self {
            place: 0,
            id: String::new(),
            status: "in_use",
            reason: None,
            out_since: None,
            may_readmit: false,
            state: "spawning",
            serving: false,
            standby: None,
            memory: None,
            gpu: GpuSnapshot::default(),
            retained: None,
            kv_capacity_tokens: None,
            deaths_in_window: 0,
            deaths_in_a_row: 0,
            unsteady_until: None,
        }
    }

    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.out_since.is_none()
    }

    /// True if the device is in use and its children die in a burst.
    #[must_use]
    pub fn is_unsteady(&self, now: Instant) -> bool {
        self.is_in_use() && self.unsteady_until.is_some_and(|until| now < until)
    }
}

impl ChildSnapshot {
    /// New child without any report yet.
    #[must_use]
    pub fn begun(pid: u32, generation: u32, now: Instant) -> Self {
        Self {
            device: 0,
            role: None,
            pid,
            generation,
            build: None,
            features: vec![],
            spawned_at: now,
            ready_at: None,
            heartbeat_at: None,
            progress_at: None,
            steps: None,
            step_elapsed: None,
            load_progress: None,
            memory: None,
            load: None,
            draft_model: None,
            draft_model_stopped: None,
            tokens_per_second: 0.0,
        }
    }
}

impl EngineSnapshot {
    /// Snapshot of one device before any event.
    #[must_use]
    pub fn before_anything(now: Instant) -> Self {
        Self {
            taken_at: now,
            started_at: now,
            state: "spawning",
            state_since: now,
            reason: "starting".to_owned(),
            serving: false,
            interrupted_at: None,
            draining: false,
            failed: false,
            children: vec![],
            devices: vec![DeviceSnapshot::before_anything()],
            model_kept_open: false,
            load: LoadSnapshot::default(),
            faults: FaultsSnapshot::default(),
            impaired: BTreeMap::new(),
        }
    }

    /// Snapshot of these devices before any event.
    pub(crate) fn at_start(now: Instant, devices: &[DeviceSelector]) -> Self {
        let of_device = |(place, selector): (u8, &DeviceSelector)| DeviceSnapshot {
            place,
            id: selector.to_string(),
            ..DeviceSnapshot::before_anything()
        };
        Self {
            devices: (0..).zip(devices).map(of_device).collect(),
            ..Self::before_anything(now)
        }
    }

    /// Child of the [representative device](Self::device): the serving child, or the one that is to serve, else a dying
    /// one.
    #[must_use]
    pub fn child(&self) -> Option<&ChildSnapshot> {
        self.child_on(self.device())
    }

    /// Representative device: the first that serves, else the first.
    #[must_use]
    pub fn device(&self) -> &DeviceSnapshot {
        let serving = self.devices.iter().find(|device| device.serving);
        serving.unwrap_or(&self.devices[0])
    }

    /// Children on a device.
    pub(crate) fn children_on(
        &self,
        device: &DeviceSnapshot,
    ) -> impl Iterator<Item = &ChildSnapshot> {
        let children = self.children.iter();
        children.filter(|child| child.device == device.place)
    }

    /// Child of a device that serves, or is to serve, else a dying one.
    #[must_use]
    pub fn child_on(&self, device: &DeviceSnapshot) -> Option<&ChildSnapshot> {
        let children = || self.children_on(device);
        let active = || children().filter(|child| child.role == Some(Role::Active));
        let serves = active().find(|child| child.ready_at.is_some());
        let dying = || children().find(|child| child.role.is_none());
        serves.or_else(|| active().next()).or_else(dying)
    }

    /// Name of the draft model of the children that serve; `None` if none of them has one.
    #[must_use]
    pub fn draft_model(&self) -> Option<&str> {
        let children = self.children.iter();
        let mut active = children.filter(|child| child.role == Some(Role::Active));
        active.find_map(|child| child.draft_model.as_deref())
    }

    #[must_use]
    pub fn standby_on(&self, device: &DeviceSnapshot) -> Option<&ChildSnapshot> {
        let mut children = self.children_on(device);
        children.find(|child| child.role == Some(Role::Standby))
    }

    /// Memory in bytes of a device's standby, by its own report. Without a count for the KV cache, none of it was
    /// written before the promotion.
    #[must_use]
    pub fn standby_bytes(&self, device: &DeviceSnapshot) -> Option<u64> {
        let (memory, _) = self.standby_on(device)?.memory?;
        let kv = memory.kv_taken_bytes.unwrap_or(0);
        let others = memory
            .known_bytes()
            .saturating_sub(memory.kv_capacity_bytes);
        Some(others.saturating_add(kv))
    }

    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let patience_left = |since| now.saturating_duration_since(since) < RECOVERY_PROMISE;
        if self.failed {
            Status::Failed
        } else if self.draining {
            Status::Draining
        } else if !self.serving && !self.interrupted_at.is_some_and(patience_left) {
            Status::Unhealthy
        } else if self.devices.iter().any(|it| it.is_unsteady(now)) {
            // The pauses of a burst appear as one state.
            Status::Degraded
        } else if !self.serving {
            Status::Recovering
        } else if self.devices.iter().all(DeviceSnapshot::is_in_use) {
            Status::Healthy
        } else {
            Status::Degraded
        }
    }

    /// True if new requests should be routed here: they will be answered, and not only by unsteady devices.
    #[must_use]
    pub fn is_ready(&self, now: Instant) -> bool {
        let is_steady = |device: &DeviceSnapshot| device.is_in_use() && !device.is_unsteady(now);
        self.status(now).can_serve() && self.devices.iter().any(is_steady)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn a_standby_takes_of_its_kv_cache_what_was_made_ready() {
        let now = Instant::now();
        let taken = |kv_taken_bytes| {
            let memory = MemoryReport {
                weights_bytes: 100,
                kv_capacity_bytes: 20,
                kv_taken_bytes,
                scratch_bytes: 3,
                ..MemoryReport::default()
            };
            let mut snapshot = EngineSnapshot::before_anything(now);
            snapshot.children = vec![ChildSnapshot {
                role: Some(Role::Standby),
                memory: Some((memory, now)),
                ..ChildSnapshot::begun(7, 1, now)
            }];
            snapshot.standby_bytes(snapshot.device())
        };
        assert_eq!(taken(Some(20)), Some(123));
        assert_eq!(taken(Some(7)), Some(110));
        assert_eq!(taken(None), Some(103));
        let nobody = EngineSnapshot::before_anything(now);
        assert_eq!(nobody.standby_bytes(nobody.device()), None);
    }

    #[test]
    fn an_unsteady_device_makes_a_worker_degraded_and_one_without_a_steady_device_not_ready() {
        let start = Instant::now();
        let burst = Duration::from_secs(60);
        let mut snapshot = EngineSnapshot::before_anything(start);
        snapshot.devices.push(DeviceSnapshot::before_anything());
        snapshot.serving = true;
        let at = |snapshot: &EngineSnapshot, now| (snapshot.status(now), snapshot.is_ready(now));
        assert_eq!(at(&snapshot, start), (Status::Healthy, true));
        snapshot.devices[0].unsteady_until = Some(start + burst);
        assert_eq!(at(&snapshot, start), (Status::Degraded, true));
        snapshot.devices[1].unsteady_until = Some(start + burst);
        assert_eq!(at(&snapshot, start), (Status::Degraded, false));
        assert_eq!(at(&snapshot, start + burst), (Status::Healthy, true));
        snapshot.devices[1].out_since = Some(start);
        assert_eq!(at(&snapshot, start), (Status::Degraded, false));
        snapshot.serving = false;
        assert_eq!(at(&snapshot, start), (Status::Unhealthy, false));
        snapshot.interrupted_at = Some(start);
        assert_eq!(at(&snapshot, start), (Status::Degraded, false));
    }

    #[test]
    fn recovering_is_a_promise_with_an_end() {
        let start = Instant::now();
        let mut snapshot = EngineSnapshot::before_anything(start);
        assert_eq!(
            snapshot.status(start),
            Status::Unhealthy,
            "the first load is no recovery"
        );
        snapshot.interrupted_at = Some(start);
        assert_eq!(snapshot.status(start), Status::Recovering);
        assert_eq!(snapshot.status(start + RECOVERY_PROMISE), Status::Unhealthy);
        snapshot.serving = true;
        assert_eq!(snapshot.status(start + RECOVERY_PROMISE), Status::Healthy);
        snapshot.devices[0].out_since = Some(start);
        assert_eq!(snapshot.status(start), Status::Degraded);
        assert!(!snapshot.is_ready(start), "no device is in use");
        snapshot.draining = true;
        assert_eq!(snapshot.status(start), Status::Draining);
        snapshot.failed = true;
        assert_eq!(snapshot.status(start), Status::Failed);
    }
}
