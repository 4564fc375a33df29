//! The driver: the one task that owns children, lifecycle and journal. It reads the clock once a turn, so all events of
//! a turn happen at one time.
//!
//! ```text
//! clients ── Control ──►┐
//! child ──── Sign ─────►│ driver ── Event ──► lifecycle ── Effect ──► child, journal
//! spawner ── Spawned ──►│    └──── tokens ──► journal ──── wake ────► clients
//! clock ──── Tick ─────►┘
//! ```
//!
//! Deliberately absent: blocking calls and long computations. Another thread builds the tokenizer, and writes to a
//! child go into a buffer.
//!
//! * `start`: the driver's task. [`handles`]: the side of clients' tasks. [`handoff`]: handoff to and from another
//!   driver.
//! * [`seat`], [`seats`]: a child and its state. [`words`]: messages of a child. [`child_stats`]: child statistics.
//!   [`rate`]: token rate. [`flood`]: limit on messages. [`silence`]: overdue children.
//! * [`devices`]: the children of each device, from spawn to end, and devices in and out of service. [`retained_memory`],
//!   [`retained_by_device`]: memory that outlives a child. [`mps`]: one child at a time under CUDA MPS. [`program`]: replaced
//!   child programs.
//! * [`observer`]: observation. [`snapshot_builder`]: log lines and snapshots. [`post_mortem`]: crash facts. [`gpu_monitor`],
//!   [`gpu_monitors`]: GPU monitors. [`service_manager`]: notifications to systemd. `timers`: deadlines and their effects.

#![expect(clippy::disallowed_methods, reason = "once a turn, for all requests")]

mod child_stats;
mod devices;
mod flood;
mod gpu_monitor;
mod gpu_monitors;
mod handles;
mod handoff;
mod mps;
mod observer;
mod post_mortem;
mod program;
mod rate;
mod retained_by_device;
mod retained_memory;
mod seat;
mod seats;
pub mod service_manager;
mod silence;
mod snapshot_builder;
mod start;
mod timers;
mod words;

pub use start::start;

use crate::child::Sign;
use crate::child::link::LinkError;
use crate::child::spawn::Spawner;
use crate::driver::devices::Models;
use crate::driver::handles::Handles;
use crate::driver::handoff::{Departure, HandoffState};
use crate::driver::observer::Observer;
use crate::driver::retained_by_device::RetainedByDevice;
use crate::driver::retained_memory::RetainedMemory;
use crate::driver::seat::{Built, SeatEvent};
use crate::driver::seats::Seats;
use crate::driver::service_manager::ServiceManager;
use crate::driver::silence::set_overdue;
use crate::driver::words::{Listener, link_failure};
use crate::engine::control::Control;
use crate::engine::{Ended, EngineSettings, LoadedModel, Milestones, Shared};
use crate::handoff::EngineHandoff;
use crate::nvml::GpuSample;
use std::collections::VecDeque;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use worker_orcd_ipc::{Command, Generation, Role};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, DeathCause, DeviceId, Effect, Event, SeatId, State, Worker,
};
use worker_orcd_requests::scene::Scene;
use worker_orcd_requests::{Refusal, Requests};

pub(crate) struct Driver {
    settings: EngineSettings,
    started: Instant,
    /// Start of the present turn.
    now: Instant,
    worker: Worker,
    /// Effects that are not yet performed. Performing one can add others.
    effects: VecDeque<Effect>,
    seats: Seats,
    retained: RetainedByDevice,
    requests: Requests,
    model: Option<Arc<LoadedModel>>,
    models: Models,
    handles: Handles,
    observer: Observer,
    service_manager: ServiceManager,
    handoff_state: HandoffState,
    /// Pending handoff to another driver.
    departure: Option<Departure>,
}

/// Cause of a turn.
enum DriverEvent {
    InSeat(SeatId, SeatEvent),
    Control(Control),
    GpuSample(DeviceId, GpuSample),
    Tick,
}

impl Driver {
    pub(crate) fn new(
        mut settings: EngineSettings,
        shared: Arc<Shared>,
        controls: mpsc::UnboundedReceiver<Control>,
        milestones: watch::Sender<Milestones>,
        spawner: &Spawner,
        handoff: &mut EngineHandoff,
    ) -> Self {
        let started = Instant::now();
        let mut observer = Observer::new(started, &settings, &shared);
        let rules = mps::rules(&mut settings, started, &mut observer.snapshots);
        let handoff_state = HandoffState::of(handoff, &settings);
        let (worker, effects) = Worker::start(Duration::ZERO, rules, &handoff_state.before());
        let devices = worker.devices().count();
        let of_devices = u8::try_from(devices).ok().and_then(NonZeroU8::new);
        let of_devices = of_devices.unwrap_or(NonZeroU8::MIN);
        Self {
            observer,
            requests: Requests::new(Arc::clone(&shared.registry), of_devices),
            settings,
            started,
            now: started,
            seats: Seats::new(worker.seats(), started, spawner),
            worker,
            effects: effects.into(),
            retained: RetainedByDevice::new(devices),
            model: None,
            models: Models::new(devices),
            handles: Handles::new(shared, controls, milestones),
            service_manager: ServiceManager::of_this_process(),
            handoff_state,
            departure: None,
        }
    }

    pub(crate) async fn run(mut self) {
        self.handles.has_begun();
        self.perform();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        while !self.worker.is_over() {
            let wake_at = tokio::time::Instant::from_std(timers::wake_at(&self));
            // A spurious wake costs one idle tick. Moving the timer costs a lock each time.
            if timer.is_elapsed() || wake_at < timer.deadline() {
                timer.as_mut().reset(wake_at);
            }
            let event = tokio::select! {
                (seat, event) = self.seats.next() => DriverEvent::InSeat(seat, event),
                control = self.handles.next() => DriverEvent::Control(control),
                (card, seen) = self.observer.gpu.next() => DriverEvent::GpuSample(card, seen),
                () = &mut timer => DriverEvent::Tick,
            };
            self.now = Instant::now();
            self.take_up(event);
            self.perform();
            if let Some(successor) = self.is_to_hand_over() {
                return drop(successor.send(self.hand_over()));
            }
        }
        self.end_requests();
    }

    fn take_up(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::InSeat(seat, SeatEvent::Sign(sign)) => self.on_sign(seat, sign),
            DriverEvent::InSeat(seat, SeatEvent::Spawned(spawned)) => {
                self.on_spawned(seat, spawned)
            }
            DriverEvent::InSeat(seat, SeatEvent::Built(built)) => self.on_built(seat, *built),
            DriverEvent::Control(control) => self.on_control(control),
            DriverEvent::GpuSample(device, sample) => self.on_gpu_sample(device, sample),
            DriverEvent::Tick => timers::fire_due(self),
        }
    }

    // === events ===

    fn on_sign(&mut self, seat: SeatId, sign: Sign) {
        match sign {
            Sign::Stirred => self.hear(seat),
            Sign::LinkClosed => self.handle_child(seat, ChildEvent::LinkClosed),
            Sign::LinkFailed(error) => self.handle_child(seat, link_failure(error)),
            Sign::Exited(exit) => {
                let Some(child) = &self.seats[seat].child else {
                    return;
                };
                // A process that exits before its connection can no longer connect.
                let never_connected = !child.has_connected();
                let generation = child.generation;
                let crashes = &mut self.observer.crashes;
                crashes.exited(seat, generation, self.now, exit);
                self.handle_child(seat, ChildEvent::Exited(exit));
                if never_connected {
                    self.handle_child(seat, ChildEvent::LinkClosed);
                }
            }
        }
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Submit(record) => self.requests.submit(record),
            Control::Cancel(id) => self.requests.cancel(id, self.now),
            Control::Abandon(id) => self.requests.abandon(id, self.now),
            Control::Drain(timeout) => self.handle(Event::Drain { timeout }),
            Control::Replace => self.handle(Event::Replace),
            Control::Withdraw(device, asker) => self.asked_to_withdraw(device, asker),
            Control::Readmit(device, asker) => self.asked_to_readmit(device, asker),
            Control::StopNow => self.handle(Event::StopNow),
            Control::CopyHandoff(asker) => drop(asker.send(self.handoff())),
            Control::HandOver(successor) => self.prepare_to_hand_over(successor),
        }
    }

    fn on_built(&mut self, seat: SeatId, built: Built) {
        let generation = built.generation;
        let event = self.seats[seat].keep(built);
        self.handle(Event::Child { generation, event });
    }

    fn on_gpu_sample(&mut self, device: DeviceId, sample: GpuSample) {
        if let Some(verdict) = self.observer.sampled(device, sample, &self.seats) {
            self.handle(Event::Gpu(device, verdict));
        }
    }

    // === judgement of a child ===

    fn judge_silence(&mut self, seat: SeatId) {
        let due = self.seats[seat].silence.deadline();
        if self.seats[seat].silence.is_overdue(self.now) {
            self.requests.hesitate(seat);
            // If this task ran late, messages of the child may be unread.
            let is_in_time = due.is_some_and(|due| self.now < due + silence::OWN_DELAY);
            if is_in_time {
                set_overdue(&mut self.seats[seat], &mut self.requests, "it is silent");
            }
        }
    }

    /// Progress by long service without requests. Called after messages of the seat's child.
    fn note_idle_service(&mut self, seat: SeatId) {
        let now = self.now - self.started;
        let State::Serving { since, .. } = self.worker.seat(seat).state() else {
            return;
        };
        let is_due = now >= *since + self.settings.restart.steady;
        let stats = self.seats[seat].stats.as_mut();
        let Some(stats) = stats.filter(|it| is_due && !it.has_progressed()) else {
            return;
        };
        if self.requests.in_flight(seat).next().is_none() && stats.progresses() {
            self.handle_child(seat, ChildEvent::Progress);
        }
    }

    /// Discounts the latest `deaths` deaths of this seat's device, which the journal ascribes to requests. A signal
    /// that stopped the child does not count against the device either.
    fn absolve(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, deaths: u32) {
        let was_stopped = scene.stopped && !cause.is_from_outside();
        let deaths = deaths.max(u32::from(was_stopped));
        if deaths > 0 && self.seats[seat].role == Role::Active {
            let device = seat.device();
            self.handle(Event::DiscountDeaths { device, deaths });
        }
    }

    // === decisions and effects ===

    fn handle(&mut self, event: Event) {
        let effects = self.worker.handle(self.now - self.started, event);
        self.effects.extend(effects);
    }

    fn handle_child(&mut self, seat: SeatId, event: ChildEvent) {
        if let Some(child) = &self.seats[seat].child {
            let generation = child.generation;
            self.handle(Event::Child { generation, event });
        }
    }

    /// True while results of the seat's child are accepted.
    fn believes(&self, seat: SeatId) -> bool {
        self.worker.seat(seat).state().accepts_tokens()
    }

    /// Handles all messages that have been read from the child, in order.
    fn hear(&mut self, seat: SeatId) {
        while let Some(event) = self.listener(seat).next_event() {
            self.handle_child(seat, event);
            self.do_effects();
        }
        self.note_idle_service(seat);
    }

    fn listener(&mut self, seat: SeatId) -> Listener<'_> {
        Listener {
            now: self.now,
            believed: self.believes(seat),
            seat: &mut self.seats[seat],
            requests: &mut self.requests,
            observer: &mut self.observer,
            retained: &mut self.retained,
            settings: &mut self.settings,
            model: self.model.as_ref(),
        }
    }

    /// Performs all effects of the event, then wakes the readers and publishes a snapshot.
    fn perform(&mut self) {
        loop {
            self.do_effects();
            self.send_commands();
            self.report_vacated();
            if self.worker.is_draining() && self.handles.is_idle() {
                self.handle(Event::Idle);
            }
            if self.effects.is_empty() {
                break;
            }
        }
        self.requests.wake();
        self.publish();
    }

    fn do_effects(&mut self) {
        while let Some(effect) = self.effects.pop_front() {
            self.observer.snapshots.effect(&effect);
            self.do_one(effect);
        }
    }

    fn do_one(&mut self, effect: Effect) {
        match effect {
            Effect::Child {
                seat,
                generation,
                action,
            } => self.do_to_child(seat, generation, action),
            Effect::Failover {
                predecessor,
                successor,
            } => {
                self.seats[successor].role = Role::Active;
                self.observer.crashes.transfer(predecessor, successor);
            }
            Effect::DeviceOut(device) => self.device_out(device),
            Effect::DeviceIn(device) => self.device_in(device),
            Effect::RefuseNewWork => {
                let refusal = match self.worker.failure() {
                    Some(failure) => Refusal::Unavailable(failure.reason.clone()),
                    None => Refusal::Draining,
                };
                self.handles.refuse(refusal);
            }
            Effect::EndRequests(reason) => {
                let failure = handles::farewell(reason, self.worker.failure());
                self.requests.fail_all(&failure, self.now);
            }
            Effect::End { exit, reason } => self.handles.has_ended(Ended { exit, reason }),
        }
    }

    fn do_to_child(&mut self, seat: SeatId, generation: Generation, action: ChildAction) {
        let now = self.now;
        match action {
            ChildAction::Spawn => self.spawn(seat, generation),
            ChildAction::Load(role) => self.load(seat, generation, role),
            ChildAction::StandBy => {
                self.observer
                    .stands_by(now, &mut self.seats[seat], generation);
            }
            ChildAction::Promote => {
                let traces = self.settings.load.trace.is_some();
                self.send(seat, &Command::Promote { traces });
            }
            ChildAction::Serve => self.serve(seat, generation),
            ChildAction::Suspend { previous_state } => {
                let state = self.worker.state_name(&previous_state);
                let served = previous_state.takes_work();
                let observer = &mut self.observer;
                observer.noticed(now, seat, generation, state, served);
                self.requests.suspend(seat);
            }
            ChildAction::Vacate => self.requests.withdraw(seat),
            ChildAction::InvalidateWeights(cause) => self.retained[seat].let_go(&cause),
            ChildAction::Release => self.release(seat, generation),
            ChildAction::Dismiss => self.send(seat, &Command::Shutdown),
            ChildAction::Kill(signal) => {
                if self.seats[seat].kill(generation, signal) {
                    self.observer.crashes.killed(seat, generation, now);
                }
            }
            ChildAction::Reap(cause) => self.reaped(seat, generation, &cause),
        }
    }

    fn send_commands(&mut self) {
        for seat in self.seats.ids() {
            if let Some(child) = &mut self.seats[seat].child {
                let sent = child.send_what_fits(|| self.requests.next_command(seat));
                self.note_send(seat, sent);
            }
        }
    }

    fn send(&mut self, seat: SeatId, command: &Command) {
        let sent = self.seats[seat].send(command);
        self.note_send(seat, sent);
    }

    fn note_send(&mut self, seat: SeatId, sent: Result<(), LinkError>) {
        if let Err(error) = sent {
            self.handle_child(seat, link_failure(error));
        }
    }

    fn publish(&mut self) {
        let (worker, requests, shared) = (&self.worker, &self.requests, &self.handles.shared);
        let observer = &mut self.observer;
        let snapshot = observer.snapshot(self.now, &self.seats, worker, requests, shared);
        if let Some(mut snapshot) = snapshot {
            snapshot.model_kept_open = self.retained.iter().any(RetainedMemory::has_model);
            for (device, kept) in snapshot.devices.iter_mut().zip(self.retained.iter()) {
                device.retained = kept.snapshot();
            }
            for (device, tokens) in snapshot.devices.iter_mut().zip(self.models.kv_capacities()) {
                device.kv_capacity_tokens = tokens;
            }
            self.service_manager.update(self.now, &snapshot);
            self.handles.publish(snapshot);
        }
        self.service_manager.turn(self.now);
        self.announce_handoff();
    }
}
