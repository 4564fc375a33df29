//! The one task that owns the child, the lifecycle and the journal. It asks the clock once a turn,
//! and hands the answer down: everything in a turn happens at one moment.
//!
//! ```text
//! clients ── Control ──►┐
//! child ──── Sign ─────►│ driver ── Event ──► lifecycle ── Effect ──► child, journal
//! spawner ── Spawned ──►│    └──── tokens ──► journal ──── wake ────► clients
//! clock ──── Tick ─────►┘
//! ```
//!
//! Nothing in it waits for one thing alone, and nothing in it takes long: building a tokenizer
//! happens on another thread, writing to the child goes into a buffer.
//!
//! * [`seat`] where a child lives, and all that dies with it; [`keeping`] the open model file between
//!   two children; [`words`] what the child's messages mean; [`flood`] how many are too many;
//!   [`silence`] who is told when the child is overdue; [`post_mortem`] what is handed to the crash log;
//!   [`witness`] what NVIDIA's library adds to it; [`news`] what is told of all this: log lines and
//!   snapshots.

#![expect(clippy::disallowed_methods, reason = "once a turn, for everybody")]

mod flood;
mod keeping;
mod news;
mod post_mortem;
mod rate;
mod seat;
mod silence;
mod start;
mod witness;
mod words;

pub(crate) use start::start;

use crate::child::Sign;
use crate::child::custody::KeptModel;
use crate::child::link::LinkError;
use crate::child::nursery::NotBegun;
use crate::child::spawn::{Spawned, is_permanent, is_want_of_descriptors};
use crate::crash::CrashLog;
use crate::driver::news::News;
use crate::driver::seat::{Happening, Seat};
use crate::driver::witness::GpuWatch;
use crate::engine::model::Unfit;
use crate::engine::{Ended, EngineSettings, LoadedModel, Phase, Refusal, Shared};
use crate::error_code::ErrorCode;
use crate::nvml::Sighting;
use crate::requests::live::Control;
use crate::requests::record::Record;
use crate::requests::{Failure, Requests};
use futures_util::future::select_all;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tracing::error;
use worker_orcd_ipc::{Command, FrameError, Generation};
use worker_orcd_lifecycle::{
    ChildEvent, Deed, Effect, EndReason, Event, HandshakeRefusal, SeatId, Settings, Worker,
};

/// The feature of a child that was built to fail on command.
const FAULT_INJECTION: &str = "fault-injection";

/// What `/health` calls a child that cannot be begun.
const CHILD_SOCKET: &str = "child_socket";

/// One child at a time.
const SEATS: NonZeroU8 = NonZeroU8::MIN;

pub(crate) struct Driver {
    settings: EngineSettings,
    started: Instant,
    /// When the present turn began.
    now: Instant,
    worker: Worker,
    /// What the worker wants and was not done yet; doing one thing can lead to another.
    effects: VecDeque<Effect>,
    /// By number.
    seats: Vec<Seat>,
    /// The first child's open model file, for all later ones.
    kept_model: Option<KeptModel>,
    requests: Requests,
    model: Option<Arc<LoadedModel>>,
    controls: mpsc::UnboundedReceiver<Control>,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    news: News,
    crashes: CrashLog,
    gpu: GpuWatch,
    /// The last handle is gone, and with it everybody who could want an answer.
    deserted: bool,
}

/// What a turn begins with.
enum Occasion {
    InSeat(SeatId, Happening),
    Control(Option<Control>),
    Sighting(Sighting),
    Tick,
}

impl Driver {
    pub(crate) fn new(
        settings: EngineSettings,
        shared: Arc<Shared>,
        controls: mpsc::UnboundedReceiver<Control>,
        phase: watch::Sender<Phase>,
    ) -> Self {
        let features = match settings.accept_fault_injection {
            true => vec![FAULT_INJECTION.to_owned()],
            false => vec![],
        };
        let rules = Settings {
            deadlines: settings.deadlines,
            restart: settings.restart,
            accept_features: features,
        };
        let (worker, effects) = Worker::start(Duration::ZERO, rules, SEATS);
        let started = Instant::now();
        Self {
            news: News::new(started, &settings.load),
            crashes: CrashLog::new(Arc::clone(&shared.crashes)),
            gpu: GpuWatch::new(settings.load.device, started),
            requests: Requests::new(Arc::clone(&shared.registry), SEATS),
            settings,
            started,
            now: started,
            worker,
            effects: effects.into(),
            seats: (0..SEATS.get())
                .map(|id| Seat::new(SeatId(id), started))
                .collect(),
            kept_model: None,
            model: None,
            controls,
            shared,
            phase,
            deserted: false,
        }
    }

    pub(crate) async fn run(mut self) {
        self.perform();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        while !self.worker.is_over() {
            let wake_at = tokio::time::Instant::from_std(self.wake_at());
            // A timer that fires too early costs one idle tick; moving it costs a lock each time.
            if timer.is_elapsed() || wake_at < timer.deadline() {
                timer.as_mut().reset(wake_at);
            }
            let occasion = tokio::select! {
                (seat, happening) = next_in(&mut self.seats) => Occasion::InSeat(seat, happening),
                control = self.controls.recv(), if !self.deserted => Occasion::Control(control),
                sighting = self.gpu.next() => Occasion::Sighting(sighting),
                () = &mut timer => Occasion::Tick,
            };
            self.now = Instant::now();
            self.take_up(occasion);
            self.perform();
        }
        self.say_goodbye();
    }

    fn take_up(&mut self, occasion: Occasion) {
        match occasion {
            Occasion::InSeat(seat, Happening::Sign(sign)) => self.on_sign(seat, sign),
            Occasion::InSeat(seat, Happening::Spawned(spawned)) => self.on_spawned(seat, spawned),
            Occasion::InSeat(_, Happening::Built(built)) => self.on_built(*built),
            Occasion::Control(control) => self.on_control(control),
            Occasion::Sighting(sighting) => self.on_sighting(sighting),
            Occasion::Tick => self.on_tick(),
        }
    }

    // === what happened ===

    fn on_sign(&mut self, seat: SeatId, sign: Sign) {
        match sign {
            Sign::Stirred => self.hear(seat),
            Sign::LinkClosed => self.tell_of(seat, ChildEvent::LinkClosed),
            Sign::LinkFailed(error) => self.tell_of(seat, link_failure(error)),
            Sign::Exited(exit) => {
                self.crashes.exited(self.now, exit);
                self.tell_of(seat, ChildEvent::Exited(exit));
                // Nobody is left who could connect.
                let child = self.seat(seat).child.as_ref();
                if child.is_some_and(|child| !child.has_connected()) {
                    self.tell_of(seat, ChildEvent::LinkClosed);
                }
            }
        }
    }

    fn on_control(&mut self, control: Option<Control>) {
        match control {
            Some(Control::Submit(record)) => self.requests.submit(record),
            Some(Control::Cancel(id)) => self.requests.cancel(id, self.now),
            Some(Control::Abandon(id)) => self.requests.abandon(id, self.now),
            Some(Control::Drain(timeout)) => self.tell(Event::Drain { timeout }),
            Some(Control::StopNow) => self.tell(Event::StopNow),
            None => {
                self.deserted = true;
                self.tell(Event::StopNow);
            }
        }
    }

    fn on_spawned(&mut self, seat: SeatId, spawned: Spawned) {
        let (generation, now) = (spawned.generation, self.now);
        let event = match self.seat(seat).receive(spawned, now) {
            Ok(pid) => {
                if self.seat(seat).has_child(generation) {
                    self.news.spawned(now, generation, pid);
                    self.crashes.respawned(now);
                }
                ChildEvent::Spawned { pid }
            }
            Err(error) => {
                if is_want_of_descriptors(&error) {
                    self.news.impaired(now, CHILD_SOCKET, &error.to_string());
                }
                let program = self.settings.child_binary.display();
                spawn_failure(&format!("{program}: {error}"), &error)
            }
        };
        self.tell(Event::Child { generation, event });
    }

    fn on_built(&mut self, (generation, built): (Generation, Result<LoadedModel, Unfit>)) {
        let event = match built {
            Ok(model) => {
                self.install(model);
                ChildEvent::Ready
            }
            Err(Unfit::OtherModel) => ChildEvent::ModelChanged,
            Err(Unfit::Text(error)) => ChildEvent::Unservable(error.to_string()),
        };
        self.tell(Event::Child { generation, event });
    }

    fn on_tick(&mut self) {
        let now = self.now;
        self.requests.expire(now);
        for seat in (0..SEATS.get()).map(SeatId) {
            let child = self.seat(seat).child.as_mut();
            if let Some(child) = child
                && child.write_deadline().is_some_and(|at| at <= now)
            {
                child.close_link();
                self.tell_of(seat, ChildEvent::LinkStalled);
            }
            self.note_silence(seat);
        }
        for testimony in self.gpu.overdue(now) {
            self.tell(Event::Gpu(testimony));
        }
        self.tell(Event::Tick);
    }

    fn wake_at(&self) -> Instant {
        let worker = self.worker.poll_deadline().map(|at| self.started + at);
        let of_seats = self.seats.iter().flat_map(|seat| {
            let silence = self.silence_at(seat);
            seat.write_deadline().into_iter().chain(silence)
        });
        let others = [
            worker,
            self.requests.next_deadline(),
            self.gpu.next_deadline(),
        ];
        let earliest = of_seats.chain(others.into_iter().flatten()).min();
        earliest.unwrap_or(self.now)
    }

    // === deciding and doing ===

    fn tell(&mut self, event: Event) {
        let (before, _) = self.worker.state();
        let effects = self.worker.handle(self.now - self.started, event);
        self.notice_death(before);
        self.effects.extend(effects);
    }

    fn tell_of(&mut self, seat: SeatId, event: ChildEvent) {
        if let Some(child) = &self.seat(seat).child {
            let generation = child.generation;
            self.tell(Event::Child { generation, event });
        }
    }

    fn seat(&mut self, seat: SeatId) -> &mut Seat {
        &mut self.seats[usize::from(seat.0)]
    }

    /// Does everything that follows from what just happened, and lets the world know.
    fn perform(&mut self) {
        loop {
            self.do_effects();
            self.send_commands();
            // Counted at the door: a request that was let in may still be on its way here.
            if self.worker.is_draining() && self.shared.registry.live() == 0 {
                self.tell(Event::Idle);
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
            if let Effect::Child {
                seat,
                deed: Deed::Bury(_),
                ..
            } = effect
            {
                let accepted = |record: &Record| record.progress.lock().accepted_at();
                let oldest = self.requests.in_flight(seat).map(accepted).min();
                self.news.interrupted(oldest);
            }
            self.news.effect(self.now, &effect);
            self.do_one(effect);
        }
    }

    fn do_one(&mut self, effect: Effect) {
        match effect {
            Effect::Child {
                seat,
                generation,
                deed,
            } => self.do_to_child(seat, generation, deed),
            Effect::RefuseNewWork => {
                let refusal = match self.worker.failure() {
                    Some(failure) => Refusal::Unavailable(failure.reason.clone()),
                    None => Refusal::Draining,
                };
                self.shared.registry.close(refusal);
            }
            Effect::EndRequests(reason) => self.end_requests(reason),
            Effect::End { exit, reason } => {
                self.phase
                    .send_modify(|phase| phase.ended = Some(Ended { exit, reason }));
            }
        }
    }

    fn do_to_child(&mut self, seat: SeatId, generation: Generation, deed: Deed) {
        match deed {
            Deed::Spawn => self.spawn(seat, generation),
            Deed::Load => {
                self.gpu.load_begins(self.now);
                let order = self.order_to_load(seat);
                self.send(seat, &Command::Load(order));
            }
            Deed::Serve => self.serve(seat),
            Deed::Suspend => self.requests.suspend(seat),
            Deed::Dismiss => self.send(seat, &Command::Shutdown),
            Deed::Kill(signal) => {
                if self.seat(seat).kill(generation, signal) {
                    self.crashes.killed();
                }
            }
            Deed::Bury(cause) => {
                let scene = self.report_death(seat, generation, &cause);
                self.requests.bury(seat, &cause, &scene, self.now);
                self.news.buried();
                self.seat(seat).clear();
            }
        }
    }

    fn spawn(&mut self, seat: SeatId, generation: Generation) {
        let program = self.settings.child_binary.clone();
        let event = match self.seat(seat).begin(generation, &program) {
            Ok(()) => return self.news.repaired(CHILD_SOCKET),
            Err(ref why @ NotBegun::Thread(ref error)) => spawn_failure(&why.to_string(), error),
            Err(NotBegun::Socket(error)) => {
                self.news
                    .impaired(self.now, CHILD_SOCKET, &error.to_string());
                ChildEvent::SpawnStarved
            }
        };
        self.tell(Event::Child { generation, event });
    }

    fn install(&mut self, model: LoadedModel) {
        let model = Arc::new(model);
        self.shared.registry.set_slots(model.max_running as usize);
        *self.shared.model.write() = Some(Arc::clone(&model));
        self.model = Some(model);
    }

    fn serve(&mut self, seat: SeatId) {
        if let Some(model) = &self.model {
            self.news.ready(self.now, model);
            self.crashes.ready(self.now);
            self.requests.serve(seat, Arc::clone(&model.text));
            self.phase.send_modify(|phase| phase.ready = true);
        }
    }

    fn end_requests(&mut self, reason: EndReason) {
        let message = match (reason, self.worker.failure()) {
            (EndReason::DrainDeadline, _) => "the worker is shutting down, and its time is over",
            (EndReason::StoppedAtOnce, _) => "the worker is shutting down at once",
            (EndReason::Failed, Some(failure)) => failure.reason.as_str(),
            (EndReason::Failed, None) => "the worker has failed",
        };
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
        self.requests.fail_all(&failure, self.now);
    }

    fn send_commands(&mut self) {
        for seat in 0..self.seats.len() {
            let Seat { id, child, .. } = &mut self.seats[seat];
            let (id, Some(child)) = (*id, child) else {
                continue;
            };
            let sent = child.send_what_fits(|| self.requests.next_command(id));
            self.note_send(id, sent);
        }
    }

    fn send(&mut self, seat: SeatId, command: &Command) {
        let sent = self.seat(seat).send(command);
        self.note_send(seat, sent);
    }

    fn note_send(&mut self, seat: SeatId, sent: Result<(), LinkError>) {
        if let Err(error) = sent {
            self.tell_of(seat, link_failure(error));
        }
    }

    fn publish(&mut self) {
        if self.news.is_due(self.now) {
            let mut snapshot = self.news.snapshot(
                self.now,
                &self.worker,
                &self.requests,
                &self.shared.registry,
            );
            snapshot.faults.crash_reports = self.crashes.reported();
            snapshot.gpu = self.gpu.snapshot().clone();
            snapshot.model_kept_open = self.kept_model.is_some();
            let trouble = self.shared.crashes.trouble();
            snapshot.impaired = self.news.impairments(self.now, trouble);
            *self.shared.snapshot.write() = Arc::new(snapshot);
        }
    }

    /// Whoever submitted in the last moment gets an end as well.
    fn say_goodbye(mut self) {
        self.shared
            .registry
            .close(Refusal::Unavailable("the engine has ended".to_owned()));
        self.controls.close();
        while let Ok(control) = self.controls.try_recv() {
            if let Control::Submit(record) = control {
                self.requests.submit(record);
            }
        }
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, "the worker has ended");
        self.requests.fail_all(&failure, self.now);
        self.requests.wake();
    }
}

/// Cancel-safe, as each of them is.
async fn next_in(seats: &mut [Seat]) -> (SeatId, Happening) {
    let next = |seat| Box::pin(next_of(seat));
    let (first, ..) = select_all(seats.iter_mut().map(next)).await;
    first
}

async fn next_of(seat: &mut Seat) -> (SeatId, Happening) {
    (seat.id, seat.next().await)
}

fn link_failure(error: LinkError) -> ChildEvent {
    match error {
        LinkError::Frame(error @ (FrameError::NotOurs(_) | FrameError::Version { .. })) => {
            ChildEvent::HandshakeRefused(HandshakeRefusal::Preamble(error.to_string()))
        }
        LinkError::Overfull(_) => ChildEvent::LinkStalled,
        error => ChildEvent::Violation(error.to_string()),
    }
}

fn spawn_failure(message: &str, failure: &io::Error) -> ChildEvent {
    error!(error = %message, "child_spawn_failed");
    if is_want_of_descriptors(failure) {
        return ChildEvent::SpawnStarved;
    }
    ChildEvent::SpawnFailed {
        message: message.to_owned(),
        permanent: is_permanent(failure),
    }
}
