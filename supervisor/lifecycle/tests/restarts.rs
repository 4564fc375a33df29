//! Consequences of deaths: failure of the worker, delay of the next child, and unsteady devices.

#[allow(dead_code)]
mod common;

use common::{Sim, beat, ended};
use std::time::Duration;
use worker_orcd_lifecycle::{
    ChildEvent, Deadlines, DeviceId, Event, Exit, RestartPolicy, Settings, State, SupervisorExit,
};

const MS: Duration = Duration::from_millis(1);

#[test]
fn the_sixth_child_in_a_row_that_dies_without_progress_ends_the_worker() {
    let (mut sim, _) = Sim::start();
    for death in 1..=6 {
        sim.reach_serving();
        let effects = sim.die(Exit::Signal(11));
        match death {
            1 => assert_eq!(sim.state(), "spawning"),
            2..=5 => {
                assert_eq!(sim.state(), "backoff", "death {death}");
                sim.pass(Duration::from_secs(8));
            }
            _ => assert_eq!(ended(&effects), Some(SupervisorExit::CrashLoop)),
        }
    }
    assert_eq!(sim.worker.ledger(DeviceId(0)).by_cause()["signalled"], 6);
}

#[test]
fn deaths_with_progress_between_never_end_a_worker_and_restart_at_once() {
    let (mut sim, _) = Sim::start();
    for _ in 0..1000 {
        sim.reach_serving();
        sim.child(ChildEvent::Progress);
        sim.die(Exit::Signal(11));
        assert_eq!(sim.state(), "spawning");
    }
    assert_eq!(sim.worker.ledger(DeviceId(0)).by_cause()["signalled"], 1000);
}

#[test]
fn progress_resets_the_count_of_deaths_without_progress() {
    let (mut sim, _) = Sim::start();
    for death in 0..50 {
        sim.pass_until_spawning();
        sim.reach_serving();
        if death % 6 == 5 {
            sim.child(ChildEvent::Progress);
        }
        sim.die(Exit::Signal(11));
        let without_progress = sim.worker.ledger(DeviceId(0)).deaths_without_progress();
        assert_eq!(without_progress, (death + 1) % 6);
    }
}

#[test]
fn progress_counts_only_while_tokens_are_accepted() {
    let (mut sim, _) = Sim::start();
    let without_progress = |sim: &Sim| sim.worker.ledger(DeviceId(0)).deaths_without_progress();
    sim.reach_serving();
    sim.die(Exit::Signal(11));
    sim.reach_loading();
    sim.child(ChildEvent::Progress);
    assert_eq!(without_progress(&sim), 1, "the child does not serve");
    sim.child(ChildEvent::Ready);
    sim.child(ChildEvent::Violation("garbage".to_owned()));
    sim.child(ChildEvent::Progress);
    assert_eq!(without_progress(&sim), 1, "the child is being killed");
    sim.child(ChildEvent::Exited(Exit::Signal(9)));
    sim.pass_until_spawning();
    sim.reach_serving();
    sim.child(ChildEvent::Exited(Exit::Signal(11)));
    sim.child(ChildEvent::Progress);
    assert_eq!(
        without_progress(&sim),
        0,
        "messages before its own exit count"
    );
}

#[test]
fn a_cause_that_needs_time_delays_the_next_child_longer_each_time_despite_progress() {
    let (mut sim, _) = Sim::start();
    let mut delays = vec![];
    for _ in 0..8 {
        sim.pass_until_spawning();
        sim.reach_serving();
        sim.child(ChildEvent::Progress);
        sim.die(Exit::OomKilled);
        if let State::Vacant {
            since,
            spawn_at: Some(until),
        } = *sim.life()
        {
            delays.push((until - since).as_millis());
        }
    }
    assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
}

#[test]
fn an_external_signal_never_ends_a_worker() {
    let (mut sim, _) = Sim::start();
    for _ in 0..20 {
        sim.reach_serving();
        sim.die(Exit::Signal(9));
        assert_eq!(sim.state(), "spawning", "the cause needs no time");
    }
    let mut delays = vec![];
    for _ in 0..20 {
        sim.reach_loading();
        let died_at = sim.now;
        sim.die(Exit::Signal(15));
        sim.pass_until_spawning();
        delays.push((sim.now - died_at).as_millis());
    }
    let growing = [0, 500, 1000, 2000, 4000, 8000, 8000];
    assert_eq!(delays[..7], growing, "none of them served");
}

#[test]
fn a_discounted_death_does_not_count_against_the_device() {
    let (mut sim, _) = Sim::start();
    let discount_deaths = |deaths| Event::DiscountDeaths {
        device: DeviceId(0),
        deaths,
    };
    for _ in 0..50 {
        sim.pass_until_spawning();
        sim.reach_serving();
        sim.die(Exit::Signal(11));
        sim.event(discount_deaths(1));
    }
    assert_eq!(sim.worker.ledger(DeviceId(0)).deaths_without_progress(), 0);
    sim.event(discount_deaths(9));
    assert_eq!(sim.worker.ledger(DeviceId(0)).deaths_without_progress(), 0);
}

#[test]
fn a_burst_of_deaths_makes_a_device_unsteady_until_a_minute_has_passed() {
    let (mut sim, _) = Sim::start();
    let device = DeviceId(0);
    let policy = RestartPolicy::default();
    for death in 1..=12 {
        sim.reach_serving();
        sim.child(ChildEvent::Progress);
        sim.pass(Duration::from_secs(1));
        sim.die(Exit::Signal(9));
        let is_unsteady = sim.worker.is_unsteady(device, sim.now);
        assert_eq!(is_unsteady, death > policy.burst, "death {death}");
    }
    let last = sim.now;
    assert!(sim.worker.is_unsteady(device, last + policy.window - MS));
    assert!(!sim.worker.is_unsteady(device, last + policy.window));
}

#[test]
fn rare_deaths_are_no_burst() {
    let (mut sim, _) = Sim::start();
    let policy = RestartPolicy::default();
    for _ in 0..50 {
        sim.reach_serving();
        sim.pass_with(policy.window / policy.burst, |sim| {
            sim.child(beat());
        });
        sim.child(ChildEvent::Progress);
        sim.die(Exit::Signal(11));
        assert!(!sim.worker.is_unsteady(DeviceId(0), sim.now));
    }
}

#[test]
fn deaths_without_progress_end_the_worker_at_any_rate() {
    let (mut sim, _) = Sim::start();
    let mut lives = 0;
    while sim.state() != "failed" {
        lives += 1;
        assert!(lives <= 6, "restarted more than five times");
        sim.reach_loading();
        sim.pass_with(Deadlines::default().load, |sim| {
            sim.child(beat());
        });
        sim.child(ChildEvent::Exited(Exit::Signal(9)));
        sim.pass(RestartPolicy::default().max_delay);
    }
    assert_eq!(lives, 6);
}

#[test]
fn backoff_doubles_up_to_its_limit() {
    let restart = RestartPolicy {
        max_deaths: 100,
        ..RestartPolicy::default()
    };
    let (mut sim, _) = Sim::with(Settings {
        restart,
        ..Settings::default()
    });
    let mut delays = vec![];
    for _ in 0..9 {
        sim.reach_serving();
        sim.die(Exit::Code(71));
        if let State::Vacant {
            since,
            spawn_at: Some(until),
        } = *sim.life()
        {
            delays.push((until - since).as_millis());
            sim.pass(until - since);
        }
    }
    assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]);
}
