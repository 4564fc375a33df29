//! One place where a child lives, and all that dies with it.
//!
//! Deliberately absent: what follows from anything here. A [`Happening`] goes to the driver, which asks
//! the lifecycle.

use crate::child::confinement;
use crate::child::flight_recorder::FlightRecorder;
use crate::child::link::LinkError;
use crate::child::nursery::{Born, Nursery};
use crate::child::spawn::{Spawned, Spawner};
use crate::child::{Child, Sign};
use crate::driver::flood::FloodGate;
use crate::driver::keeping::KeptKv;
use crate::driver::post_mortem::Bereft;
use crate::driver::silence::Silence;
use crate::driver::vitals::Vitals;
use crate::engine::model::Unfit;
use crate::engine::{EngineSettings, LoadedModel};
use crate::estate::living::{LivingChild, Part, Terms};
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
    /// Vitals, as long as there is a child.
    pub(super) vitals: Option<Vitals>,
    pub(super) silence: Silence,
    nursery: Nursery,
    /// Recorder of the child that is or is being made; what the dead one wrote is read from here.
    recorder: Option<FlightRecorder>,
    /// True if it stood still by a signal when it had to be killed.
    was_stopped: bool,
    building: Option<Building>,
    /// What its child is to be, however it loads.
    pub(super) role: Role,
    /// The model as its child has loaded it, until that child serves.
    pub(super) model: Option<Arc<LoadedModel>>,
    /// Requests that its child had, and that go on before it is buried.
    pub(super) released: Bereft,
    /// Its child can say nothing more that counts, and nobody served yet who could go on with its requests.
    pub(super) to_release: Option<Generation>,
    /// Its child was told to take over weights, and is not done with it.
    pub(super) takes_over: bool,
    /// The child whose KV cache its child was given.
    pub(super) adopts_from: Option<Generation>,
    /// The KV cache of its child, until that child serves.
    pub(super) kv: Option<KeptKv>,
    flood_gate: FloodGate,
}

/// Something that may happen in a seat.
pub(super) enum Happening {
    Sign(Sign),
    Spawned(Spawned),
    Built(Box<Built>),
}

/// A tokenizer that was made for the child that reported it, or could not be.
pub(super) struct Built {
    pub(super) generation: Generation,
    pub(super) model: Result<LoadedModel, Unfit>,
}

/// A tokenizer in the making, for the child that reported it.
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
            vitals: None,
            silence: Silence::default(),
            nursery: Nursery::new(spawner.clone()),
            recorder: None,
            was_stopped: false,
            building: None,
            role: Role::Active,
            model: None,
            released: Bereft::default(),
            to_release: None,
            takes_over: false,
            adopts_from: None,
            kv: None,
            flood_gate: FloodGate::new(now),
        }
    }

    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Happening {
        tokio::select! {
            sign = next_sign(&mut self.child) => Happening::Sign(sign),
            spawned = self.nursery.next() => Happening::Spawned(spawned),
            built = next_model(&mut self.building) => Happening::Built(Box::new(built)),
        }
    }

    // === a child begins ===

    /// Orders a process.
    ///
    /// # Errors
    /// When none can be ordered.
    pub(super) fn begin(
        &mut self,
        generation: Generation,
        settings: &EngineSettings,
    ) -> io::Result<()> {
        let load = settings.load_on(self.id.device());
        let allowed = confinement::arguments(&load, settings.child_confinement);
        let program = &settings.child_binary;
        self.recorder = self.nursery.begin(generation, program, allowed)?;
        Ok(())
    }

    /// The process that was ordered: its number. One that comes too late is killed, and no child.
    ///
    /// # Errors
    /// When there is no process.
    pub(super) fn receive(&mut self, spawned: Spawned, now: Instant) -> io::Result<u32> {
        Ok(match self.nursery.finish(spawned)? {
            Born::Child(child) => {
                let vitals = Vitals::new(now, child.generation, child.pid);
                self.seat(*child, vitals, now)
            }
            Born::Late { pid } => pid,
        })
    }

    /// Goes on with a child of another supervisor: its number.
    ///
    /// # Errors
    /// When something of it is missing; it ends then.
    pub(super) fn resume(&mut self, mut living: LivingChild, now: Instant) -> io::Result<u32> {
        let recorder = living.take(Part::Recorder).ok();
        self.recorder = recorder.map(FlightRecorder::resume);
        let child = Child::resume(living)?;
        let vitals = Vitals::resumed(now, child.generation, child.pid);
        Ok(self.seat(child, vitals, now))
    }

    fn seat(&mut self, child: Child, vitals: Vitals, now: Instant) -> u32 {
        let pid = child.pid;
        self.flood_gate = FloodGate::new(now);
        self.silence = Silence::default();
        self.vitals = Some(vitals);
        self.child = Some(child);
        pid
    }

    /// Leaves its child alive, to another supervisor.
    ///
    /// # Errors
    /// When the kernel has no descriptor for something of it, or there is none that may be left. It ends then.
    pub(super) fn leave(&mut self, terms: Terms) -> io::Result<LivingChild> {
        let child = self.child.take().ok_or(io::ErrorKind::NotFound)?;
        let mut living = child.leave(terms)?;
        if let Some(recorder) = self.recorder.take() {
            living.add(Part::Recorder, recorder.leave());
        }
        Ok(living)
    }

    /// Its child may be left alive.
    pub(super) fn may_leave(&self) -> bool {
        self.child.as_ref().is_some_and(Child::may_leave)
    }

    /// Its child has loaded under another supervisor.
    pub(super) fn has_loaded(&self) -> bool {
        self.child.as_ref().is_some_and(Child::has_loaded)
    }

    pub(super) fn retell(&mut self) {
        if let Some(child) = &mut self.child {
            child.retell();
        }
    }

    /// Builds the model on another thread, because it takes longer than a heartbeat.
    pub(super) fn build(
        &mut self,
        generation: Generation,
        build: impl FnOnce() -> Result<LoadedModel, Unfit> + Send + 'static,
    ) {
        let model = tokio::task::spawn_blocking(build);
        self.building = Some(Building { generation, model });
    }

    /// Keeps the model until the child serves.
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

    // === it lives ===

    /// Its child died, if it does now, before it was done with weights that it needed at once. A standby
    /// is killed beside a child that has found the same weights good.
    pub(super) fn takes_over_to_serve(&self) -> bool {
        self.takes_over && self.role == Role::Active
    }

    pub(super) fn has_child(&self, generation: Generation) -> bool {
        let child = self.child.as_ref();
        child.is_some_and(|child| child.generation == generation)
    }

    /// Counts a word that carries no token; false when there were too many.
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

    // === it ends ===

    /// Sends a signal to the child of that generation; false if there is none.
    pub(super) fn kill(&mut self, generation: Generation, signal: Signal) -> bool {
        let child = self.child.as_mut();
        let Some(child) = child.filter(|child| child.generation == generation) else {
            return false;
        };
        self.was_stopped |= child.is_stopped();
        child.kill(signal);
        if signal == Signal::Kill {
            // It is not listened to any more, however much it has to say.
            child.close_link();
        }
        true
    }

    /// Record of the child that is dead, and whether a signal had stopped it.
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
        self.released = Bereft::default();
        self.to_release = None;
        self.takes_over = false;
        self.adopts_from = None;
        self.kv = None;
        self.nursery.give_up();
        self.child = None;
        self.vitals = None;
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
