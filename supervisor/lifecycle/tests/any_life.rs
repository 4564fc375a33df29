//! Whatever happens, in whatever order, it ends well: from any state that any sequence of events
//! can reach, a world that reacts to effects brings the machine to serving or to a final state,
//! and on the way there is never a wait without a deadline.

#[allow(dead_code)]
mod common;

use common::{PID, Sim, beat, every_event, hello};
use proptest::prelude::*;
use std::time::Duration;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{ChildEvent, Effect, Event, Exit, Signal, State};

/// How a child answers from now on.
#[derive(Debug, Clone, Copy)]
enum Temper {
    /// Does everything it is asked to.
    Cooperates,
    /// Does nothing; dies of SIGKILL only.
    PlaysDead,
    /// Survives even that.
    Immortal,
}

#[derive(Debug, Clone)]
enum Step {
    /// Index into `every_event`, and whether it comes from the previous generation.
    Event(usize, bool),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let events = every_event(Generation::FIRST).len();
    let step = prop_oneof![
        4 => (0..events, prop::bool::weighted(0.1)).prop_map(|(i, stale)| Step::Event(i, stale)),
        1 => (0u64..3_000).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..60)
}

/// A child and the kernel around it.
struct World {
    sim: Sim,
    temper: Temper,
    ends: u32,
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Pass(ms) => {
                let effects = self.sim.pass(Duration::from_millis(*ms));
                self.note(&effects);
            }
            Step::Event(index, stale) => {
                let mut generation = self.sim.generation();
                if *stale {
                    generation = Generation(generation.0.wrapping_sub(1));
                }
                let (_, event) = every_event(generation).swap_remove(*index);
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
        assert_eq!(
            self.sim.machine.poll_deadline().is_none(),
            self.sim.machine.state().is_final(),
            "only the final states wait for nothing"
        );
        assert_eq!(self.ends > 0, self.sim.machine.state().is_final());
        assert!(self.ends <= 1, "ended twice");
    }

    /// The world's reaction to the state it finds; time passes only where there is none.
    fn react(&mut self) {
        let answers = match (self.sim.machine.state(), self.temper) {
            (State::Spawning { .. }, _) => vec![ChildEvent::Spawned { pid: PID }],
            (State::Handshaking { .. }, Temper::Cooperates) => vec![hello()],
            (State::Loading { .. }, Temper::Cooperates) => vec![ChildEvent::Ready],
            (State::Serving { .. } | State::Draining { .. }, Temper::Cooperates) => vec![beat()],
            (State::Killing { .. }, Temper::Cooperates)
            | (State::Reaping { .. }, Temper::Cooperates | Temper::PlaysDead) => {
                vec![ChildEvent::Exited(Exit::Signal(9)), ChildEvent::LinkClosed]
            }
            _ => vec![],
        };
        let silent = answers.is_empty();
        for event in answers {
            let effects = self.sim.child(event);
            self.note(&effects);
        }
        if matches!(self.sim.machine.state(), State::Draining { .. }) {
            let effects = self.sim.event(Event::Idle);
            self.note(&effects);
        } else if silent {
            self.advance();
        }
    }

    fn advance(&mut self) {
        let Some(deadline) = self.sim.machine.poll_deadline() else {
            return;
        };
        let time = deadline.saturating_sub(self.sim.now);
        let effects = self.sim.pass(time);
        let killed = effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Kill {
                    signal: Signal::Kill,
                    ..
                }
            )
        });
        self.note(&effects);
        if killed && matches!(self.temper, Temper::PlaysDead) {
            let effects = self.sim.child(ChildEvent::Exited(Exit::Signal(9)));
            self.note(&effects);
        }
    }

    fn settled(&self) -> bool {
        let state = self.sim.machine.state();
        state.is_final() || matches!(state, State::Serving { .. })
    }
}

fn temper() -> impl Strategy<Value = Temper> {
    prop_oneof![
        Just(Temper::Cooperates),
        Just(Temper::PlaysDead),
        Just(Temper::Immortal)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_life_ends_in_serving_or_in_a_final_state(steps in steps(), temper in temper()) {
        let (sim, _) = Sim::start();
        let mut world = World { sim, temper, ends: 0 };
        for step in &steps {
            world.run(step);
        }
        // Six deaths at no more than a handful of deadlines each; 1,000 is far above.
        for _ in 0..1_000 {
            if world.settled() && (world.sim.machine.state().is_final()
                || matches!(temper, Temper::Cooperates)) {
                break;
            }
            world.react();
        }
        prop_assert!(world.settled(), "stuck in {:?}", world.sim.machine.state());
    }

    #[test]
    fn once_told_to_stop_any_life_ends(steps in steps(), temper in temper(), at_once: bool) {
        let (sim, _) = Sim::start();
        let mut world = World { sim, temper, ends: 0 };
        for step in &steps {
            world.run(step);
        }
        let told = if at_once {
            Event::StopNow
        } else {
            Event::Drain { timeout: Duration::from_secs(5) }
        };
        let effects = world.sim.event(told);
        world.note(&effects);
        let told_at = world.sim.now;
        for _ in 0..1_000 {
            if world.sim.machine.state().is_final() {
                break;
            }
            world.react();
        }
        prop_assert!(world.sim.machine.state().is_final());
        // Drain, one spawn, dismissal, SIGTERM and SIGKILL at their defaults, with room for a
        // kill that was under way.
        prop_assert!(world.sim.now - told_at < Duration::from_secs(60));
    }
}
