//! Worker on simulated time, with helpers that reach each state.

use std::time::Duration;
use worker_orcd_ipc::{DeviceError, Fault, Generation};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, DeathCause, Effect, Event, Exit, GpuVerdict, HandshakeRefusal,
    PreviousChild, RecoveryAction, SeatId, Settings, Signal, State, SupervisorExit, Worker, Xid,
};

pub const PID: u32 = 100;
/// Seat of the standby of the first device, until a failover.
pub const STANDBY: SeatId = SeatId(1);

pub struct Sim {
    pub worker: Worker,
    pub now: Duration,
}

impl Sim {
    pub fn start() -> (Self, Vec<Effect>) {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> (Self, Vec<Effect>) {
        Self::with_devices(settings, &[PreviousChild::None])
    }

    /// Worker of one device that keeps a standby.
    pub fn with_standby() -> Self {
        let settings = Settings {
            standby: true,
            ..Settings::default()
        };
        Self::with(settings).0
    }

    pub fn with_devices(settings: Settings, devices: &[PreviousChild]) -> (Self, Vec<Effect>) {
        let (worker, effects) = Worker::start(Duration::ZERO, settings, devices);
        (
            Self {
                worker,
                now: Duration::ZERO,
            },
            effects,
        )
    }

    pub fn event(&mut self, event: Event) -> Vec<Effect> {
        self.worker.handle(self.now, event)
    }

    pub fn child(&mut self, event: ChildEvent) -> Vec<Effect> {
        self.child_in(SeatId(0), event)
    }

    pub fn child_in(&mut self, seat: SeatId, event: ChildEvent) -> Vec<Effect> {
        let generation = self.worker.seat(seat).generation();
        self.event(Event::Child { generation, event })
    }

    /// Passes time in ticks of 100 ms and returns their effects. One tick happens even without time: the driver's timer
    /// fires at once for a second deadline at the same time.
    pub fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.pass_with(time, |_| {})
    }

    /// Passes time; `beat` runs before each tick, for events every 100 ms.
    pub fn pass_with(&mut self, time: Duration, beat: impl Fn(&mut Self)) -> Vec<Effect> {
        let end = self.now + time;
        let mut effects = vec![];
        loop {
            self.now = (self.now + Duration::from_millis(100)).min(end);
            beat(self);
            effects.extend(self.event(Event::Tick));
            if self.now == end {
                return effects;
            }
        }
    }

    pub fn state(&self) -> &'static str {
        self.worker.state().0
    }

    /// State of the first seat.
    pub fn life(&self) -> &State {
        self.worker.seat(SeatId(0)).state()
    }

    pub fn generation(&self) -> Generation {
        self.worker.seat(SeatId(0)).generation()
    }

    /// Passes time until the backoff, if any, is over.
    pub fn pass_until_spawning(&mut self) {
        while self.state() == "backoff" {
            self.pass(Duration::from_millis(100));
        }
        assert_eq!(self.state(), "spawning");
    }

    pub fn reach_loading(&mut self) {
        self.reach_loading_in(SeatId(0));
    }

    pub fn reach_loading_in(&mut self, seat: SeatId) {
        self.child_in(seat, ChildEvent::Spawned { pid: PID });
        self.child_in(seat, hello());
        let state = self.worker.seat(seat).state();
        assert!(matches!(state, State::Loading { .. }));
    }

    /// Reaches a serving child in the first seat and a loading standby in the other.
    pub fn reach_loading_standby(&mut self) {
        self.reach_serving();
        self.pass_with(Duration::from_millis(500), |sim| {
            sim.child(beat());
        });
        self.reach_loading_in(STANDBY);
    }

    /// Reaches a serving child in the first seat and a ready standby in the other.
    pub fn reach_standing_by(&mut self) {
        self.reach_loading_standby();
        self.child_in(STANDBY, ChildEvent::Ready);
        let state = self.worker.seat(STANDBY).state();
        assert!(matches!(state, State::StandingBy { .. }));
    }

    pub fn reach_serving(&mut self) {
        self.reach_loading();
        self.child(ChildEvent::Ready);
        assert!(self.life().takes_work());
    }

    /// Delivers exit and end of the socket.
    pub fn die(&mut self, exit: Exit) -> Vec<Effect> {
        let mut effects = self.child(ChildEvent::Exited(exit));
        effects.extend(self.child(ChildEvent::LinkClosed));
        effects
    }
}

/// Effect on the child in the first seat.
pub fn action(generation: Generation, action: ChildAction) -> Effect {
    let seat = SeatId(0);
    Effect::Child {
        seat,
        generation,
        action,
    }
}

/// True if a child was killed with SIGKILL.
pub fn killed(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Child {
                action: ChildAction::Kill(Signal::Kill),
                ..
            }
        )
    })
}

pub fn ended(effects: &[Effect]) -> Option<SupervisorExit> {
    effects.iter().find_map(|effect| match effect {
        Effect::End { exit, .. } => Some(*exit),
        _ => None,
    })
}

pub fn hello() -> ChildEvent {
    ChildEvent::Hello {
        pid: PID,
        features: vec![],
    }
}

pub fn beat() -> ChildEvent {
    ChildEvent::Heartbeat { step_elapsed: None }
}

pub fn model_load_fault() -> Fault {
    Fault::ModelLoad {
        message: "not a GGUF file".to_owned(),
    }
}

pub fn device_fault() -> Fault {
    Fault::Device {
        error: DeviceError::Cuda("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned()),
        message: "sticky".to_owned(),
    }
}

/// NVLink error around a death, with the driver's recovery action after it.
pub fn after_death(seat: SeatId, action: RecoveryAction) -> Event {
    Event::Gpu(
        seat.device(),
        GpuVerdict::AfterDeath {
            xids: vec![Xid(Some(74))],
            action: Some(action),
        },
    )
}

/// One event of each kind for a seat, with its name in the golden table.
pub fn every_event(seat: SeatId, generation: Generation) -> Vec<(&'static str, Event)> {
    let child = |event| Event::Child { generation, event };
    vec![
        ("Tick", Event::Tick),
        (
            "Drain",
            Event::Drain {
                timeout: Duration::from_secs(5),
            },
        ),
        ("Idle", Event::Idle),
        (
            "Xid 31",
            Event::Gpu(seat.device(), GpuVerdict::Reported(Xid(Some(31)))),
        ),
        (
            "Xid 95",
            Event::Gpu(seat.device(), GpuVerdict::Reported(Xid(Some(95)))),
        ),
        (
            "After death (cleared)",
            after_death(seat, RecoveryAction::None),
        ),
        (
            "After death (reset)",
            after_death(seat, RecoveryAction::GpuReset),
        ),
        (
            "DiscountDeaths",
            Event::DiscountDeaths {
                device: seat.device(),
                deaths: 1,
            },
        ),
        ("Replace", Event::Replace),
        ("Withdraw", Event::Withdraw(seat.device())),
        ("Vacated", Event::Vacated(seat)),
        ("Readmit", Event::Readmit(seat.device())),
        ("StopNow", Event::StopNow),
        ("Spawned", child(ChildEvent::Spawned { pid: PID })),
        (
            "SpawnFailed",
            child(ChildEvent::SpawnFailed {
                message: "no memory".to_owned(),
                permanent: false,
            }),
        ),
        ("SpawnStarved", child(ChildEvent::SpawnStarved)),
        (
            "SpawnFailed (permanent)",
            child(ChildEvent::SpawnFailed {
                message: "no such file".to_owned(),
                permanent: true,
            }),
        ),
        ("Hello", child(hello())),
        (
            "Hello (other pid)",
            child(ChildEvent::Hello {
                pid: PID + 1,
                features: vec![],
            }),
        ),
        (
            "Hello (fault-injection)",
            child(ChildEvent::Hello {
                pid: PID,
                features: vec!["fault-injection".to_owned()],
            }),
        ),
        (
            "HandshakeRefused",
            child(ChildEvent::HandshakeRefused(HandshakeRefusal::Preamble(
                "version 9".to_owned(),
            ))),
        ),
        (
            "LoadProgress",
            child(ChildEvent::LoadProgress {
                bytes_done: 10,
                bytes_total: 100,
            }),
        ),
        ("Ready", child(ChildEvent::Ready)),
        (
            "Unservable",
            child(ChildEvent::Unservable("unknown pre-tokenizer".to_owned())),
        ),
        ("ModelChanged", child(ChildEvent::ModelChanged)),
        ("Heartbeat", child(beat())),
        (
            "Heartbeat (step 60 s)",
            child(ChildEvent::Heartbeat {
                step_elapsed: Some(Duration::from_secs(60)),
            }),
        ),
        ("Progress", child(ChildEvent::Progress)),
        ("Fault (device)", child(ChildEvent::Fault(device_fault()))),
        (
            "Fault (model)",
            child(ChildEvent::Fault(model_load_fault())),
        ),
        ("Goodbye", child(ChildEvent::Goodbye)),
        (
            "Violation",
            child(ChildEvent::Violation(
                "token 7 of unknown request 9".to_owned(),
            )),
        ),
        ("LinkStalled", child(ChildEvent::LinkStalled)),
        ("LinkClosed", child(ChildEvent::LinkClosed)),
        (
            "Exited (signal 9)",
            child(ChildEvent::Exited(Exit::Signal(9))),
        ),
        (
            "Exited (OOM killer)",
            child(ChildEvent::Exited(Exit::OomKilled)),
        ),
    ]
}

pub fn reaped(effects: &[Effect]) -> Option<DeathCause> {
    effects.iter().find_map(|effect| match effect {
        Effect::Child {
            action: ChildAction::Reap(cause),
            ..
        } => Some(cause.clone()),
        _ => None,
    })
}
