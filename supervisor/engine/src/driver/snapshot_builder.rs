//! Log lines at each transition of a child, and snapshots.

use crate::crash::Death;
use crate::driver::seat::Seat;
use crate::driver::seats::Seats;
use crate::engine::snapshot::{Impairment, StandbySnapshot, word_for};
use crate::engine::sums::{pace, together};
use crate::engine::{
    ChildSnapshot, DeviceSnapshot, EngineSnapshot, FaultsSnapshot, GpuSnapshot, LoadSnapshot,
    LoadedModel,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use worker_orcd_ipc::{
    Counters, DeviceSelector, Generation, MemoryReport, ReadyReport, Role, model_stem,
};
use worker_orcd_lifecycle::{ChildAction, DeathCause, DeviceId, Effect, Ledger, State, Worker};
use worker_orcd_requests::{Registry, Requests};

/// Age limit of a snapshot while events occur.
const STALE_AFTER: Duration = Duration::from_millis(250);

/// Name in `/health` of children that serve without the ordered draft model.
const DRAFT_MODEL: &str = "draft_model";

#[derive(Debug)]
pub(super) struct SnapshotBuilder {
    started: Instant,
    /// Model name: the file name without its extension.
    model: String,
    taken_at: Instant,
    /// True if anything has changed since the last snapshot.
    dirty: bool,
    devices: Vec<OfDevice>,
    /// Prompt token counts of all children up to their last heartbeats.
    counters: Counters,
    interrupted_at: Option<Instant>,
    /// Impairments by name. The worker serves in spite of them.
    impaired: BTreeMap<&'static str, Impairment>,
}

#[derive(Debug)]
struct OfDevice {
    id: String,
    /// Last memory report of a serving child, or of one that is to serve.
    memory: Option<(MemoryReport, Instant)>,
}

/// Sources of a snapshot.
pub(super) struct Sources<'a> {
    pub seats: &'a Seats,
    pub worker: &'a Worker,
    pub requests: &'a Requests,
    pub registry: &'a Registry,
    pub last_death: Option<Arc<Death>>,
}

impl SnapshotBuilder {
    pub(super) fn new(started: Instant, model: &str, devices: &[DeviceSelector]) -> Self {
        let of_device = |device: &DeviceSelector| OfDevice {
            id: device.to_string(),
            memory: None,
        };
        Self {
            started,
            model: model_stem(Path::new(model)),
            devices: devices.iter().map(of_device).collect(),
            taken_at: started,
            dirty: true,
            counters: Counters::default(),
            interrupted_at: None,
            impaired: BTreeMap::new(),
        }
    }

    // === child lifecycle ===

    pub(super) fn spawned(&mut self, generation: Generation, pid: u32) {
        info!(generation = generation.0, pid, "child_spawn");
        self.dirty = true;
    }

    pub(super) fn adopted(&mut self, generation: Generation, pid: u32) {
        info!(generation = generation.0, pid, "child_kept");
        self.dirty = true;
    }

    pub(super) fn loaded(&mut self, generation: Generation, report: &ReadyReport) {
        let model = &report.model;
        info!(
            generation = generation.0,
            model = self.model,
            gguf_name = model.name,
            architecture = model.architecture,
            quant_kind = model.quant_kind,
            device = report.device.id,
            file_bytes = model.file_bytes,
            kv_capacity_tokens = report.kv_capacity_tokens,
            "model_load_complete"
        );
    }

    /// Records readiness. `pause`: time without a serving child in the seat.
    pub(super) fn ready(
        &mut self,
        generation: Generation,
        model: &LoadedModel,
        pause: Option<Duration>,
    ) {
        self.dirty = true;
        self.interrupted_at = None;
        let (name, device) = (&self.model, &model.device.id);
        let (generation, pause_ms) = (generation.0, pause.map(in_ms));
        info!(generation, model = name, device, pause_ms, "child_ready");
    }

    pub(super) fn stands_by(&mut self, generation: Generation) {
        self.dirty = true;
        info!(generation = generation.0, "standby_ready");
    }

    /// Records the memory report of a child that serves, or is to serve. A standby has no KV cache before its
    /// promotion, and the size of the next child's cache must not follow from that.
    pub(super) fn remember(&mut self, now: Instant, device: DeviceId, memory: MemoryReport) {
        if memory.kv_capacity_bytes > 0 {
            self.devices[usize::from(device.0)].memory = Some((memory, now));
        }
    }

    /// Last recorded memory report.
    pub(super) fn memory(&self, device: DeviceId) -> Option<MemoryReport> {
        let of_device = self.devices.get(usize::from(device.0))?;
        of_device.memory.map(|(memory, _)| memory)
    }

    /// Records the increase of a child's counters.
    pub(super) fn heartbeat(&mut self, more: Counters) {
        self.dirty = true;
        self.counters = self.counters.plus(more);
        if more.changed_pages > 0 {
            warn!(pages = more.changed_pages, "kv_pages_changed");
        }
    }

    /// Records the start of the end of a child that served.
    pub(super) fn interrupted(&mut self, now: Instant) {
        self.interrupted_at = Some(now);
    }

    /// Logs an effect. Called before the effect is performed.
    pub(super) fn effect(&mut self, effect: &Effect) {
        self.dirty = true;
        match effect {
            Effect::Child {
                seat,
                generation,
                action,
            } => self.action(seat.device(), *generation, action),
            // The reason is logged once, with the worker's `error`.
            Effect::End { exit, .. } => info!(exit = exit.code(), "engine_end"),
            Effect::Failover {
                predecessor,
                successor,
            } => info!(of = predecessor.0, successor = successor.0, "failover"),
            Effect::DeviceOut(_)
            | Effect::DeviceIn(_)
            | Effect::RefuseNewWork
            | Effect::EndRequests(_) => {}
        }
    }

    fn action(&self, device: DeviceId, generation: Generation, action: &ChildAction) {
        let of_device = self.devices.get(usize::from(device.0));
        let device = of_device.map_or("", |it| it.id.as_str());
        let (generation, model) = (generation.0, &self.model);
        match action {
            ChildAction::Load(role) => {
                let role = word_for(*role);
                info!(generation, role, model, device, "model_load_start");
            }
            ChildAction::Promote => info!(generation, "standby_promoted"),
            ChildAction::Kill(signal) => warn!(generation, ?signal, "child_kill"),
            ChildAction::Reap(DeathCause::Dismissed) => info!(generation, "child_exit"),
            ChildAction::Reap(cause) => {
                let label = cause.label();
                error!(generation, label, %cause, model, device, "child_death");
            }
            ChildAction::Spawn
            | ChildAction::StandBy
            | ChildAction::Serve
            | ChildAction::Suspend { .. }
            | ChildAction::InvalidateWeights(_)
            | ChildAction::Release
            | ChildAction::Vacate
            | ChildAction::Dismiss => {}
        }
    }

    /// Records an impairment, which stops nothing else. Logged once.
    pub(super) fn impaired(&mut self, now: Instant, what: &'static str, because: &str) {
        if self.impaired.contains_key(what) {
            return;
        }
        warn!(what, because, "impaired");
        self.dirty = true;
        let impairment = Impairment {
            because: because.to_owned(),
            since: now,
        };
        self.impaired.insert(what, impairment);
    }

    pub(super) fn repaired(&mut self, what: &'static str) {
        if self.impaired.remove(what).is_some() {
            self.dirty = true;
            info!(what, "repaired");
        }
    }

    /// Reports a draft model that a child serves without, until a child has one and none is without.
    pub(super) fn draft_models(&mut self, now: Instant, children: &[ChildSnapshot]) {
        let stopped = |child: &ChildSnapshot| {
            let reason = child.draft_model_stopped.as_ref()?;
            Some(format!("generation {}: {reason}", child.generation))
        };
        if let Some(because) = children.iter().find_map(stopped) {
            let known = self.impaired.get(DRAFT_MODEL);
            if known.is_some_and(|known| known.because != because) {
                self.impaired.remove(DRAFT_MODEL);
            }
            self.impaired(now, DRAFT_MODEL, &because);
        } else if children.iter().any(|child| child.draft_model.is_some()) {
            self.repaired(DRAFT_MODEL);
        }
    }

    /// All impairments. The thread of the crash reports tracks its own.
    pub(super) fn impairments(
        &mut self,
        now: Instant,
        crash_reports: Option<String>,
    ) -> BTreeMap<&'static str, Impairment> {
        match crash_reports {
            Some(because) => self.impaired(now, "crash_reports", &because),
            None => self.repaired("crash_reports"),
        }
        self.impaired.clone()
    }

    /// Marks a change of state outside this module.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    // === snapshots ===

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.dirty || now.saturating_duration_since(self.taken_at) >= STALE_AFTER
    }

    pub(super) fn snapshot(&mut self, now: Instant, from: &Sources<'_>) -> EngineSnapshot {
        self.dirty = false;
        self.taken_at = now;
        let of = |seat: &Seat| {
            let life = from.worker.seat(seat.id);
            let role = life.state().is_under_way().then(|| life.role());
            let stats = seat.stats.as_ref();
            let device = seat.id.device().0;
            stats.map(|stats| ChildSnapshot {
                device,
                ..stats.snapshot(now, role)
            })
        };
        let children: Vec<_> = from.seats.iter().filter_map(of).collect();
        let (state, since) = from.worker.state();
        EngineSnapshot {
            taken_at: now,
            started_at: self.started,
            state,
            state_since: self.started + since,
            reason: reason(from, now - self.started),
            serving: from.worker.foremost().state().takes_work(),
            interrupted_at: self.interrupted_at,
            draining: from.worker.is_draining(),
            failed: from.worker.is_over() && from.worker.failure().is_some(),
            model_kept_open: false,
            load: self.load(from, &children),
            devices: self.devices(now, from),
            children,
            faults: self.faults(now, from),
            impaired: BTreeMap::new(),
        }
    }

    fn load(&self, from: &Sources<'_>, children: &[ChildSnapshot]) -> LoadSnapshot {
        let (requests, totals) = (from.requests, from.requests.totals());
        LoadSnapshot {
            children: children
                .iter()
                .filter_map(|child| child.load)
                .reduce(together),
            unassigned: requests.len() - requests.with_child(),
            capacity: from.registry.capacity(),
            tokens_total: totals.tokens,
            tokens_per_second: pace(children.iter()),
            counters: self.counters,
            gaps: totals.gaps,
        }
    }

    fn devices(&self, now: Instant, from: &Sources<'_>) -> Vec<DeviceSnapshot> {
        let worker = from.worker;
        let each = worker.devices().zip(&self.devices);
        let snapshot = |(device, it): (DeviceId, &OfDevice)| {
            let (status, life) = (worker.device_status(device), worker.foremost_of(device));
            let window = worker.settings().restart.window;
            let (ledger, out_of_service) = (worker.ledger(device), status.reason());
            DeviceSnapshot {
                place: device.0,
                id: it.id.clone(),
                status: status.name(),
                reason: out_of_service.map(ToString::to_string),
                out_since: status.since().map(|since| self.started + since),
                may_readmit: worker.may_readmit(device),
                state: life.state().name(),
                serving: life.state().takes_work(),
                standby: self.standby(device, from),
                memory: it.memory,
                gpu: GpuSnapshot::default(),
                retained: None,
                kv_capacity_tokens: None,
                deaths_in_window: ledger.within(now - self.started, window),
                deaths_in_a_row: ledger.deaths_without_progress(),
                unsteady_until: ledger.unsteady_until().map(|until| self.started + until),
            }
        };
        each.map(snapshot).collect()
    }

    fn standby(&self, device: DeviceId, from: &Sources<'_>) -> Option<StandbySnapshot> {
        let life = from.worker.standby(device)?;
        let given_up = from.worker.standby_given_up(device);
        let of_device = |seat: &&Seat| seat.id.device() == device && seat.role == Role::Standby;
        let mut standbys = from.seats.iter().filter(of_device);
        Some(StandbySnapshot {
            state: match given_up {
                Some(_) => "given_up",
                None => life.state().name(),
            },
            is_ready: matches!(life.state(), State::StandingBy { .. }),
            since: self.started + life.state().since(),
            reason: given_up.map(str::to_owned),
            adopts_from: standbys.find_map(|seat| seat.adopts_from),
        })
    }

    fn faults(&self, now: Instant, from: &Sources<'_>) -> FaultsSnapshot {
        let (worker, requests) = (from.worker, from.requests);
        let totals = requests.totals();
        let policy = worker.settings().restart;
        let ledgers: Vec<_> = worker.devices().map(|it| worker.ledger(it)).collect();
        let mut deaths_by_cause = BTreeMap::new();
        for (cause, deaths) in ledgers.iter().flat_map(|ledger| ledger.by_cause()) {
            *deaths_by_cause.entry(*cause).or_insert(0) += deaths;
        }
        let within = |ledger: &&Ledger| ledger.within(now - self.started, policy.window);
        let in_a_row = ledgers.iter().map(|it| it.deaths_without_progress());
        FaultsSnapshot {
            deaths_by_cause,
            deaths_in_window: ledgers.iter().map(within).max().unwrap_or(0),
            window: policy.window,
            burst: policy.burst,
            deaths_in_a_row: in_a_row.max().unwrap_or(0),
            deaths_allowed: policy.max_deaths,
            last: from.last_death.clone(),
            restarts: worker.failovers(),
            recoveries: totals.recoveries,
            overdue_children: totals.overdue_children,
            pauses: totals.pauses,
            stale_events: worker.stale_events(),
            on_probation: requests.on_probation(),
            probations: totals.probations,
            quarantined_total: totals.quarantined,
            quarantined: from.registry.quarantined(now),
            crash_reports: 0,
        }
    }
}

/// Human-readable reason of the present state.
fn reason(from: &Sources<'_>, now: Duration) -> String {
    let worker = from.worker;
    if worker.is_over() {
        let failure = worker.failure();
        return failure.map_or("stopped".to_owned(), |failure| failure.reason.clone());
    }
    let doing = match worker.foremost().state() {
        State::Serving { .. } if worker.is_draining() => "finishing what was accepted",
        state @ State::Serving { .. } => {
            return state.description().to_owned() + &without(worker) + &burst(from, now);
        }
        State::Killing { cause, .. } if *cause != DeathCause::Dismissed => {
            return format!("the child is being killed: {cause}");
        }
        state => state.description(),
    };
    let last = from.last_death.as_ref();
    let unrecovered = last.filter(|death| death.is_unrecovered());
    match unrecovered.and_then(|death| death.reaping.as_ref()) {
        Some(reaping) => format!("{doing}, after this: {}", reaping.cause),
        None => doing.to_owned(),
    }
}

/// Text on the devices with frequent deaths, with the cause of the last death.
fn burst(from: &Sources<'_>, now: Duration) -> String {
    let worker = from.worker;
    let window = worker.settings().restart.window;
    let is_one_of_several = worker.devices().count() > 1;
    let of_device = |device: DeviceId| {
        let place = match is_one_of_several {
            true => format!(" on device {device}"),
            false => String::new(),
        };
        let deaths = worker.ledger(device).within(now, window);
        let seconds = window.as_secs();
        let is_unsteady = worker.is_unsteady(device, now);
        is_unsteady.then(|| format!(", in a burst of deaths{place} ({deaths} within {seconds} s)"))
    };
    let devices: String = worker.devices().filter_map(of_device).collect();
    let last = from.last_death.as_ref();
    match last.and_then(|death| death.reaping.as_ref()) {
        Some(reaping) if !devices.is_empty() => {
            format!("{devices}, the last because: {}", reaping.cause)
        }
        _ => devices,
    }
}

/// Text on the devices out of service, with reasons.
fn without(worker: &Worker) -> String {
    let absent = |device| {
        let out_of_service = worker.device_status(device).reason()?;
        Some(format!(", without device {device}: {out_of_service}"))
    };
    worker.devices().filter_map(absent).collect()
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
