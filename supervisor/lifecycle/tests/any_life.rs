//! Properties of arbitrary event sequences: from each reachable state, a simulated environment that reacts to effects
//! brings the machine to serving or to a final state, and no wait on the way is without a deadline.

#[allow(dead_code)]
mod common;

use common::{PID, Sim, beat, every_event};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, DeviceId, Effect, Event, Exit, PreviousChild, SeatId, Settings,
    Signal, State,
};

/// Behaviour of all children after the random steps.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    /// Follows the protocol.
    Cooperates,
    /// Ignores everything but SIGKILL.
    Unresponsive,
    /// Ignores SIGKILL too.
    Unkillable,
}

#[derive(Debug, Clone)]
enum Step {
    /// Index into `every_event`, seat, and whether the generation before the seat's is used.
    Event(usize, u8, bool),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let events = every_event(SeatId(0), Generation::FIRST).len();
    let event = (0..events, 0_u8..6, prop::bool::weighted(0.1));
    let step = prop_oneof![
        4 => event.prop_map(|(index, seat, stale)| Step::Event(index, seat, stale)),
        1 => (0u64..3_000).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..60)
}

/// Worker with simulated children and kernel.
struct World {
    sim: Sim,
    /// Number of seats, two per device.
    seats: u8,
    standby: bool,
    behaviour: Behaviour,
    ends: u32,
    /// `StopNow` was sent: no further child is spawned.
    stop_ordered: bool,
}

impl World {
    fn new(devices: u8, standby: bool, overlap: bool, behaviour: Behaviour) -> Self {
        let settings = Settings {
            standby,
            overlap,
            ..Settings::default()
        };
        let before = vec![const { PreviousChild::None }; usize::from(devices)];
        let (sim, _) = Sim::with_devices(settings, &before);
        Self {
            sim,
            seats: 2 * devices,
            standby,
            behaviour,
            ends: 0,
            stop_ordered: false,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Pass(ms) => {
                let effects = self.sim.pass(Duration::from_millis(*ms));
                self.note(&effects);
            }
            Step::Event(index, seat, stale) => {
                let seat = SeatId(seat % self.seats);
                let mut generation = self.sim.worker.seat(seat).generation();
                if *stale {
                    generation = Generation(generation.0.wrapping_sub(1));
                }
                let (_, event) = every_event(seat, generation).swap_remove(*index);
                let effects = self.sim.event(event);
                self.note(&effects);
            }
        }
    }

    fn note(&mut self, effects: &[Effect]) {
        let ends = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::End { .. }))
            .count();
        self.ends += u32::try_from(ends).unwrap();
        let is_spawn = |effect: &Effect| {
            matches!(
                effect,
                Effect::Child {
                    action: ChildAction::Spawn,
                    ..
                }
            )
        };
        assert!(!self.stop_ordered || !effects.iter().any(is_spawn));
        let is_over = self.sim.worker.is_over();
        let waits = self.sim.worker.poll_deadline().is_some();
        assert_eq!(
            waits, !is_over,
            "a deadline exists until the worker is over"
        );
        assert_eq!(self.ends > 0, is_over);
        assert!(self.ends <= 1, "more than one End effect");
        let mut lives = self.lives();
        assert!(!is_over || lives.all(State::is_over), "a process is left");
        let ordered = self.generations().filter(|it| *it != Generation(0));
        let generations: BTreeSet<_> = ordered.clone().collect();
        assert_eq!(
            generations.len(),
            ordered.count(),
            "a generation is used twice"
        );
        for device in self.sim.worker.devices() {
            let seats = (0..self.seats).map(SeatId);
            let lives = seats.filter(|seat| seat.device() == device);
            let mut states = lives.map(|seat| self.sim.worker.seat(seat).state());
            let serving = states.clone().filter(|state| state.takes_work());
            assert!(serving.count() <= 1, "two children of one device serve");
            let is_out = self.sim.worker.device_status(device).is_out();
            assert!(
                !is_out || states.all(State::is_over),
                "a process is left on an out-of-service device"
            );
        }
    }

    fn generations(&self) -> impl Iterator<Item = Generation> + Clone {
        let seats = (0..self.seats).map(SeatId);
        seats.map(|seat| self.sim.worker.seat(seat).generation())
    }

    fn lives(&self) -> impl Iterator<Item = &State> {
        (0..self.seats).map(|seat| self.sim.worker.seat(SeatId(seat)).state())
    }

    /// Reacts to the current states. Time passes only if there is no reaction.
    fn react(&mut self) {
        let mut silent = true;
        for seat in (0..self.seats).map(SeatId) {
            for event in self.answers(seat) {
                // Heartbeats do not count as a reaction.
                silent &= event == beat();
                let effects = self.sim.child_in(seat, event);
                self.note(&effects);
            }
            let serves = self.sim.worker.seat(seat).state().takes_work();
            if serves && !self.sim.worker.device_status(seat.device()).is_in_use() {
                let effects = self.sim.event(Event::Vacated(seat));
                self.note(&effects);
            }
        }
        if self.sim.worker.is_draining() && self.lives().any(State::takes_work) {
            let effects = self.sim.event(Event::Idle);
            self.note(&effects);
        } else if silent {
            self.advance();
        }
    }

    fn answers(&self, seat: SeatId) -> Vec<ChildEvent> {
        match (self.sim.worker.seat(seat).state(), self.behaviour) {
            (State::Spawning { .. }, _) => {
                let pid = pid(seat);
                vec![ChildEvent::Spawned { pid }]
            }
            (State::Handshaking { .. }, Behaviour::Cooperates) => vec![ChildEvent::Hello {
                pid: pid(seat),
                features: vec![],
            }],
            (State::Loading { .. }, Behaviour::Cooperates) => vec![ChildEvent::Ready],
            (State::Serving { .. } | State::StandingBy { .. }, Behaviour::Cooperates) => {
                vec![beat()]
            }
            (State::Killing { .. }, Behaviour::Cooperates)
            | (State::Reaping { .. }, Behaviour::Cooperates | Behaviour::Unresponsive) => {
                vec![ChildEvent::Exited(Exit::Signal(9)), ChildEvent::LinkClosed]
            }
            _ => vec![],
        }
    }

    fn advance(&mut self) {
        let Some(deadline) = self.sim.worker.poll_deadline() else {
            return;
        };
        let time = deadline.saturating_sub(self.sim.now);
        let effects = self.sim.pass(time);
        self.note(&effects);
        if !matches!(self.behaviour, Behaviour::Unresponsive) {
            return;
        }
        for effect in effects {
            if let Effect::Child {
                seat,
                action: ChildAction::Kill(Signal::Kill),
                ..
            } = effect
            {
                let exit = ChildEvent::Exited(Exit::Signal(9));
                let effects = self.sim.child_in(seat, exit);
                self.note(&effects);
            }
        }
    }

    fn settled(&self) -> bool {
        let worker = &self.sim.worker;
        worker.is_over() || worker.devices().all(|device| self.is_settled(device))
    }

    fn is_settled(&self, device: DeviceId) -> bool {
        let worker = &self.sim.worker;
        let seats = (0..self.seats).map(SeatId);
        let seats = seats.filter(|seat| seat.device() == device);
        let mut states = seats.map(|seat| worker.seat(seat).state());
        let serves = states.clone().any(State::takes_work);
        let is_wanted = self.standby && worker.standby_given_up(device).is_none();
        let standby = states.any(|state| match state {
            State::StandingBy { .. } => true,
            State::Vacant { spawn_at: None, .. } => !is_wanted,
            _ => false,
        });
        worker.device_status(device).is_out() || serves && standby
    }
}

fn pid(seat: SeatId) -> u32 {
    PID + u32::from(seat.0)
}

fn devices() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![1, 2, 3])
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        Just(Behaviour::Cooperates),
        Just(Behaviour::Unresponsive),
        Just(Behaviour::Unkillable)
    ]
}

/// The deadlines of a drain and of a reaping coincide: both are reached, one tick after the other.
#[test]
fn two_deadlines_at_one_time_are_both_reached() {
    let reap = Settings::default().deadlines.reap;
    let mut world = World::new(1, false, false, Behaviour::Unkillable);
    world.sim.reach_serving();
    let drain = world.sim.event(Event::Drain { timeout: reap });
    world.note(&drain);
    let closed = world.sim.child_in(SeatId(0), ChildEvent::LinkClosed);
    world.note(&closed);
    assert_eq!(world.sim.worker.poll_deadline(), Some(reap));
    world.advance();
    assert_eq!(world.sim.worker.poll_deadline(), Some(reap));
    world.advance();
    let state = world.sim.worker.seat(SeatId(0)).state();
    assert!(matches!(state, State::Killing { .. }), "{state:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_life_ends_in_serving_or_in_a_final_state(
        steps in steps(),
        behaviour in behaviour(),
        devices in devices(),
        standby: bool,
        overlap: bool,
    ) {
        let mut world = World::new(devices, standby, overlap, behaviour);
        for step in &steps {
            world.run(step);
        }
        // Six deaths with a few deadlines each; 1,000 turns are far more than needed.
        for _ in 0..1_000 {
            if world.settled() && (world.sim.worker.is_over()
                || matches!(behaviour, Behaviour::Cooperates)) {
                break;
            }
            world.react();
        }
        prop_assert!(world.settled(), "stuck: {:?}", world.sim.worker);
    }

    #[test]
    fn any_life_ends_after_a_stop_order(
        steps in steps(),
        behaviour in behaviour(),
        devices in devices(),
        standby: bool,
        overlap: bool,
        at_once: bool,
    ) {
        let mut world = World::new(devices, standby, overlap, behaviour);
        for step in &steps {
            world.run(step);
        }
        let order = if at_once {
            Event::StopNow
        } else {
            Event::Drain { timeout: Duration::from_secs(5) }
        };
        let effects = world.sim.event(order);
        world.stop_ordered = at_once;
        world.note(&effects);
        let ordered_at = world.sim.now;
        for _ in 0..1_000 {
            if world.sim.worker.is_over() {
                break;
            }
            world.react();
        }
        prop_assert!(world.sim.worker.is_over(), "stuck: {:?}", world.sim.worker);
        // Drain, one spawn, dismissal, SIGTERM and SIGKILL with their default deadlines, and a kill that was already in
        // progress.
        prop_assert!(world.sim.now - ordered_at < Duration::from_secs(60));
    }
}
