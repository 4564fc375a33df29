//! Drain and immediate stop.

#[allow(dead_code)]
mod common;

use common::{PID, Sim, action, beat, ended, killed};
use std::time::Duration;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, Effect, EndReason, Event, Exit, Signal, SupervisorExit,
};

#[test]
fn a_drain_serves_to_the_last_request_then_dismisses_and_ends_clean() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let timeout = Duration::from_secs(5);
    assert_eq!(sim.event(Event::Drain { timeout }), [Effect::RefuseNewWork]);
    assert_eq!(sim.state(), "draining");
    let effects = sim.event(Event::Idle);
    assert!(effects.contains(&action(Generation(1), ChildAction::Dismiss)));
    assert_eq!(sim.child(ChildEvent::Goodbye), []);
    let effects = sim.die(Exit::Code(0));
    assert_eq!(ended(&effects), Some(SupervisorExit::Clean));
}

#[test]
fn a_drain_that_times_out_ends_the_remaining_requests() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Drain {
        timeout: Duration::from_secs(5),
    });
    let effects = sim.pass_with(Duration::from_secs(5), |sim| {
        sim.child(beat());
    });
    assert!(effects.contains(&Effect::EndRequests(EndReason::DrainDeadline)));
    assert_eq!(
        ended(&sim.die(Exit::Code(0))),
        Some(SupervisorExit::DrainIncomplete)
    );
}

#[test]
fn a_second_drain_event_only_shortens_the_drain() {
    let hour = Duration::from_secs(3600);
    let second = Duration::from_secs(1);
    for timeouts in [[hour, second], [second, hour]] {
        let (mut sim, _) = Sim::start();
        sim.reach_serving();
        for timeout in timeouts {
            sim.event(Event::Drain { timeout });
        }
        let effects = sim.pass_with(second, |sim| {
            sim.child(beat());
        });
        let over = Effect::EndRequests(EndReason::DrainDeadline);
        assert!(effects.contains(&over), "{timeouts:?}: {effects:?}");
    }
}

#[test]
fn a_child_that_dies_while_draining_is_replaced_so_that_accepted_work_finishes() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Drain {
        timeout: Duration::from_secs(5),
    });
    sim.die(Exit::Signal(11));
    assert_eq!(sim.state(), "spawning");
    sim.reach_serving();
    assert_eq!(sim.state(), "draining");
    sim.event(Event::Idle);
    assert_eq!(ended(&sim.die(Exit::Code(0))), Some(SupervisorExit::Clean));
}

#[test]
fn an_immediate_stop_ends_requests_and_kills_the_child() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Drain {
        timeout: Duration::from_secs(5),
    });
    let effects = sim.event(Event::StopNow);
    assert!(effects.contains(&Effect::EndRequests(EndReason::StoppedAtOnce)));
    assert!(killed(&effects));
    assert_eq!(
        ended(&sim.die(Exit::Signal(9))),
        Some(SupervisorExit::StoppedAtOnce)
    );
}

#[test]
fn a_stop_during_a_spawn_waits_for_the_process_and_ends_it() {
    let (mut sim, _) = Sim::start();
    sim.event(Event::StopNow);
    assert_eq!(sim.state(), "spawning");
    let effects = sim.child(ChildEvent::Spawned { pid: PID });
    assert_eq!(
        effects,
        [action(Generation(1), ChildAction::Kill(Signal::Term))]
    );
    assert_eq!(
        ended(&sim.die(Exit::Signal(15))),
        Some(SupervisorExit::StoppedAtOnce)
    );
}
