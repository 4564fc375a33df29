//! What the driver tells the world: log lines at each turn of a child's life, and snapshots.

use crate::driver::rate::Rate;
use crate::engine::snapshot::{Impairment, LastDeath};
use crate::engine::{
    ChildSnapshot, EngineSnapshot, FaultsSnapshot, GpuSnapshot, LoadSnapshot, LoadedModel,
};
use crate::requests::{Registry, Requests};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use worker_orcd_ipc::{
    ChildHello, DeviceSelector, Generation, Heartbeat, Load, LoadOrder, MemoryReport, ReadyReport,
};
use worker_orcd_lifecycle::{DeathCause, Deed, Effect, SeatId, State, Worker};

/// A snapshot is never older than this while anything happens at all.
const STALE_AFTER: Duration = Duration::from_millis(250);

/// Shares of a load, in percent, that are worth a log line.
const LOAD_MILESTONES: [u64; 5] = [0, 25, 50, 75, 100];

#[derive(Debug)]
pub(super) struct News {
    started: Instant,
    /// What is loaded, by its file's name without the ending, and where.
    model: String,
    device: String,
    taken_at: Instant,
    /// Something changed since the last snapshot.
    dirty: bool,
    child: Option<ChildSnapshot>,
    memory: Option<(MemoryReport, Instant)>,
    load: Option<(Load, Instant)>,
    /// What all children before the last heartbeat have counted.
    prompt_tokens_total: u64,
    prefix_hit_tokens_total: u64,
    rate: Rate,
    /// Milestones of the present load that were logged.
    milestones: usize,
    last_death: Option<LastDeath>,
    interrupted_at: Option<Instant>,
    /// When tokens came last.
    token_at: Option<Instant>,
    /// Since when those who are with a dying child have heard nothing.
    silent_since: Option<Instant>,
    spawns: u64,
    /// By name: what does not work, while everything else does.
    impaired: BTreeMap<&'static str, Impairment>,
}

impl News {
    pub(super) fn new(started: Instant, load: &LoadOrder) -> Self {
        Self {
            started,
            model: Path::new(&load.model_path)
                .file_stem()
                .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
            device: match load.device {
                DeviceSelector::Cpu => "cpu".to_owned(),
                DeviceSelector::Cuda(ordinal) => format!("cuda:{ordinal}"),
            },
            taken_at: started,
            dirty: true,
            child: None,
            memory: None,
            load: None,
            prompt_tokens_total: 0,
            prefix_hit_tokens_total: 0,
            rate: Rate::default(),
            milestones: 0,
            last_death: None,
            interrupted_at: None,
            token_at: None,
            silent_since: None,
            spawns: 0,
            impaired: BTreeMap::new(),
        }
    }

    // === a child's life ===

    pub(super) fn spawned(&mut self, now: Instant, generation: Generation, pid: u32) {
        info!(generation = generation.0, pid, "child_spawn");
        self.dirty = true;
        self.spawns += 1;
        self.milestones = 0;
        self.child = Some(ChildSnapshot {
            pid,
            generation: generation.0,
            build: None,
            features: vec![],
            spawned_at: now,
            ready_at: None,
            heartbeat_at: None,
            progress_at: None,
            steps: None,
            step_elapsed: None,
            load_progress: None,
        });
    }

    pub(super) fn hello(&mut self, hello: ChildHello) {
        self.dirty = true;
        if let Some(child) = &mut self.child {
            child.build = Some(hello.build);
            child.features = hello.features;
        }
    }

    pub(super) fn load_progress(&mut self, now: Instant, bytes_done: u64, bytes_total: u64) {
        self.dirty = true;
        let Some(child) = &mut self.child else { return };
        if child
            .load_progress
            .is_none_or(|(done, _)| bytes_done > done)
        {
            child.progress_at = Some(now);
        }
        child.load_progress = Some((bytes_done, bytes_total));
        let generation = child.generation;
        while let Some(percent) = LOAD_MILESTONES.get(self.milestones)
            && reached(*percent, bytes_done, bytes_total)
        {
            info!(
                generation,
                percent, bytes_done, bytes_total, "model_load_progress"
            );
            self.milestones += 1;
        }
    }

    pub(super) fn loaded(&mut self, now: Instant, report: &ReadyReport) {
        self.memory = Some((report.memory, now));
        let model = &report.model;
        // A load that ends between two beats still has all its milestones.
        self.load_progress(now, model.file_bytes, model.file_bytes);
        info!(
            generation = self.child.as_ref().map(|child| child.generation),
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

    pub(super) fn ready(&mut self, now: Instant, model: &LoadedModel) {
        self.dirty = true;
        self.interrupted_at = None;
        if let Some(child) = &mut self.child {
            child.ready_at = Some(now);
            child.progress_at = Some(now);
            child.load_progress = None;
        }
        if let Some(death) = self
            .last_death
            .as_mut()
            .filter(|death| death.pause.is_none())
        {
            death.pause = Some(now.saturating_duration_since(death.at));
        }
        let generation = self.child.as_ref().map(|child| child.generation);
        let pause_ms = self
            .last_death
            .as_ref()
            .and_then(|death| death.pause)
            .map(in_ms);
        let (name, device) = (&self.model, &model.device.id);
        info!(generation, model = name, device, pause_ms, "child_ready");
    }

    pub(super) fn heartbeat(&mut self, now: Instant, heartbeat: &Heartbeat, tokens_total: u64) {
        self.dirty = true;
        self.memory = Some((heartbeat.memory, now));
        let before = self.load.map(|(load, _)| load).unwrap_or_default();
        let rise = |now: u64, before: u64| now.saturating_sub(before);
        let Load {
            prompt_tokens,
            prefix_hit_tokens,
            ..
        } = heartbeat.load;
        self.prompt_tokens_total += rise(prompt_tokens, before.prompt_tokens);
        self.prefix_hit_tokens_total += rise(prefix_hit_tokens, before.prefix_hit_tokens);
        self.load = Some((heartbeat.load, now));
        self.rate.note(now, tokens_total);
        if let Some(child) = &mut self.child {
            child.heartbeat_at = Some(now);
            child.steps = Some(heartbeat.steps);
            child.step_elapsed = heartbeat.step_elapsed_ms.map(Duration::from_millis);
        }
    }

    pub(super) fn stepped(&mut self, now: Instant) {
        if let Some(child) = &mut self.child {
            child.progress_at = Some(now);
        }
    }

    pub(super) fn buried(&mut self) {
        self.dirty = true;
        self.child = None;
        self.load = None;
        self.rate = Rate::default();
    }

    /// Called before the effect is performed.
    pub(super) fn effect(&mut self, now: Instant, effect: &Effect) {
        self.dirty = true;
        match effect {
            Effect::Child {
                generation, deed, ..
            } => self.deed(now, *generation, deed),
            // The reason is told once, with the worker's `error`.
            Effect::End { exit, .. } => info!(exit = exit.code(), "engine_end"),
            Effect::RefuseNewWork | Effect::EndRequests(_) => {}
        }
    }

    fn deed(&mut self, now: Instant, generation: Generation, deed: &Deed) {
        match deed {
            Deed::Load => {
                let (model, device) = (&self.model, &self.device);
                info!(generation = generation.0, model, device, "model_load_start");
            }
            Deed::Kill(signal) => warn!(generation = generation.0, ?signal, "child_kill"),
            Deed::Bury(cause) => self.death(now, generation, cause),
            Deed::Spawn | Deed::Serve | Deed::Suspend | Deed::Dismiss => {}
        }
    }

    fn death(&mut self, now: Instant, generation: Generation, cause: &DeathCause) {
        if *cause == DeathCause::Dismissed {
            info!(generation = generation.0, "child_exit");
            return;
        }
        let (model, device) = (&self.model, &self.device);
        error!(generation = generation.0, label = cause.label(), %cause, model, device, "child_death");
        if self
            .child
            .as_ref()
            .is_some_and(|child| child.ready_at.is_some())
        {
            self.interrupted_at = Some(now);
        }
        // The pause began with the first of several deaths in a row.
        let unfinished = self
            .last_death
            .as_ref()
            .filter(|death| death.pause.is_none());
        self.last_death = Some(LastDeath {
            label: cause.label(),
            cause: cause.to_string(),
            generation: generation.0,
            at: unfinished.map_or(now, |death| death.at),
            silent_since: unfinished.map_or(self.silent_since, |death| death.silent_since),
            pause: None,
            stream_pause: None,
            report: None,
        });
    }

    /// Of the last death.
    pub(super) fn reported(&mut self, id: String) {
        if let Some(death) = &mut self.last_death {
            death.report = Some(id);
        }
    }

    /// Streams that were interrupted by the last death have their first new token.
    pub(super) fn flowing_again(&mut self, now: Instant) {
        self.dirty = true;
        if let Some(death) = &mut self.last_death {
            let from = death.silent_since.unwrap_or(death.at);
            death.stream_pause = Some(now.saturating_duration_since(from));
        }
    }

    /// A child has died; the oldest request that it had was accepted then. Before the death is told.
    pub(super) fn interrupted(&mut self, oldest: Option<Instant>) {
        self.silent_since = silence_began(self.token_at, oldest);
    }

    pub(super) fn tokens(&mut self, now: Instant) {
        self.token_at = Some(now);
    }

    /// Something does not work, and costs nothing but itself. Logged once.
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

    /// All of them; the crash reports' thread tells its own trouble.
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

    /// Something changed that is kept elsewhere.
    pub(super) fn touch(&mut self) {
        self.dirty = true;
    }

    // === looking ===

    pub(super) fn child(&self) -> Option<&ChildSnapshot> {
        self.child.as_ref()
    }

    /// The last report of the present child, if it has made one.
    pub(super) fn own_memory(&self) -> Option<&MemoryReport> {
        let spawned_at = self.child.as_ref()?.spawned_at;
        let (memory, taken_at) = self.memory.as_ref()?;
        (*taken_at >= spawned_at).then_some(memory)
    }

    // === snapshots ===

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.dirty || now.saturating_duration_since(self.taken_at) >= STALE_AFTER
    }

    pub(super) fn snapshot(
        &mut self,
        now: Instant,
        worker: &Worker,
        requests: &Requests,
        registry: &Registry,
    ) -> EngineSnapshot {
        self.dirty = false;
        self.taken_at = now;
        let (state, since) = worker.state();
        EngineSnapshot {
            taken_at: now,
            started_at: self.started,
            state,
            state_since: self.started + since,
            reason: self.reason(worker),
            serving: worker.seat(SeatId(0)).state().takes_work(),
            interrupted_at: self.interrupted_at,
            draining: worker.is_draining(),
            failed: worker.is_over() && worker.failure().is_some(),
            child: self.child.clone(),
            memory: self.memory,
            gpu: GpuSnapshot::default(),
            model_kept_open: false,
            load: LoadSnapshot {
                child: self.load,
                unassigned: requests.len() - requests.with_child(),
                capacity: registry.capacity(),
                tokens_total: requests.tokens_total(),
                tokens_per_second: self.rate.per_second(now),
                prompt_tokens_total: self.prompt_tokens_total,
                prefix_hit_tokens_total: self.prefix_hit_tokens_total,
                pace: requests.pace(),
            },
            faults: self.faults(now, worker, requests, registry),
            impaired: BTreeMap::new(),
        }
    }

    fn faults(
        &self,
        now: Instant,
        worker: &Worker,
        requests: &Requests,
        registry: &Registry,
    ) -> FaultsSnapshot {
        let policy = worker.settings().restart;
        let ledger = worker.ledger();
        FaultsSnapshot {
            deaths_by_cause: ledger.by_cause().clone(),
            deaths_in_window: ledger.within(now - self.started, policy.window),
            deaths_allowed: policy.max_deaths,
            window: policy.window,
            last: self.last_death.clone(),
            restarts: self.spawns.saturating_sub(1),
            recoveries: requests.recoveries_total(),
            stale_events: worker.stale_events(),
            on_probation: requests.on_probation(),
            probations: requests.probations_total(),
            quarantined_total: requests.quarantined_total(),
            quarantined: registry.quarantined(now),
            crash_reports: 0,
        }
    }

    fn reason(&self, worker: &Worker) -> String {
        if worker.is_over() {
            let failure = worker.failure();
            return failure.map_or("stopped".to_owned(), |failure| failure.reason.clone());
        }
        let doing = match worker.seat(SeatId(0)).state() {
            State::Spawning { .. } => "a child process is being started",
            State::Handshaking { .. } => "the child has not introduced itself yet",
            State::Loading { .. } => "the model is being loaded",
            State::Serving { .. } if worker.is_draining() => "finishing what was accepted",
            State::Serving { .. } => return "serving".to_owned(),
            State::Killing {
                cause: DeathCause::Dismissed,
                ..
            } => "the child was asked to go",
            State::Killing { cause, .. } => return format!("the child is being killed: {cause}"),
            State::Reaping { .. } => "the child is dying",
            State::Vacant { .. } => "waiting before the next child is started",
            State::Unreapable { .. } => "the child is stuck in the kernel",
        };
        match self
            .last_death
            .as_ref()
            .filter(|death| death.pause.is_none())
        {
            Some(death) => format!("{doing}, after this: {}", death.cause),
            None => doing.to_owned(),
        }
    }
}

/// For those of whom the oldest was accepted then; a token from before is none that they saw.
fn silence_began(token_at: Option<Instant>, oldest: Option<Instant>) -> Option<Instant> {
    oldest.map(|oldest| token_at.map_or(oldest, |at| at.max(oldest)))
}

/// A total of 0 is one that is not known yet.
fn reached(percent: u64, done: u64, total: u64) -> bool {
    percent == 0 || total > 0 && u128::from(done) * 100 >= u128::from(percent) * u128::from(total)
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn a_pause_of_streams_begins_with_their_last_token_and_not_with_the_notice() {
        let start = Instant::now();
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        assert_eq!(silence_began(at(5), at(3)), at(5));
        assert_eq!(
            silence_began(at(2), at(3)),
            at(3),
            "that one was none of theirs"
        );
        assert_eq!(silence_began(None, at(3)), at(3));
        assert_eq!(silence_began(at(2), None), None, "nobody waits");
    }

    #[test]
    fn milestones_are_shares_of_a_known_total() {
        assert!(reached(0, 0, 0));
        assert!(!reached(25, 0, 0));
        assert!(!reached(25, 24, 100));
        assert!(reached(25, 25, 100));
    }
}
