//! A child that loads another model than the first child did must not serve, and no later child can.

#[allow(dead_code)]
mod common;

use common::{Sim, action};
use std::time::Duration;
use worker_orcd_lifecycle::{
    Blame, ChildAction, ChildEvent, DeathCause, Effect, EndReason, Event, Exit, Signal,
    SupervisorExit,
};

/// Simulation in which the first child has served and died, and the second one is loading.
fn second_load() -> Sim {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.die(Exit::Signal(9));
    sim.reach_loading();
    sim
}

#[test]
fn a_child_with_another_model_is_killed_before_it_serves_and_the_worker_exits_with_code_90() {
    let mut sim = second_load();
    let effects = sim.child(ChildEvent::ModelChanged);
    let generation = sim.generation();
    let signal = Signal::Kill;
    assert!(
        effects.contains(&action(generation, ChildAction::Kill(signal))),
        "{effects:?}"
    );
    let effects = sim.die(Exit::Signal(9));
    let cause = DeathCause::ModelChanged;
    let reason = cause.to_string();
    let exit = SupervisorExit::ModelChanged;
    assert_eq!(
        effects,
        [
            action(generation, ChildAction::Reap(cause)),
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
            Effect::End { exit, reason },
        ]
    );
    assert_eq!((exit.code(), sim.state()), (90, "failed"));
}

#[test]
fn a_child_with_another_model_does_not_serve_during_a_drain() {
    let mut sim = second_load();
    let timeout = Duration::from_secs(5);
    sim.event(Event::Drain { timeout });
    sim.child(ChildEvent::ModelChanged);
    let effects = sim.die(Exit::Signal(9));
    assert!(
        matches!(
            effects.last(),
            Some(Effect::End {
                exit: SupervisorExit::ModelChanged,
                ..
            })
        ),
        "{effects:?}"
    );
}

#[test]
fn a_changed_model_suspects_no_request() {
    assert_eq!(DeathCause::ModelChanged.blame(), Blame::NoRequest);
}
