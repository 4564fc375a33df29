//! Worker of several devices: events of one device do not affect the others.

#[allow(dead_code)]
mod common;

use common::{Sim, after_death, beat, ended};
use std::time::Duration;
use worker_orcd_ipc::Generation;
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, DeviceId, Effect, Event, Exit, OutOfServiceReason, PreviousChild,
    RecoveryAction, SeatId, Settings, State, SupervisorExit,
};

/// Seats of the first child of each device.
const FIRST: SeatId = SeatId(0);
const OTHER: SeatId = SeatId(2);

fn serving() -> Sim {
    let (mut sim, _) = Sim::with_devices(Settings::default(), &[const { PreviousChild::None }; 2]);
    for seat in [FIRST, OTHER] {
        serve(&mut sim, seat);
    }
    sim
}

fn serve(sim: &mut Sim, seat: SeatId) {
    sim.reach_loading_in(seat);
    sim.child_in(seat, ChildEvent::Ready);
    assert!(takes_work(sim, seat));
}

fn die(sim: &mut Sim, seat: SeatId) -> Vec<Effect> {
    let mut effects = sim.child_in(seat, ChildEvent::Exited(Exit::Signal(11)));
    effects.extend(sim.child_in(seat, ChildEvent::LinkClosed));
    effects
}

fn takes_work(sim: &Sim, seat: SeatId) -> bool {
    sim.worker.seat(seat).state().takes_work()
}

fn spawned_in(effects: &[Effect]) -> Vec<SeatId> {
    let spawned = effects.iter().filter_map(|effect| match effect {
        Effect::Child {
            seat,
            action: ChildAction::Spawn,
            ..
        } => Some(*seat),
        _ => None,
    });
    spawned.collect()
}

fn status(sim: &Sim, seat: SeatId) -> &'static str {
    sim.worker.device_status(seat.device()).name()
}

/// Ends children of the first seat's device until none is spawned; the other device's child stays alive.
fn exhaust_restarts(sim: &mut Sim, seat: SeatId) -> Vec<Effect> {
    for _ in 0..5 {
        die(sim, seat);
        let is_due = |sim: &Sim| matches!(sim.worker.seat(seat).state(), State::Spawning { .. });
        while !is_due(sim) {
            sim.pass_with(Duration::from_millis(100), |sim| {
                sim.child_in(OTHER, beat());
            });
        }
        serve(sim, seat);
    }
    die(sim, seat)
}

#[test]
fn each_device_gets_a_child_with_its_own_generation() {
    let (sim, effects) =
        Sim::with_devices(Settings::default(), &[const { PreviousChild::None }; 3]);
    assert_eq!(spawned_in(&effects), [0, 2, 4].map(SeatId));
    assert_eq!(sim.worker.newest(), Generation(3));
    let seats: Vec<_> = sim.worker.seats().collect();
    assert_eq!(seats, (0..6).map(SeatId).collect::<Vec<_>>());
    let devices: Vec<_> = seats.iter().map(|seat| seat.device().0).collect();
    assert_eq!(devices, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_death_restarts_its_own_device_and_the_worker_keeps_serving() {
    let mut sim = serving();
    assert_eq!(spawned_in(&die(&mut sim, FIRST)), [FIRST]);
    assert!(takes_work(&sim, OTHER));
    assert_eq!(sim.state(), "serving", "the other device serves");
}

#[test]
fn a_device_without_restarts_left_goes_out_of_service_alone() {
    let mut sim = serving();
    let effects = exhaust_restarts(&mut sim, FIRST);
    assert!(
        effects.contains(&Effect::DeviceOut(DeviceId(0))),
        "{effects:?}"
    );
    assert!(ended(&effects).is_none() && spawned_in(&effects).is_empty());
    assert_eq!(status(&sim, FIRST), "failed");
    assert_eq!(status(&sim, OTHER), "in_use");
    assert!(takes_work(&sim, OTHER));
}

#[test]
fn a_worker_without_devices_fails_with_the_last_reason() {
    let mut sim = serving();
    exhaust_restarts(&mut sim, FIRST);
    sim.event(after_death(OTHER, RecoveryAction::GpuReset));
    let effects = sim.child_in(OTHER, ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(ended(&effects), Some(SupervisorExit::GpuNeedsReset));
    assert!(effects.contains(&Effect::EndRequests(
        worker_orcd_lifecycle::EndReason::Failed
    )));
}

#[test]
fn a_condemned_device_goes_out_of_service_after_its_child_and_can_be_readmitted() {
    let mut sim = serving();
    let effects = sim.event(after_death(FIRST, RecoveryAction::GpuReset));
    assert!(
        !effects.contains(&Effect::DeviceOut(DeviceId(0))),
        "its child is still dying"
    );
    assert!(!sim.worker.may_readmit(DeviceId(0)));
    let effects = sim.child_in(FIRST, ChildEvent::Exited(Exit::Signal(9)));
    assert!(effects.contains(&Effect::DeviceOut(DeviceId(0))));
    assert_eq!(status(&sim, FIRST), "condemned");
    assert!(takes_work(&sim, OTHER) && spawned_in(&effects).is_empty());

    let effects = sim.event(Event::Readmit(DeviceId(0)));
    assert_eq!(effects[0], Effect::DeviceIn(DeviceId(0)));
    assert_eq!(spawned_in(&effects), [FIRST]);
    serve(&mut sim, FIRST);
    assert_eq!(status(&sim, FIRST), "in_use");
    assert_eq!(
        spawned_in(&die(&mut sim, FIRST)),
        [FIRST],
        "restarts are counted anew"
    );
}

#[test]
fn a_readmitted_device_starts_without_earlier_deaths() {
    let mut sim = serving();
    exhaust_restarts(&mut sim, FIRST);
    sim.event(Event::Readmit(DeviceId(0)));
    serve(&mut sim, FIRST);
    die(&mut sim, FIRST);
    assert_eq!(status(&sim, FIRST), "in_use");
    assert_eq!(sim.worker.ledger(DeviceId(0)).by_cause()["signalled"], 7);
}

#[test]
fn a_drained_device_dismisses_its_child_once_it_has_no_requests() {
    let mut sim = serving();
    let effects = sim.event(Event::Withdraw(DeviceId(0)));
    let generation = sim.worker.seat(FIRST).generation();
    let action = ChildAction::Vacate;
    let vacate = Effect::Child {
        seat: FIRST,
        generation,
        action,
    };
    assert_eq!(effects, [vacate]);
    assert!(takes_work(&sim, FIRST), "until it has no requests");
    assert_eq!(status(&sim, FIRST), "draining");

    sim.event(Event::Vacated(FIRST));
    assert!(!takes_work(&sim, FIRST));
    let effects = die(&mut sim, FIRST);
    assert!(effects.contains(&Effect::DeviceOut(DeviceId(0))));
    assert!(spawned_in(&effects).is_empty());
    assert_eq!(status(&sim, FIRST), "drained");
    assert!(takes_work(&sim, OTHER));
}

#[test]
fn the_last_device_in_use_is_not_drained() {
    let mut sim = serving();
    sim.event(Event::Withdraw(DeviceId(0)));
    assert!(!sim.worker.may_withdraw(DeviceId(1)));
    assert_eq!(sim.event(Event::Withdraw(DeviceId(1))), []);
    let (mut alone, _) = Sim::start();
    alone.reach_serving();
    assert_eq!(alone.event(Event::Withdraw(DeviceId(0))), []);
}

#[test]
fn children_of_the_previous_supervisor_keep_their_devices() {
    let before = [
        PreviousChild::Serving(Generation(9)),
        PreviousChild::Serving(Generation(4)),
    ];
    let (mut sim, effects) = Sim::with_devices(Settings::default(), &before);
    assert_eq!(spawned_in(&effects), [FIRST, OTHER]);
    assert_eq!(sim.worker.seat(FIRST).generation(), Generation(9));
    assert_eq!(sim.worker.seat(OTHER).generation(), Generation(4));
    serve(&mut sim, FIRST);
    die(&mut sim, FIRST);
    assert_eq!(sim.worker.seat(FIRST).generation(), Generation(10));
}

fn out_of_service() -> PreviousChild {
    PreviousChild::OutOfService {
        last: Generation(9),
        reason: OutOfServiceReason::Withdrawn,
    }
}

#[test]
fn a_device_that_was_out_of_service_before_an_upgrade_stays_so_until_it_is_readmitted() {
    let before = [PreviousChild::Serving(Generation(4)), out_of_service()];
    let (mut sim, effects) = Sim::with_devices(Settings::default(), &before);
    assert_eq!(spawned_in(&effects), [FIRST]);
    assert!(effects.contains(&Effect::DeviceOut(DeviceId(1))));
    assert_eq!(status(&sim, OTHER), "drained");
    serve(&mut sim, FIRST);
    assert_eq!(spawned_in(&sim.event(Event::Replace)), [SeatId(1)]);
    let effects = sim.event(Event::Readmit(DeviceId(1)));
    assert_eq!(spawned_in(&effects), [OTHER]);
    assert_eq!(sim.worker.seat(OTHER).generation(), Generation(11));
}

#[test]
fn devices_that_were_all_out_of_service_before_an_upgrade_are_used() {
    let (sim, effects) =
        Sim::with_devices(Settings::default(), &[out_of_service(), out_of_service()]);
    assert_eq!(spawned_in(&effects), [FIRST, OTHER]);
    assert_eq!(status(&sim, OTHER), "in_use");
}

#[test]
fn each_device_has_its_own_standby() {
    let settings = Settings {
        standby: true,
        ..Settings::default()
    };
    let (mut sim, _) = Sim::with_devices(settings, &[const { PreviousChild::None }; 2]);
    for seat in [FIRST, OTHER] {
        serve(&mut sim, seat);
    }
    let effects = sim.pass_with(Duration::from_millis(500), |sim| {
        sim.child_in(FIRST, beat());
        sim.child_in(OTHER, beat());
    });
    assert_eq!(spawned_in(&effects), [SeatId(1), SeatId(3)]);
}
