//! The snapshot of which /health and /metrics are made: taken by the driver at every change and at
//! every heartbeat, read from memory by anybody.
//!
//! Nothing is guessed: what is unknown is `None`, and every figure that ages carries the moment
//! it was taken at.

use crate::crash::Death;
use crate::engine::gpu::GpuSnapshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{DeviceSelector, Generation, Load, MemoryReport, Role};
use worker_orcd_requests::{Quarantined, Waits};

/// Time that a client may be kept waiting for a child that is being replaced before the worker
/// calls itself unhealthy: a reload of a large model from a warm page cache.
pub const RECOVERY_PROMISE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct EngineSnapshot {
    pub taken_at: Instant,
    pub started_at: Instant,
    /// The lifecycle's own word, such as `serving`.
    pub state: &'static str,
    pub state_since: Instant,
    /// The reason in words, for a person.
    pub reason: String,
    /// Requests are answered now.
    pub serving: bool,
    /// The moment at which a death ended serving; `None` while serving and before the first time.
    pub interrupted_at: Option<Instant>,
    pub draining: bool,
    pub failed: bool,
    /// Children in the order of their seats.
    pub children: Vec<ChildSnapshot>,
    /// In the order of the worker's list; one at least.
    pub devices: Vec<DeviceSnapshot>,
    /// True if running streams do not depend on the file's name: it may be replaced or removed.
    pub model_kept_open: bool,
    pub load: LoadSnapshot,
    pub faults: FaultsSnapshot,
    /// Things that do not work, by name, while everything else does.
    pub impaired: BTreeMap<&'static str, Impairment>,
}

/// One device, and what is known of its children together.
#[derive(Debug, Clone)]
pub struct DeviceSnapshot {
    /// Its place in the worker's list.
    pub place: u8,
    /// As it is written on the command line.
    pub id: String,
    /// `in_use`, or the lifecycle's word for why it is not.
    pub standing: &'static str,
    /// Why it is not in use, for a person.
    pub reason: Option<String>,
    /// Since when it is not in use, or on its way there.
    pub out_since: Option<Instant>,
    /// It can be used again as soon as the operator says so.
    pub may_readmit: bool,
    /// The lifecycle's word for the child that serves, or is to.
    pub state: &'static str,
    /// Requests are answered on it now.
    pub serving: bool,
    /// `None`: there is to be none.
    pub standby: Option<StandbySnapshot>,
    /// The last report of any child, and when it came.
    pub memory: Option<(MemoryReport, Instant)>,
    pub gpu: GpuSnapshot,
    /// Weights that outlive a child.
    pub custody: Option<CustodySnapshot>,
    /// KV cache of the child that serves, or served last, in tokens.
    pub kv_capacity_tokens: Option<u64>,
    /// Deaths in the last minute that interrupted it.
    pub deaths_in_window: u32,
    /// Children in a row that died and delivered nothing.
    pub deaths_in_a_row: u32,
    /// Its children die in a burst until then, as far as is known; that may be over.
    pub unsteady_until: Option<Instant>,
}

#[derive(Debug, Clone)]
pub struct Impairment {
    pub because: String,
    pub since: Instant,
}

/// Memory that is kept between two children.
#[derive(Debug, Clone, Copy)]
pub struct CustodySnapshot {
    pub bytes: u64,
    /// The generation of the child that placed them there.
    pub placed_by: u32,
    pub since: Instant,
    /// When a child last found every byte unchanged.
    pub verified_at: Instant,
}

/// The standby, or why there is none.
#[derive(Debug, Clone)]
pub struct StandbySnapshot {
    /// The lifecycle's word for its life, or `given_up`.
    pub state: &'static str,
    /// It would take over at once.
    pub is_ready: bool,
    pub since: Instant,
    pub reason: Option<String>,
    /// The child whose KV cache it can take pages from.
    pub adopts_from: Option<Generation>,
}

/// A role as /health, metrics and logs name it.
#[must_use]
pub fn word_for(role: Role) -> &'static str {
    match role {
        Role::Active => "active",
        Role::Standby => "standby",
    }
}

#[derive(Debug, Clone)]
pub struct ChildSnapshot {
    /// Its device's place in the worker's list.
    pub device: u8,
    /// `None`: it is dying.
    pub role: Option<Role>,
    pub pid: u32,
    pub generation: u32,
    /// The build, from its hello.
    pub build: Option<String>,
    pub features: Vec<String>,
    pub spawned_at: Instant,
    pub ready_at: Option<Instant>,
    pub heartbeat_at: Option<Instant>,
    /// The moment at which it last finished a step or advanced its load.
    pub progress_at: Option<Instant>,
    pub steps: Option<u64>,
    /// Time that the step in progress had run at the last heartbeat.
    pub step_elapsed: Option<Duration>,
    /// Bytes done and in all, while it loads.
    pub load_progress: Option<(u64, u64)>,
    /// Its last word on its memory, and when it came.
    pub memory: Option<(MemoryReport, Instant)>,
    pub load: Option<(Load, Instant)>,
    /// Mean over the last seconds; 0 when nothing runs.
    pub tokens_per_second: f64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct LoadSnapshot {
    /// The children's own gauges together, and when they took them.
    pub children: Option<(Load, Instant)>,
    /// Live requests that no child has: they wait for the next one.
    pub unassigned: usize,
    /// Requests that may be live at once.
    pub capacity: usize,
    /// Tokens accepted from children since the start.
    pub tokens_total: u64,
    /// Mean over the last seconds; 0 when nothing runs.
    pub tokens_per_second: f64,
    /// Prompt tokens that children were given, and those that they found in their prefix caches,
    /// since the start.
    pub prompt_tokens_total: u64,
    pub prefix_hit_tokens_total: u64,
    /// Tokens that children did not compute again because they adopted pages of the one before, and pages
    /// that were not what they had been, since the start.
    pub adopted_tokens_total: u64,
    pub changed_pages_total: u64,
    /// Steps of children that decoded and had prompt tokens, too, and how many of those, since the start.
    pub mixed_steps_total: u64,
    pub mixed_prompt_tokens_total: u64,
    /// Waits between the tokens of streams, since the start.
    pub gaps: Waits,
}

#[derive(Debug, Clone, Default)]
pub struct FaultsSnapshot {
    pub deaths_by_cause: BTreeMap<&'static str, u64>,
    /// Deaths within the window, on the device that has most.
    pub deaths_in_window: u32,
    pub window: Duration,
    /// With more deaths within the window a device is unsteady.
    pub burst: u32,
    /// Children in a row that died and delivered nothing, on the device that has most.
    pub deaths_in_a_row: u32,
    pub deaths_allowed: u32,
    pub last: Option<Arc<Death>>,
    /// Times that a child was ordered, or promoted, to serve in place of one before.
    pub restarts: u64,
    /// Times that a request went on with another child.
    pub recoveries: u64,
    /// Times that a child was overdue and its requests went to another one.
    pub overdue_children: u64,
    /// Waits of streams whose request went over to another child, from their last token to the next
    /// one, since the start.
    pub pauses: Waits,
    /// Words of dead children that were dropped.
    pub stale_events: u64,
    /// Requests that must run alone before anybody else goes on.
    pub on_probation: usize,
    /// Times that a request was put on probation.
    pub probations: u64,
    /// Requests that ended as queries of death.
    pub quarantined_total: u64,
    /// Requests that are refused now.
    pub quarantined: Vec<Quarantined>,
    /// Deaths that were reported.
    pub crash_reports: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub enum Status {
    Healthy,
    /// Every request is answered, by fewer devices than there are to be, or with a pause each time that a child of an
    /// unsteady device dies.
    Degraded,
    /// A child is being replaced, and clients see a pause.
    Recovering,
    Draining,
    /// The worker does not serve: the first load, or a recovery that takes too long.
    Unhealthy,
    Failed,
}

impl Status {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Recovering => "recovering",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Failed => "failed",
        }
    }

    /// New requests are taken and will be answered.
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
            standing: "in_use",
            reason: None,
            out_since: None,
            may_readmit: false,
            state: "spawning",
            serving: false,
            standby: None,
            memory: None,
            gpu: GpuSnapshot::default(),
            custody: None,
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

    /// It is in use, and its children die in a burst.
    #[must_use]
    pub fn is_unsteady(&self, now: Instant) -> bool {
        self.is_in_use() && self.unsteady_until.is_some_and(|until| now < until)
    }
}

impl ChildSnapshot {
    /// A child of which nothing is known yet.
    pub(crate) fn begun(pid: u32, generation: u32, now: Instant) -> Self {
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
            tokens_per_second: 0.0,
        }
    }
}

impl EngineSnapshot {
    pub(crate) fn before_anything(now: Instant) -> Self {
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

    /// Of these devices nothing is known yet.
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

    /// That of the device that speaks for all: the one that serves, or is to; else one that dies.
    #[must_use]
    pub fn child(&self) -> Option<&ChildSnapshot> {
        self.child_on(self.device())
    }

    /// The device that speaks for all where one has to: the first that serves, else the first.
    #[must_use]
    pub fn device(&self) -> &DeviceSnapshot {
        let serving = self.devices.iter().find(|device| device.serving);
        serving.unwrap_or(&self.devices[0])
    }

    /// Children on that device.
    pub fn children_on(&self, device: &DeviceSnapshot) -> impl Iterator<Item = &ChildSnapshot> {
        let children = self.children.iter();
        children.filter(|child| child.device == device.place)
    }

    /// The one on that device that serves, or is to; else one that dies.
    #[must_use]
    pub fn child_on(&self, device: &DeviceSnapshot) -> Option<&ChildSnapshot> {
        let children = || self.children_on(device);
        let active = || children().filter(|child| child.role == Some(Role::Active));
        let serves = active().find(|child| child.ready_at.is_some());
        let dying = || children().find(|child| child.role.is_none());
        serves.or_else(|| active().next()).or_else(dying)
    }

    #[must_use]
    pub fn standby_on(&self, device: &DeviceSnapshot) -> Option<&ChildSnapshot> {
        let mut children = self.children_on(device);
        children.find(|child| child.role == Some(Role::Standby))
    }

    /// Memory that the standby of a device takes, as it says. Of a KV cache that nobody counts nothing was
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
            // The pauses of a burst are told as one state.
            Status::Degraded
        } else if !self.serving {
            Status::Recovering
        } else if self.devices.iter().all(DeviceSnapshot::is_in_use) {
            Status::Healthy
        } else {
            Status::Degraded
        }
    }

    /// New requests are better sent here than elsewhere: they will be answered, and not on unsteady devices alone.
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
