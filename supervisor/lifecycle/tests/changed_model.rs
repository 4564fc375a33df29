//! A later child that has loaded another model than the first one: it may not serve, and nobody
//! after it could.

#[allow(dead_code)]
mod common;

use common::{Sim, deed};
use std::time::Duration;
use worker_orcd_lifecycle::{
    Blame, ChildEvent, DeathCause, Deed, Effect, EndReason, Event, Exit, Signal, SupervisorExit,
};

/// Served once, died, and the next child is loading.
fn second_load() -> Sim {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.die(Exit::Signal(9));
    sim.reach_loading();
    sim
}

#[test]
fn it_is_killed_before_it_serves_and_the_worker_ends_with_a_number_of_its_own() {
    let mut sim = second_load();
    let effects = sim.child(ChildEvent::ModelChanged);
    let generation = sim.generation();
    let signal = Signal::Kill;
    assert!(
        effects.contains(&deed(generation, Deed::Kill(signal))),
        "{effects:?}"
    );
    let effects = sim.die(Exit::Signal(9));
    let cause = DeathCause::ModelChanged;
    let reason = cause.to_string();
    let exit = SupervisorExit::ModelChanged;
    assert_eq!(
        effects,
        [
            deed(generation, Deed::Bury(cause)),
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
            Effect::End { exit, reason },
        ]
    );
    assert_eq!((exit.code(), sim.state()), (90, "failed"));
}

#[test]
fn a_drain_does_not_make_it_serve_either() {
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
fn no_request_is_accused_of_it() {
    assert_eq!(DeathCause::ModelChanged.blame(), Blame::Nobody);
}
