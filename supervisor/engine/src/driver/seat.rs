//! A seat: one child at a time and the state that ends with it.
//!
//! Deliberately absent: decisions. A [`SeatEvent`] goes to the driver, which passes it to the lifecycle.

use crate::child::confinement;
use crate::child::flight_recorder::FlightRecorder;
use crate::child::link::LinkError;
use crate::child::pending_spawns::{Born, PendingSpawns};
use crate::child::spawn::{Spawned, Spawner};
use crate::child::{Child, Sign};
use crate::driver::child_stats::ChildStats;
use crate::driver::flood::FloodGate;
use crate::driver::post_mortem::InFlightAtDeath;
use crate::driver::retained_memory::RetainedKv;
use crate::driver::silence::Silence;
use crate::engine::model::Unfit;
use crate::engine::{EngineSettings, LoadedModel};
use crate::handoff::living::{LivingChild, Part, Terms};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinHandle;
use tracing::warn;
use worker_orcd_ipc::flight::Recording;
use worker_orcd_ipc::{Command, Generation, Role};
use worker_orcd_lifecycle::{ChildEvent, SeatId, Signal};
use worker_orcd_text::TextError;

pub(super) struct Seat {
    pub(super) id: SeatId,
    pub(super) child: Option<Child>,
    /// Statistics of the child, while there is one.
    pub(super) stats: Option<ChildStats>,
    pub(super) silence: Silence,
    spawns: PendingSpawns,
    /// Flight recorder of the present or pending child. It is read after the child's death.
    recorder: Option<FlightRecorder>,
    /// True if a signal had stopped the child when it was killed.
    was_stopped: bool,
    building: Option<Building>,
    /// Role of the child.
    pub(super) role: Role,
    /// Loaded model of the child, until the child serves.
    pub(super) model: Option<Arc<LoadedModel>>,
    /// Requests of the child that continue before it is reaped.
    pub(super) released: InFlightAtDeath,
    /// Pending release: results of this child no longer count, but no other child serves yet.
    pub(super) to_release: Option<Generation>,
    /// True while the child takes over retained weights.
    pub(super) takes_over: bool,
    /// Lender of the KV cache that the child can adopt from.
    pub(super) adopts_from: Option<Generation>,
    /// KV cache of the child, until the child serves.
    pub(super) kv: Option<RetainedKv>,
    flood_gate: FloodGate,
}

/// Event in a seat.
pub(super) enum SeatEvent {
    Sign(Sign),
    Spawned(Spawned),
    Built(Box<Built>),
}

/// Result of a tokenizer build for the child that reported the model.
pub(super) struct Built {
    pub(super) generation: Generation,
    pub(super) model: Result<LoadedModel, Unfit>,
}

/// Tokenizer build for the child that reported the model.
#[derive(Debug)]
struct Building {
    generation: Generation,
    model: JoinHandle<Result<LoadedModel, Unfit>>,
}

impl Seat {
    pub(super) fn new(id: SeatId, now: Instant, spawner: &Spawner) -> Self {
        Self {
            id,
            child: None,
            stats: None,
            silence: Silence::default(),
            spawns: PendingSpawns::new(spawner.clone()),
            recorder: None,
            was_stopped: false,
            building: None,
            role: Role::Active,
            model: None,
            released: InFlightAtDeath::default(),
            to_release: None,
            takes_over: false,
            adopts_from: None,
            kv: None,
            flood_gate: FloodGate::new(now),
        }
    }

    /// Next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> SeatEvent {
        tokio::select! {
            sign = next_sign(&mut self.child) => SeatEvent::Sign(sign),
            spawned = self.spawns.next() => SeatEvent::Spawned(spawned),
            built = next_model(&mut self.building) => SeatEvent::Built(Box::new(built)),
        }
    }

    // === start of a child ===

    /// Orders a process.
    ///
    /// # Errors
    /// If none can be ordered.
    pub(super) fn begin(
        &mut self,
        generation: Generation,
        settings: &EngineSettings,
    ) -> io::Result<()> {
        let load = settings.load_on(self.id.device());
        let allowed = confinement::arguments(&load, settings.child_confinement);
        let program = &settings.child_binary;
        self.recorder = self.spawns.begin(generation, program, allowed)?;
        Ok(())
    }

    /// Accepts the ordered process and returns its process id. A late process is killed and becomes no child.
    ///
    /// # Errors
    /// If there is no process.
    pub(super) fn receive(&mut self, spawned: Spawned, now: Instant) -> io::Result<u32> {
        Ok(match self.spawns.finish(spawned)? {
            Born::Child(child) => {
                let stats = ChildStats::new(now, child.generation, child.pid);
                self.seat(*child, stats, now)
            }
            Born::Late { pid } => pid,
        })
    }

    /// Adopts a child of another supervisor and returns its process id.
    ///
    /// # Errors
    /// If a part of the child is missing. The child ends then.
    pub(super) fn resume(&mut self, mut living: LivingChild, now: Instant) -> io::Result<u32> {
        let recorder = living.take(Part::Recorder).ok();
        self.recorder = recorder.map(FlightRecorder::resume);
        let child = Child::resume(living)?;
        let stats = ChildStats::resumed(now, child.generation, child.pid);
        Ok(self.seat(child, stats, now))
    }

    fn seat(&mut self, child: Child, stats: ChildStats, now: Instant) -> u32 {
        let pid = child.pid;
        self.flood_gate = FloodGate::new(now);
        self.silence = Silence::default();
        self.stats = Some(stats);
        self.child = Some(child);
        pid
    }

    /// Hands the child over to another supervisor, alive.
    ///
    /// # Errors
    /// If the kernel has no descriptor for a part of the child, or no child can be handed over. The child ends then.
    pub(super) fn hand_over(&mut self, terms: Terms) -> io::Result<LivingChild> {
        let child = self.child.take().ok_or(io::ErrorKind::NotFound)?;
        let mut living = child.hand_over(terms)?;
        if let Some(recorder) = self.recorder.take() {
            living.add(Part::Recorder, recorder.hand_over());
        }
        Ok(living)
    }

    /// True if the child can be handed over.
    pub(super) fn may_hand_over(&self) -> bool {
        self.child.as_ref().is_some_and(Child::may_hand_over)
    }

    /// True if the child has loaded under another supervisor.
    pub(super) fn has_loaded(&self) -> bool {
        self.child.as_ref().is_some_and(Child::has_loaded)
    }

    pub(super) fn retell(&mut self) {
        if let Some(child) = &mut self.child {
            child.retell();
        }
    }

    /// Builds the model on another thread, because the build takes longer than a heartbeat interval.
    pub(super) fn build(
        &mut self,
        generation: Generation,
        build: impl FnOnce() -> Result<LoadedModel, Unfit> + Send + 'static,
    ) {
        let model = tokio::task::spawn_blocking(build);
        self.building = Some(Building { generation, model });
    }

    /// Stores the model until the child serves.
    pub(super) fn keep(&mut self, built: Built) -> ChildEvent {
        match built.model {
            Ok(model) => {
                self.model = Some(Arc::new(model));
                ChildEvent::Ready
            }
            Err(Unfit::OtherModel) => ChildEvent::ModelChanged,
            Err(nonsense @ Unfit::Nonsense(_)) => ChildEvent::Violation(nonsense.to_string()),
            Err(Unfit::Text(error)) => ChildEvent::Unservable(error.to_string()),
        }
    }

    pub(super) fn is_building(&self) -> bool {
        self.building.is_some()
    }

    // === running child ===

    /// True while an active child takes over retained weights. A standby does not count: the serving child beside it
    /// has verified the same weights.
    pub(super) fn takes_over_to_serve(&self) -> bool {
        self.takes_over && self.role == Role::Active
    }

    pub(super) fn has_child(&self, generation: Generation) -> bool {
        let child = self.child.as_ref();
        child.is_some_and(|child| child.generation == generation)
    }

    /// Counts a message without tokens. False: the rate limit is exceeded.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        self.flood_gate.admit(now)
    }

    pub(super) fn send(&mut self, command: &Command) -> Result<(), LinkError> {
        let child = self.child.as_mut();
        child.map_or(Ok(()), |child| child.send(command))
    }

    pub(super) fn write_deadline(&self) -> Option<Instant> {
        self.child.as_ref().and_then(Child::write_deadline)
    }

    // === end of a child ===

    /// Sends a signal to the child of this generation. False: there is no such child.
    pub(super) fn kill(&mut self, generation: Generation, signal: Signal) -> bool {
        let child = self.child.as_mut();
        let Some(child) = child.filter(|child| child.generation == generation) else {
            return false;
        };
        self.was_stopped |= child.is_stopped();
        child.kill(signal);
        if signal == Signal::Kill {
            // Unread messages of a killed child are dropped.
            child.close_link();
        }
        true
    }

    /// Flight record of the dead child, and whether a signal had stopped the child.
    pub(super) fn last_record(&mut self) -> (Option<Recording>, bool) {
        let recording = self.recorder.take().and_then(|recorder| {
            let read = recorder.read();
            read.inspect_err(|error| warn!(%error, "flight_recorder_unreadable"))
                .ok()
        });
        (recording, std::mem::take(&mut self.was_stopped))
    }

    pub(super) fn clear(&mut self) {
        self.building = None;
        self.model = None;
        self.released = InFlightAtDeath::default();
        self.to_release = None;
        self.takes_over = false;
        self.adopts_from = None;
        self.kv = None;
        self.spawns.give_up();
        self.child = None;
        self.stats = None;
    }
}

async fn next_sign(child: &mut Option<Child>) -> Sign {
    match child {
        Some(child) => child.next().await,
        None => std::future::pending().await,
    }
}

async fn next_model(building: &mut Option<Building>) -> Built {
    let Some(Building { generation, model }) = building else {
        return std::future::pending().await;
    };
    let generation = *generation;
    let model = model
        .await
        .unwrap_or_else(|error| Err(TextError::Malformed(error.to_string()).into()));
    *building = None;
    Built { generation, model }
}
