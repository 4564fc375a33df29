//! Where nobody stands by, the next child begins while the one before is dying.

#[allow(dead_code)]
mod common;

use common::{PID, STANDBY, Sim, beat, device_fault, ended, hello};
use std::time::Duration;
use worker_orcd_ipc::{DeviceError, Fault, Generation, Role};
use worker_orcd_lifecycle::{
    Before, ChildEvent, Deed, Effect, Event, Exit, SeatId, Settings, Signal, State, SupervisorExit,
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

fn has(effects: &[Effect], seat: SeatId, wanted: &Deed) -> bool {
    let is_it = |effect: &Effect| match effect {
        Effect::Child { seat: of, deed, .. } => (*of, deed) == (seat, wanted),
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
fn the_next_child_begins_at_the_first_sign_and_serves_before_the_dead_is_reaped() {
    for sign in [
        ChildEvent::Fault(device_fault()),
        ChildEvent::LinkClosed,
        ChildEvent::Exited(Exit::Signal(9)),
        ChildEvent::Violation("nonsense".to_owned()),
    ] {
        let mut sim = overlapping();
        let effects = sim.child(sign.clone());
        let succession = Effect::Succession {
            of: FIRST,
            heir: STANDBY,
        };
        assert!(effects.contains(&succession), "{sign:?}");
        assert!(has(&effects, STANDBY, &Deed::Spawn), "{sign:?}");
        sim.child_in(STANDBY, ChildEvent::Spawned { pid: PID });
        let effects = sim.child_in(STANDBY, hello());
        let load = Deed::Load(Role::Standby);
        assert!(has(&effects, STANDBY, &load), "the dying has the memory");
        let effects = sim.child_in(STANDBY, ChildEvent::Ready);
        assert!(has(&effects, STANDBY, &Deed::Promote));
        assert!(has(&effects, STANDBY, &Deed::Serve));
        assert_eq!(sim.state(), "serving");
        let buried = die_in(&mut sim, FIRST, Exit::Signal(9));
        assert!(!has(&buried, FIRST, &Deed::Spawn), "one is enough");
        assert_eq!(sim.worker.successions(), 1);
        let later = sim.pass_with(Duration::from_secs(2), beat_all);
        assert!(!has(&later, FIRST, &Deed::Spawn), "none stands by");
    }
}

#[test]
fn a_cause_that_needs_time_is_given_it() {
    let mut sim = overlapping();
    let full_disk = ChildEvent::Fault(Fault::Io {
        message: "no space left on device".to_owned(),
    });
    let effects = sim.child(full_disk);
    assert!(!has(&effects, STANDBY, &Deed::Spawn));
    let effects = sim.pass(Duration::from_millis(200));
    assert!(!has(&effects, STANDBY, &Deed::Spawn));
    let effects = sim.pass(Duration::from_millis(100));
    assert!(has(&effects, STANDBY, &Deed::Spawn));
}

/// Beside the dying child, the next one would find as little.
#[test]
fn a_child_that_had_too_little_memory_is_followed_behind_its_burial() {
    for short in [
        ChildEvent::Fault(Fault::OutOfMemory {
            message: "2 GiB".to_owned(),
        }),
        ChildEvent::Exited(Exit::OomKilled),
    ] {
        let mut sim = overlapping();
        sim.child(short.clone());
        let effects = sim.pass_with(Duration::from_millis(800), beat_all);
        assert!(!has(&effects, STANDBY, &Deed::Spawn), "{short:?}");
        die_in(&mut sim, FIRST, Exit::Code(71));
        let effects = sim.pass(Duration::from_millis(200));
        assert!(!has(&effects, FIRST, &Deed::Spawn), "{short:?}");
        let effects = sim.pass(Duration::from_millis(100));
        assert!(has(&effects, FIRST, &Deed::Spawn), "{short:?}");
    }
}

#[test]
fn a_second_death_in_a_row_waits_as_long_as_it_would_have() {
    let mut sim = overlapping();
    die_in(&mut sim, FIRST, Exit::Signal(11));
    sim.reach_loading_in(STANDBY);
    sim.child_in(STANDBY, ChildEvent::Ready);
    let effects = die_in(&mut sim, STANDBY, Exit::Signal(11));
    assert!(!has(&effects, FIRST, &Deed::Spawn));
    let effects = sim.pass(Duration::from_millis(400));
    assert!(!has(&effects, FIRST, &Deed::Spawn));
    let effects = sim.pass(Duration::from_millis(100));
    assert!(has(&effects, FIRST, &Deed::Spawn));
}

#[test]
fn a_child_that_delivered_is_followed_at_once_although_the_one_before_is_not_buried_yet() {
    let mut sim = overlapping();
    let mut seats = [FIRST, STANDBY].into_iter().cycle();
    let mut dying = seats.next().expect("without end");
    for _ in 0..20 {
        let heir = seats.next().expect("without end");
        sim.child_in(dying, ChildEvent::Progress);
        let effects = sim.child_in(dying, ChildEvent::LinkClosed);
        assert!(has(&effects, heir, &Deed::Spawn));
        sim.reach_loading_in(heir);
        sim.child_in(heir, ChildEvent::Ready);
        sim.child_in(heir, ChildEvent::Progress);
        sim.child_in(dying, ChildEvent::Exited(Exit::Signal(11)));
        dying = heir;
    }
}

#[test]
fn one_that_never_served_is_followed_at_its_burial_only() {
    let settings = Settings {
        overlap: true,
        ..Settings::default()
    };
    let (mut sim, _) = Sim::with(settings);
    sim.reach_loading();
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(11)));
    assert!(!has(&effects, STANDBY, &Deed::Spawn));
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(has(&effects, FIRST, &Deed::Spawn));
}

#[test]
fn weights_that_changed_are_nobodys_to_take_over() {
    let changed = || {
        ChildEvent::Fault(Fault::Device {
            error: DeviceError::WeightsChanged,
            message: "tensor 7".to_owned(),
        })
    };
    let mut sim = overlapping();
    let effects = sim.child(changed());
    assert!(!has(&effects, STANDBY, &Deed::Spawn));
    let effects = die_in(&mut sim, FIRST, Exit::Code(68));
    assert!(has(&effects, FIRST, &Deed::Spawn));
    // The words come when the next child has the weights already.
    let mut sim = overlapping();
    sim.child(ChildEvent::Exited(Exit::Code(68)));
    sim.pass_with(Duration::from_millis(250), beat_all);
    sim.reach_loading_in(STANDBY);
    let effects = sim.child(changed());
    assert!(has(&effects, STANDBY, &Deed::Kill(Signal::Kill)));
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(has(&effects, FIRST, &Deed::Spawn), "{effects:?}");
}

#[test]
fn a_next_child_that_dies_before_the_one_before_is_buried_is_followed_too() {
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
fn it_goes_with_the_worker_that_gives_up_for_the_cause() {
    let mut sim = overlapping();
    sim.child(ChildEvent::LinkClosed);
    sim.reach_loading_in(STANDBY);
    let effects = sim.child(ChildEvent::Exited(Exit::Code(2)));
    assert!(has(&effects, STANDBY, &Deed::Dismiss));
    let effects = die_in(&mut sim, STANDBY, Exit::Code(0));
    assert_eq!(ended(&effects), Some(SupervisorExit::ChildIncompatible));
}

#[test]
fn a_worker_that_is_to_stop_begins_none() {
    let mut sim = overlapping();
    sim.event(Event::StopNow);
    let effects = sim.child(ChildEvent::LinkClosed);
    assert!(!has(&effects, STANDBY, &Deed::Spawn));
}

#[test]
fn behind_the_children_of_another_supervisor_the_first_one_takes_its_memory_when_it_serves() {
    let before = [Before::Dying(Generation(7))];
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
    assert!(has(&effects, FIRST, &Deed::Load(Role::Standby)));
    let effects = sim.child_in(FIRST, ChildEvent::Ready);
    assert!(has(&effects, FIRST, &Deed::Promote) && has(&effects, FIRST, &Deed::Serve));

    die_in(&mut sim, FIRST, Exit::Code(1));
    sim.child_in(FIRST, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(FIRST, hello());
    assert!(
        has(&effects, FIRST, &Deed::Load(Role::Active)),
        "they are gone"
    );
}

#[test]
fn a_child_that_served_under_another_supervisor_is_the_first_one_here_and_no_death() {
    let before = [Before::Serving(Generation(7))];
    let (mut sim, effects) = Sim::with_devices(Settings::default(), &before);
    assert!(matches!(
        effects[..],
        [Effect::Child {
            generation: Generation(7),
            deed: Deed::Spawn,
            ..
        }]
    ));
    sim.child_in(FIRST, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(FIRST, hello());
    assert!(has(&effects, FIRST, &Deed::Load(Role::Active)), "it has it");
    let effects = sim.child_in(FIRST, ChildEvent::Ready);
    assert!(has(&effects, FIRST, &Deed::Serve));
    die_in(&mut sim, FIRST, Exit::Code(1));
    assert_eq!(sim.worker.newest(), Generation(8));
}
