//! A worker on simulated time, with words for reaching every state.

use std::time::Duration;
use worker_orcd_ipc::{DeviceError, Fault, Generation};
use worker_orcd_lifecycle::{
    Before, ChildEvent, DeathCause, Deed, Effect, Event, Exit, HandshakeRefusal, RecoveryAction,
    SeatId, Settings, Signal, State, SupervisorExit, Testimony, Worker, Xid,
};

pub const PID: u32 = 100;
/// The seat of a worker of one that is a standby's at first.
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
        Self::with_devices(settings, &[Before::Nothing])
    }

    /// One that keeps a standby.
    pub fn with_standby() -> Self {
        let settings = Settings {
            standby: true,
            ..Settings::default()
        };
        Self::with(settings).0
    }

    pub fn with_devices(settings: Settings, devices: &[Before]) -> (Self, Vec<Effect>) {
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

    /// Lets time pass in ticks of 100 ms, as the driver does, and collects what they cause.
    pub fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.pass_with(time, |_| {})
    }

    /// `beat` runs before each tick: a child that says something every 100 ms.
    pub fn pass_with(&mut self, time: Duration, beat: impl Fn(&mut Self)) -> Vec<Effect> {
        let end = self.now + time;
        let mut effects = vec![];
        while self.now < end {
            self.now = (self.now + Duration::from_millis(100)).min(end);
            beat(self);
            effects.extend(self.event(Event::Tick));
        }
        effects
    }

    pub fn state(&self) -> &'static str {
        self.worker.state().0
    }

    /// Of the first seat.
    pub fn life(&self) -> &State {
        self.worker.seat(SeatId(0)).state()
    }

    pub fn generation(&self) -> Generation {
        self.worker.seat(SeatId(0)).generation()
    }

    /// Through whatever backoff there is.
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

    /// One child serves in the first seat, another is loaded to stand by.
    pub fn reach_loading_standby(&mut self) {
        self.reach_serving();
        self.pass_with(Duration::from_millis(500), |sim| {
            sim.child(beat());
        });
        self.reach_loading_in(STANDBY);
    }

    /// One child serves in the first seat, another stands by.
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

    /// Exit and end of the socket, as the kernel delivers them.
    pub fn die(&mut self, exit: Exit) -> Vec<Effect> {
        let mut effects = self.child(ChildEvent::Exited(exit));
        effects.extend(self.child(ChildEvent::LinkClosed));
        effects
    }
}

/// With the only seat's child.
pub fn deed(generation: Generation, deed: Deed) -> Effect {
    let seat = SeatId(0);
    Effect::Child {
        seat,
        generation,
        deed,
    }
}

/// With SIGKILL.
pub fn killed(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Child {
                deed: Deed::Kill(Signal::Kill),
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

/// An NVLink error, and what the driver asks for since then.
pub fn after_death(seat: SeatId, action: RecoveryAction) -> Event {
    Event::Gpu(
        seat.device(),
        Testimony::AfterDeath {
            xids: vec![Xid(Some(74))],
            action: Some(action),
        },
    )
}

/// One of every event of a seat, under the name it has in the golden table.
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
            Event::Gpu(seat.device(), Testimony::Reported(Xid(Some(31)))),
        ),
        (
            "Xid 95",
            Event::Gpu(seat.device(), Testimony::Reported(Xid(Some(95)))),
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
            "Absolve",
            Event::Absolve {
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

pub fn buried(effects: &[Effect]) -> Option<DeathCause> {
    effects.iter().find_map(|effect| match effect {
        Effect::Child {
            deed: Deed::Bury(cause),
            ..
        } => Some(cause.clone()),
        _ => None,
    })
}
