//! Start of the next child while the previous one is dying, without a standby.

#[allow(dead_code)]
mod common;

use common::{PID, STANDBY, Sim, beat, device_fault, ended, hello};
use std::time::Duration;
use worker_orcd_ipc::{DeviceError, Fault, Generation, Role};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, Effect, Event, Exit, PreviousChild, SeatId, Settings, Signal, State,
    SupervisorExit,
};

const FIRST: SeatId = SeatId(0);

fn overlapping() -> Sim {
    let settings = Settings {
        overlap: true,
        ..Settings::default()
    };
    let mut sim = Sim::with(settings).0;
    sim.reach_serving();
    sim
}

fn has(effects: &[Effect], seat: SeatId, wanted: &ChildAction) -> bool {
    let is_it = |effect: &Effect| match effect {
        Effect::Child {
            seat: of, action, ..
        } => (*of, action) == (seat, wanted),
        _ => false,
    };
    effects.iter().any(is_it)
}

fn die_in(sim: &mut Sim, seat: SeatId, exit: Exit) -> Vec<Effect> {
    let mut effects = sim.child_in(seat, ChildEvent::Exited(exit));
    effects.extend(sim.child_in(seat, ChildEvent::LinkClosed));
    effects
}

fn beat_all(sim: &mut Sim) {
    for seat in [FIRST, STANDBY] {
        if sim.worker.seat(seat).state().is_watched() {
            sim.child_in(seat, beat());
        }
    }
}

#[test]
fn the_next_child_starts_at_the_first_sign_of_a_death_and_serves_before_the_reaping() {
    for sign in [
        ChildEvent::Fault(device_fault()),
        ChildEvent::LinkClosed,
        ChildEvent::Exited(Exit::Signal(9)),
        ChildEvent::Violation("nonsense".to_owned()),
    ] {
        let mut sim = overlapping();
        let effects = sim.child(sign.clone());
        let succession = Effect::Failover {
            predecessor: FIRST,
            successor: STANDBY,
        };
        assert!(effects.contains(&succession), "{sign:?}");
        assert!(has(&effects, STANDBY, &ChildAction::Spawn), "{sign:?}");
        sim.child_in(STANDBY, ChildEvent::Spawned { pid: PID });
        let effects = sim.child_in(STANDBY, hello());
        let load = ChildAction::Load(Role::Standby);
        assert!(
            has(&effects, STANDBY, &load),
            "the dying child holds the memory"
        );
        let effects = sim.child_in(STANDBY, ChildEvent::Ready);
        assert!(has(&effects, STANDBY, &ChildAction::Promote));
        assert!(has(&effects, STANDBY, &ChildAction::Serve));
        assert_eq!(sim.state(), "serving");
        let reaped = die_in(&mut sim, FIRST, Exit::Signal(9));
        assert!(
            !has(&reaped, FIRST, &ChildAction::Spawn),
            "a second successor"
        );
        assert_eq!(sim.worker.failovers(), 1);
        let later = sim.pass_with(Duration::from_secs(2), beat_all);
        assert!(
            !has(&later, FIRST, &ChildAction::Spawn),
            "a standby that is not kept"
        );
    }
}

#[test]
fn a_cause_that_needs_time_delays_the_overlapping_start() {
    let mut sim = overlapping();
    let full_disk = ChildEvent::Fault(Fault::Io {
        message: "no space left on device".to_owned(),
    });
    let effects = sim.child(full_disk);
    assert!(!has(&effects, STANDBY, &ChildAction::Spawn));
    let effects = sim.pass(Duration::from_millis(200));
    assert!(!has(&effects, STANDBY, &ChildAction::Spawn));
    let effects = sim.pass(Duration::from_millis(100));
    assert!(has(&effects, STANDBY, &ChildAction::Spawn));
}

/// The dying child still holds its memory, so a successor beside it would run out of memory too.
#[test]
fn after_a_memory_shortage_the_next_child_starts_after_the_reaping() {
    for short in [
        ChildEvent::Fault(Fault::OutOfMemory {
            message: "2 GiB".to_owned(),
        }),
        ChildEvent::Exited(Exit::OomKilled),
    ] {
        let mut sim = overlapping();
        sim.child(short.clone());
        let effects = sim.pass_with(Duration::from_millis(800), beat_all);
        assert!(!has(&effects, STANDBY, &ChildAction::Spawn), "{short:?}");
        die_in(&mut sim, FIRST, Exit::Code(71));
        let effects = sim.pass(Duration::from_millis(200));
        assert!(!has(&effects, FIRST, &ChildAction::Spawn), "{short:?}");
        let effects = sim.pass(Duration::from_millis(100));
        assert!(has(&effects, FIRST, &ChildAction::Spawn), "{short:?}");
    }
}

#[test]
fn a_second_death_in_a_row_has_the_usual_delay() {
    let mut sim = overlapping();
    die_in(&mut sim, FIRST, Exit::Signal(11));
    sim.reach_loading_in(STANDBY);
    sim.child_in(STANDBY, ChildEvent::Ready);
    let effects = die_in(&mut sim, STANDBY, Exit::Signal(11));
    assert!(!has(&effects, FIRST, &ChildAction::Spawn));
    let effects = sim.pass(Duration::from_millis(400));
    assert!(!has(&effects, FIRST, &ChildAction::Spawn));
    let effects = sim.pass(Duration::from_millis(100));
    assert!(has(&effects, FIRST, &ChildAction::Spawn));
}

#[test]
fn after_progress_the_next_child_starts_at_once_before_the_previous_one_is_reaped() {
    let mut sim = overlapping();
    let mut seats = [FIRST, STANDBY].into_iter().cycle();
    let mut dying = seats.next().expect("an endless cycle");
    for _ in 0..20 {
        let successor = seats.next().expect("an endless cycle");
        sim.child_in(dying, ChildEvent::Progress);
        let effects = sim.child_in(dying, ChildEvent::LinkClosed);
        assert!(has(&effects, successor, &ChildAction::Spawn));
        sim.reach_loading_in(successor);
        sim.child_in(successor, ChildEvent::Ready);
        sim.child_in(successor, ChildEvent::Progress);
        sim.child_in(dying, ChildEvent::Exited(Exit::Signal(11)));
        dying = successor;
    }
}

#[test]
fn a_child_that_never_served_is_replaced_only_after_its_reaping() {
    let settings = Settings {
        overlap: true,
        ..Settings::default()
    };
    let (mut sim, _) = Sim::with(settings);
    sim.reach_loading();
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(11)));
    assert!(!has(&effects, STANDBY, &ChildAction::Spawn));
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(has(&effects, FIRST, &ChildAction::Spawn));
}

#[test]
fn changed_weights_are_not_used_by_a_successor() {
    let changed = || {
        ChildEvent::Fault(Fault::Device {
            error: DeviceError::WeightsChanged,
            message: "tensor 7".to_owned(),
        })
    };
    let mut sim = overlapping();
    let effects = sim.child(changed());
    assert!(!has(&effects, STANDBY, &ChildAction::Spawn));
    let effects = die_in(&mut sim, FIRST, Exit::Code(68));
    assert!(has(&effects, FIRST, &ChildAction::Spawn));
    // The fault arrives after the next child has mapped the weights.
    let mut sim = overlapping();
    sim.child(ChildEvent::Exited(Exit::Code(68)));
    sim.pass_with(Duration::from_millis(250), beat_all);
    sim.reach_loading_in(STANDBY);
    let effects = sim.child(changed());
    assert!(has(&effects, STANDBY, &ChildAction::Kill(Signal::Kill)));
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(has(&effects, FIRST, &ChildAction::Spawn), "{effects:?}");
}

#[test]
fn a_successor_that_dies_before_the_reaping_is_replaced_too() {
    let mut sim = overlapping();
    sim.child(ChildEvent::LinkClosed);
    sim.reach_loading_in(STANDBY);
    die_in(&mut sim, STANDBY, Exit::Signal(11));
    sim.child(ChildEvent::Exited(Exit::Signal(9)));
    sim.pass_with(Duration::from_secs(3), beat_all);
    let spawning = |seat: &SeatId| {
        let state = sim.worker.seat(*seat).state();
        matches!(state, State::Spawning { .. })
    };
    assert_eq!([FIRST, STANDBY].iter().filter(|it| spawning(it)).count(), 1);
}

#[test]
fn a_permanent_cause_ends_the_successor_and_the_worker() {
    let mut sim = overlapping();
    sim.child(ChildEvent::LinkClosed);
    sim.reach_loading_in(STANDBY);
    let effects = sim.child(ChildEvent::Exited(Exit::Code(2)));
    assert!(has(&effects, STANDBY, &ChildAction::Dismiss));
    let effects = die_in(&mut sim, STANDBY, Exit::Code(0));
    assert_eq!(ended(&effects), Some(SupervisorExit::ChildIncompatible));
}

#[test]
fn a_stopping_worker_starts_no_successor() {
    let mut sim = overlapping();
    sim.event(Event::StopNow);
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(!has(&effects, STANDBY, &ChildAction::Spawn));
}

#[test]
fn the_first_child_after_an_upgrade_without_handoff_allocates_its_memory_at_promotion() {
    let before = [PreviousChild::Dying(Generation(7))];
    let (mut sim, effects) = Sim::with_devices(Settings::default(), &before);
    assert!(matches!(
        effects[..],
        [Effect::Child {
            generation: Generation(8),
            ..
        }]
    ));
    sim.child_in(FIRST, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(FIRST, hello());
    assert!(has(&effects, FIRST, &ChildAction::Load(Role::Standby)));
    let effects = sim.child_in(FIRST, ChildEvent::Ready);
    assert!(
        has(&effects, FIRST, &ChildAction::Promote) && has(&effects, FIRST, &ChildAction::Serve)
    );

    die_in(&mut sim, FIRST, Exit::Code(1));
    sim.child_in(FIRST, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(FIRST, hello());
    assert!(
        has(&effects, FIRST, &ChildAction::Load(Role::Active)),
        "the previous children are gone"
    );
}

#[test]
fn a_serving_child_of_the_previous_supervisor_becomes_the_first_child_without_a_death() {
    let before = [PreviousChild::Serving(Generation(7))];
    let (mut sim, effects) = Sim::with_devices(Settings::default(), &before);
    assert!(matches!(
        effects[..],
        [Effect::Child {
            generation: Generation(7),
            action: ChildAction::Spawn,
            ..
        }]
    ));
    sim.child_in(FIRST, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(FIRST, hello());
    assert!(
        has(&effects, FIRST, &ChildAction::Load(Role::Active)),
        "it holds its memory already"
    );
    let effects = sim.child_in(FIRST, ChildEvent::Ready);
    assert!(has(&effects, FIRST, &ChildAction::Serve));
    die_in(&mut sim, FIRST, Exit::Code(1));
    assert_eq!(sim.worker.newest(), Generation(8));
}
