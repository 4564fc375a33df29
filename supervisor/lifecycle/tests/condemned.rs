//! The GPU's driver calls the device unfit, in any state of a child's life.

#[allow(dead_code)]
mod common;

use common::{PID, Sim, after_death, buried};
use std::time::Duration;
use worker_orcd_lifecycle::{
    ChildEvent, Deadlines, Deed, DeviceId, Effect, EndReason, Event, Exit, RecoveryAction, SeatId,
    Signal, SupervisorExit, Testimony, Xid,
};

const UNCONTAINED: u32 = 95;
const OFF_THE_BUS: u32 = 79;
const PAGE_FAULT: u32 = 31;

fn reported(number: u32) -> Event {
    Event::Gpu(DeviceId(0), Testimony::Reported(Xid(Some(number))))
}

fn is_killed(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        let signal = Signal::Kill;
        matches!(effect, Effect::Child { deed: Deed::Kill(sent), .. } if *sent == signal)
    })
}

fn spawns(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Child {
                deed: Deed::Spawn,
                ..
            }
        )
    })
}

/// The exit, if requests were given their end before it.
fn failed_with(effects: &[Effect]) -> Option<SupervisorExit> {
    let position = |wanted: &dyn Fn(&Effect) -> bool| effects.iter().position(wanted);
    let requests = position(&|effect| *effect == Effect::EndRequests(EndReason::Failed))?;
    let end = position(&|effect| matches!(effect, Effect::End { .. }))?;
    match &effects[end] {
        Effect::End { exit, .. } if requests < end => Some(*exit),
        _ => None,
    }
}

#[test]
fn a_living_child_is_killed_and_the_worker_fails_with_the_number_of_the_need() {
    for (number, exit) in [
        (UNCONTAINED, SupervisorExit::GpuNeedsReset),
        (OFF_THE_BUS, SupervisorExit::NodeNeedsReboot),
    ] {
        let (mut sim, _) = Sim::start();
        sim.reach_serving();
        assert!(is_killed(&sim.event(reported(number))));
        assert_eq!(sim.state(), "killing");
        let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
        assert!(!spawns(&effects), "{effects:?}");
        assert_eq!(failed_with(&effects), Some(exit));
        let failure = sim.worker.failure().expect("it has failed");
        assert!(failure.reason.contains(&format!("Xid {number}")));
        assert_eq!(buried(&effects).unwrap().label(), exit.name());
    }
}

#[test]
fn a_child_that_comes_into_being_on_a_condemned_device_is_killed_at_once() {
    let (mut sim, _) = Sim::start();
    assert_eq!(sim.event(reported(UNCONTAINED)), []);
    assert!(is_killed(&sim.child(ChildEvent::Spawned { pid: PID })));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
}

#[test]
fn a_process_that_never_comes_into_being_ends_a_condemned_worker_too() {
    let (mut sim, _) = Sim::start();
    sim.event(reported(UNCONTAINED));
    let effects = sim.pass(Deadlines::default().spawn);
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
}

#[test]
fn the_word_after_a_death_finds_the_next_child_on_its_way_and_ends_it() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    assert!(spawns(&sim.die(Exit::Signal(11))), "recovery does not wait");
    sim.child(ChildEvent::Spawned { pid: PID });
    assert!(is_killed(
        &sim.event(after_death(SeatId(0), RecoveryAction::GpuReset))
    ));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
}

#[test]
fn in_a_backoff_there_is_nobody_to_wait_for() {
    let (mut sim, _) = Sim::start();
    for _ in 0..2 {
        sim.reach_serving();
        sim.die(Exit::Signal(11));
    }
    assert_eq!(sim.state(), "backoff");
    let effects = sim.event(after_death(SeatId(0), RecoveryAction::NodeReboot));
    assert_eq!(failed_with(&effects), Some(SupervisorExit::NodeNeedsReboot));
}

#[test]
fn a_child_that_is_dying_already_is_buried_and_not_replaced() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.child(ChildEvent::LinkClosed);
    assert_eq!(sim.event(reported(UNCONTAINED)), []);
    let effects = sim.child(ChildEvent::Exited(Exit::Code(68)));
    assert!(!spawns(&effects), "{effects:?}");
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
    assert_eq!(buried(&effects).unwrap().label(), "device", "its own");
}

#[test]
fn an_application_s_fault_changes_nothing() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    assert_eq!(sim.event(reported(PAGE_FAULT)), []);
    assert_eq!(sim.state(), "serving");
    assert!(spawns(&sim.die(Exit::Signal(11))));
    assert_eq!(sim.event(after_death(SeatId(0), RecoveryAction::None)), []);
    sim.reach_serving();
}

#[test]
fn while_draining_it_is_a_failure_and_once_told_to_stop_it_is_not() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let timeout = Duration::from_secs(5);
    sim.event(Event::Drain { timeout });
    assert!(is_killed(&sim.event(reported(UNCONTAINED))));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));

    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Drain { timeout });
    sim.event(Event::Idle);
    assert_eq!(sim.event(reported(UNCONTAINED)), []);
    sim.die(Exit::Code(0));
    assert_eq!(sim.state(), "stopped");
}
