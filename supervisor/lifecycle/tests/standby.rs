//! Standby: load, promotion, and the next standby.

#[allow(dead_code)]
mod common;

use common::{PID, STANDBY, Sim, beat, device_fault, ended, hello, model_load_fault};
use std::time::Duration;
use worker_orcd_ipc::{DeviceError, Fault, Generation, Role};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, DeathCause, DeviceId, Effect, Event, Exit, SeatId, Signal, State,
    SupervisorExit,
};

const FIRST: SeatId = SeatId(0);
const MOMENT: Duration = Duration::from_millis(1);

fn standing_by() -> Sim {
    let mut sim = Sim::with_standby();
    sim.reach_standing_by();
    sim
}

/// Actions on children, with their seats.
fn actions(effects: &[Effect]) -> Vec<(SeatId, &ChildAction)> {
    let action = |effect| match effect {
        &Effect::Child {
            seat, ref action, ..
        } => Some((seat, action)),
        _ => None,
    };
    effects.iter().filter_map(action).collect()
}

fn spawns(effects: &[Effect]) -> Vec<SeatId> {
    let spawns = actions(effects).into_iter();
    let spawns = spawns.filter(|(_, action)| **action == ChildAction::Spawn);
    spawns.map(|(seat, _)| seat).collect()
}

fn serving(sim: &Sim) -> Vec<SeatId> {
    let serves = |seat: &SeatId| sim.worker.seat(*seat).state().takes_work();
    sim.worker.seats().filter(serves).collect()
}

fn beat_all(sim: &mut Sim) {
    for seat in [FIRST, STANDBY] {
        if sim.worker.seat(seat).state().is_watched() {
            sim.child_in(seat, beat());
        }
    }
}

fn die_in(sim: &mut Sim, seat: SeatId, exit: Exit) -> Vec<Effect> {
    let mut effects = sim.child_in(seat, ChildEvent::Exited(exit));
    effects.extend(sim.child_in(seat, ChildEvent::LinkClosed));
    effects
}

#[test]
fn a_standby_is_loaded_once_another_child_serves() {
    let mut sim = Sim::with_standby();
    sim.reach_loading();
    assert_eq!(spawns(&sim.pass_with(Duration::from_secs(5), beat_all)), []);
    sim.child(ChildEvent::Ready);
    let effects = sim.pass_with(Duration::from_secs(1), beat_all);
    assert_eq!(spawns(&effects), [STANDBY]);
    sim.child_in(STANDBY, ChildEvent::Spawned { pid: PID });
    let effects = sim.child_in(STANDBY, hello());
    assert_eq!(
        actions(&effects),
        [(STANDBY, &ChildAction::Load(Role::Standby))]
    );
    let effects = sim.child_in(STANDBY, ChildEvent::Ready);
    assert_eq!(actions(&effects), [(STANDBY, &ChildAction::StandBy)]);
    assert_eq!(serving(&sim), [FIRST]);
}

#[test]
fn a_standby_is_promoted_at_the_first_sign_of_a_death_before_the_reaping() {
    for sign in [
        ChildEvent::Fault(device_fault()),
        ChildEvent::LinkClosed,
        ChildEvent::Exited(Exit::Signal(9)),
        ChildEvent::Violation("nonsense".to_owned()),
    ] {
        let mut sim = standing_by();
        let effects = sim.child(sign.clone());
        let is_failover = |effect: &Effect| {
            *effect
                == Effect::Failover {
                    predecessor: FIRST,
                    successor: STANDBY,
                }
        };
        assert!(effects.iter().any(is_failover), "{sign:?}");
        let (promote, serve) = (
            (STANDBY, &ChildAction::Promote),
            (STANDBY, &ChildAction::Serve),
        );
        let actions = actions(&effects);
        let at = actions
            .iter()
            .position(|action| *action == promote)
            .unwrap();
        assert_eq!(actions[at + 1], serve, "{sign:?}");
        assert_eq!(serving(&sim), [STANDBY]);
        assert_eq!(sim.state(), "serving");
    }
}

#[test]
fn the_dead_child_s_seat_gets_the_next_standby_after_a_pause() {
    let mut sim = standing_by();
    assert_eq!(spawns(&die_in(&mut sim, FIRST, Exit::Signal(9))), []);
    let effects = sim.pass_with(Duration::from_millis(400), beat_all);
    assert_eq!(spawns(&effects), [], "the streams come first");
    let effects = sim.pass_with(Duration::from_millis(100), beat_all);
    assert_eq!(spawns(&effects), [FIRST]);
    sim.reach_loading_in(FIRST);
    sim.child_in(FIRST, ChildEvent::Ready);
    die_in(&mut sim, STANDBY, Exit::Signal(11));
    assert_eq!(serving(&sim), [FIRST], "a second failover");
    assert_eq!(sim.worker.failovers(), 2);
}

#[test]
fn a_loading_standby_serves_once_it_is_ready() {
    let mut sim = Sim::with_standby();
    sim.reach_loading_standby();
    let effects = die_in(&mut sim, FIRST, Exit::Signal(9));
    assert_eq!(spawns(&effects), [], "no other child is spawned");
    assert_eq!(sim.state(), "loading");
    let effects = sim.child_in(STANDBY, ChildEvent::Ready);
    let expected = [
        (STANDBY, &ChildAction::Promote),
        (STANDBY, &ChildAction::Serve),
    ];
    assert_eq!(actions(&effects), expected);
}

#[test]
fn a_standby_without_a_load_order_is_loaded_as_the_active_child() {
    let mut sim = Sim::with_standby();
    sim.reach_serving();
    sim.pass_with(Duration::from_millis(500), beat_all);
    sim.child_in(STANDBY, ChildEvent::Spawned { pid: PID });
    die_in(&mut sim, FIRST, Exit::Signal(9));
    let effects = sim.child_in(STANDBY, hello());
    assert_eq!(
        actions(&effects),
        [(STANDBY, &ChildAction::Load(Role::Active))]
    );
    let effects = sim.child_in(STANDBY, ChildEvent::Ready);
    assert_eq!(actions(&effects), [(STANDBY, &ChildAction::Serve)]);
}

#[test]
fn deaths_of_a_standby_end_only_the_attempts_to_keep_one() {
    let mut sim = standing_by();
    for _ in 0..6 {
        assert_eq!(sim.worker.standby_given_up(DeviceId(0)), None);
        die_in(&mut sim, STANDBY, Exit::Signal(11));
        sim.pass_with(Duration::from_secs(8), beat_all);
        let state = sim.worker.seat(STANDBY).state();
        if matches!(state, State::Spawning { .. }) {
            sim.child_in(STANDBY, ChildEvent::Spawned { pid: PID });
        }
    }
    let why = sim
        .worker
        .standby_given_up(DeviceId(0))
        .expect("six deaths");
    assert!(why.contains("6 children in a row died"), "{why}");
    assert_eq!(sim.state(), "serving");
    assert_eq!(sim.worker.ledger(DeviceId(0)).by_cause()["signalled"], 6);
    let effects = sim.pass_with(Duration::from_secs(60), beat_all);
    assert_eq!(spawns(&effects), [], "the standby is given up");
    // These deaths do not count against the serving child.
    assert_eq!(spawns(&die_in(&mut sim, FIRST, Exit::Signal(9))), [FIRST]);
}

#[test]
fn a_standby_that_was_ready_for_long_or_was_killed_externally_is_always_replaced() {
    let mut sim = standing_by();
    let mut follow = |exit, stood_by| {
        sim.pass_with(stood_by, beat_all);
        die_in(&mut sim, STANDBY, exit);
        sim.pass_with(Duration::from_millis(500), beat_all);
        sim.reach_loading_in(STANDBY);
        sim.child_in(STANDBY, ChildEvent::Ready);
    };
    for _ in 0..20 {
        follow(Exit::Signal(9), Duration::ZERO);
        follow(Exit::Signal(11), Duration::from_secs(10));
    }
}

#[test]
fn a_standby_with_a_permanent_fault_is_given_up_until_the_next_serving_child() {
    let mut sim = Sim::with_standby();
    sim.reach_loading_standby();
    sim.child_in(STANDBY, ChildEvent::Fault(model_load_fault()));
    die_in(&mut sim, STANDBY, Exit::Code(65));
    let why = sim.worker.standby_given_up(DeviceId(0)).unwrap_or_default();
    assert!(why.contains("not a GGUF file"), "{why}");
    assert_eq!(sim.state(), "serving");
    die_in(&mut sim, FIRST, Exit::Signal(9));
    sim.reach_serving();
    assert_eq!(sim.worker.standby_given_up(DeviceId(0)), None);
    let effects = sim.pass_with(Duration::from_secs(1), beat_all);
    assert_eq!(spawns(&effects), [STANDBY]);
}

#[test]
fn changed_weights_that_a_standby_reports_end_the_serving_child_too() {
    let found = |error| {
        ChildEvent::Fault(Fault::Device {
            error,
            message: "tensor 7".to_owned(),
        })
    };
    for (error, is_of_both) in [
        (DeviceError::WeightsChanged, true),
        (DeviceError::NotResident, true),
        (DeviceError::WrongResult, false),
    ] {
        let mut sim = standing_by();
        let effects = sim.child_in(STANDBY, found(error));
        let effects = [effects, die_in(&mut sim, STANDBY, Exit::Code(68))].concat();
        let kill = (FIRST, &ChildAction::Kill(Signal::Kill));
        assert_eq!(actions(&effects).contains(&kill), is_of_both);
        assert_eq!(serving(&sim).is_empty(), is_of_both);
        assert_eq!(sim.worker.failure(), None);
    }
}

#[test]
fn a_standby_is_not_promoted_on_weights_that_the_serving_child_reports_changed() {
    let mut sim = standing_by();
    let effects = sim.child(ChildEvent::Fault(Fault::Device {
        error: DeviceError::WeightsChanged,
        message: "tensor 7".to_owned(),
    }));
    let actions = actions(&effects);
    assert!(actions.contains(&(STANDBY, &ChildAction::Kill(Signal::Kill))));
    assert!(!actions.contains(&(STANDBY, &ChildAction::Promote)));
    assert_eq!(serving(&sim), []);
    assert_eq!(
        spawns(&die_in(&mut sim, FIRST, Exit::Code(68))),
        [FIRST],
        "loads from the file"
    );
    die_in(&mut sim, STANDBY, Exit::Signal(9));
    sim.reach_serving();
    let effects = sim.pass_with(Duration::from_secs(2), beat_all);
    assert_eq!(spawns(&effects), [STANDBY]);
}

#[test]
fn a_silent_standby_is_killed() {
    let mut sim = standing_by();
    let effects = sim.pass_with(Duration::from_secs(3), |sim| {
        sim.child(beat());
    });
    let kill = (STANDBY, &ChildAction::Kill(Signal::Kill));
    assert!(actions(&effects).contains(&kill));
    assert_eq!(serving(&sim), [FIRST]);
}

#[test]
fn a_crash_loop_ends_the_worker_despite_a_standby() {
    let mut sim = standing_by();
    let mut seats = [FIRST, STANDBY].into_iter().cycle();
    let mut last = vec![];
    for _ in 0..6 {
        let seat = seats.next().unwrap();
        last = die_in(&mut sim, seat, Exit::Signal(11));
        if sim.worker.failure().is_some() {
            break;
        }
        sim.pass_with(Duration::from_secs(9), beat_all);
        sim.reach_loading_in(seat);
        sim.child_in(seat, ChildEvent::Ready);
    }
    assert!(sim.worker.failure().is_some(), "{last:?}");
    let effects = die_in(&mut sim, STANDBY, Exit::Code(0));
    let effects = [effects, die_in(&mut sim, FIRST, Exit::Code(0))].concat();
    assert_eq!(ended(&effects), Some(SupervisorExit::CrashLoop));
}

#[test]
fn a_replacement_uses_a_new_child_and_counts_no_death() {
    for mut sim in [Sim::start().0, Sim::with_standby()] {
        sim.reach_serving();
        if sim.worker.settings().standby {
            sim = standing_by();
        }
        let effects = sim.event(Event::Replace);
        if sim.worker.settings().standby {
            assert!(
                actions(&effects).contains(&(STANDBY, &ChildAction::Dismiss)),
                "the standby runs the old binary"
            );
            die_in(&mut sim, STANDBY, Exit::Code(0));
            sim.event(Event::Tick);
        }
        assert_eq!(serving(&sim), [FIRST]);
        sim.reach_loading_in(STANDBY);
        let effects = sim.child_in(STANDBY, ChildEvent::Ready);
        let expected = [
            (STANDBY, &ChildAction::StandBy),
            (FIRST, &ChildAction::Dismiss),
        ];
        let actions = actions(&effects);
        assert!(
            expected.iter().all(|action| actions.contains(action)),
            "{actions:?}"
        );
        assert_eq!(serving(&sim), [STANDBY]);
        sim.now += MOMENT;
        die_in(&mut sim, FIRST, Exit::Code(0));
        let dismissed = DeathCause::Dismissed.label();
        let deaths = sim.worker.ledger(DeviceId(0)).by_cause().iter();
        assert!(
            deaths.clone().all(|(cause, _)| *cause == dismissed),
            "{deaths:?}"
        );
        let kept = usize::from(sim.worker.settings().standby);
        let effects = sim.pass_with(Duration::from_secs(1), beat_all);
        assert_eq!(
            spawns(&effects).len(),
            kept,
            "a standby only if one is kept"
        );
    }
}

#[test]
fn a_replacement_that_cannot_load_leaves_the_serving_child() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Replace);
    sim.reach_loading_in(STANDBY);
    sim.child_in(STANDBY, ChildEvent::Fault(model_load_fault()));
    die_in(&mut sim, STANDBY, Exit::Code(65));
    sim.pass_with(Duration::from_secs(10), beat_all);
    assert_eq!(serving(&sim), [FIRST]);
    assert_eq!(
        sim.worker.seat(STANDBY).generation(),
        Generation(2),
        "one attempt"
    );
}

#[test]
fn an_ending_worker_dismisses_its_standby() {
    let mut sim = standing_by();
    sim.event(Event::Drain {
        timeout: Duration::from_secs(5),
    });
    let effects = sim.event(Event::Idle);
    let dismissed = [FIRST, STANDBY].map(|seat| (seat, &ChildAction::Dismiss));
    assert!(
        dismissed
            .iter()
            .all(|action| actions(&effects).contains(action))
    );
    assert_eq!(ended(&die_in(&mut sim, FIRST, Exit::Code(0))), None);
    let effects = die_in(&mut sim, STANDBY, Exit::Code(0));
    assert_eq!(ended(&effects), Some(SupervisorExit::Clean));
}
