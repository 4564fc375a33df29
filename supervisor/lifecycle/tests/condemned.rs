//! Condemnation of a device by NVIDIA's driver, in each state of a child.

#[allow(dead_code)]
mod common;

use common::{PID, Sim, after_death, reaped};
use std::time::Duration;
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, Deadlines, DeviceId, Effect, EndReason, Event, Exit, GpuVerdict,
    RecoveryAction, SeatId, Signal, SupervisorExit, Xid,
};

const UNCONTAINED: u32 = 95;
const OFF_THE_BUS: u32 = 79;
const PAGE_FAULT: u32 = 31;

fn reported(number: u32) -> Event {
    Event::Gpu(DeviceId(0), GpuVerdict::Reported(Xid(Some(number))))
}

fn is_killed(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        let signal = Signal::Kill;
        matches!(effect, Effect::Child { action: ChildAction::Kill(sent), .. } if *sent == signal)
    })
}

fn spawns(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Child {
                action: ChildAction::Spawn,
                ..
            }
        )
    })
}

/// Exit code of the worker, if all requests were ended before it.
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
fn a_running_child_is_killed_and_the_worker_fails_with_the_exit_code_of_the_need() {
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
        let failure = sim.worker.failure().expect("a failed worker");
        assert!(failure.reason.contains(&format!("Xid {number}")));
        assert_eq!(reaped(&effects).unwrap().label(), exit.name());
    }
}

#[test]
fn a_new_process_on_a_condemned_device_is_killed_at_once() {
    let (mut sim, _) = Sim::start();
    assert_eq!(sim.event(reported(UNCONTAINED)), []);
    assert!(is_killed(&sim.child(ChildEvent::Spawned { pid: PID })));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
}

#[test]
fn a_spawn_timeout_ends_a_condemned_worker() {
    let (mut sim, _) = Sim::start();
    sim.event(reported(UNCONTAINED));
    let effects = sim.pass(Deadlines::default().spawn);
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
}

#[test]
fn a_verdict_after_a_death_kills_the_next_child_during_its_start() {
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
fn a_verdict_during_a_backoff_ends_the_worker_at_once() {
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
fn a_dying_child_on_a_condemned_device_is_reaped_and_not_replaced() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.child(ChildEvent::LinkClosed);
    assert_eq!(sim.event(reported(UNCONTAINED)), []);
    let effects = sim.child(ChildEvent::Exited(Exit::Code(68)));
    assert!(!spawns(&effects), "{effects:?}");
    assert_eq!(failed_with(&effects), Some(SupervisorExit::GpuNeedsReset));
    assert_eq!(
        reaped(&effects).unwrap().label(),
        "device",
        "the child's own cause"
    );
}

#[test]
fn an_application_error_changes_nothing() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    assert_eq!(sim.event(reported(PAGE_FAULT)), []);
    assert_eq!(sim.state(), "serving");
    assert!(spawns(&sim.die(Exit::Signal(11))));
    assert_eq!(sim.event(after_death(SeatId(0), RecoveryAction::None)), []);
    sim.reach_serving();
}

#[test]
fn a_verdict_during_a_drain_is_a_failure_and_after_its_end_is_not() {
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
