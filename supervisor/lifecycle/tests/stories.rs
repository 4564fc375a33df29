//! Scenarios of one child on simulated time, on both sides of each deadline.

#[allow(dead_code)]
mod common;

use common::{
    PID, Sim, action, beat, device_fault, ended, hello, killed, model_load_fault, reaped,
};
use std::time::Duration;
use worker_orcd_ipc::{Fault, Generation, Role};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, Deadlines, DeathCause, DeviceId, Effect, EndReason, Event, Exit,
    KillStage, PreviousChild, RestartPolicy, SeatId, Settings, Signal, State, SupervisorExit,
};

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_child_is_spawned_and_loaded_and_serves() {
    let (mut sim, effects) = Sim::start();
    let generation = Generation::FIRST;
    assert_eq!(effects, [action(generation, ChildAction::Spawn)]);
    assert_eq!(sim.child(ChildEvent::Spawned { pid: PID }), []);
    assert_eq!(
        sim.child(hello()),
        [action(generation, ChildAction::Load(Role::Active))]
    );
    assert_eq!(
        sim.child(ChildEvent::Ready),
        [action(generation, ChildAction::Serve)]
    );
    assert_eq!(sim.state(), "serving");
}

#[test]
fn fault_then_exit_then_end_of_socket_is_one_death_with_the_fault_as_cause() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let effects = sim.child(ChildEvent::Fault(device_fault()));
    assert!(suspends_in(&effects, "serving"));
    assert_eq!(sim.child(ChildEvent::Exited(Exit::Code(68))), []);
    let effects = sim.child(ChildEvent::LinkClosed);
    assert_eq!(
        effects,
        [
            action(
                Generation(1),
                ChildAction::Reap(DeathCause::Reported(device_fault()))
            ),
            action(Generation(2), ChildAction::Spawn),
        ]
    );
}

/// True if the effects start with the suspension of a child in this state.
fn suspends_in(effects: &[Effect], state: &str) -> bool {
    match effects {
        [
            Effect::Child {
                action: ChildAction::Suspend { previous_state },
                ..
            },
            ..,
        ] => previous_state.name() == state,
        _ => false,
    }
}

#[test]
fn each_sign_of_an_end_carries_the_previous_state() {
    let (mut sim, _) = Sim::start();
    sim.reach_loading();
    assert!(suspends_in(&sim.child(ChildEvent::LinkClosed), "loading"));
    // The socket is closed, but the process does not exit.
    let effects = sim.pass(Deadlines::default().reap);
    assert!(killed(&effects) && suspends_in(&effects, "reaping"));
    sim.child(ChildEvent::Exited(Exit::Signal(9)));
    sim.reach_serving();
    let effects = sim.child(ChildEvent::Violation("garbage".to_owned()));
    assert!(suspends_in(&effects, "serving"));
}

#[test]
fn signs_of_death_may_come_in_any_order() {
    for order in [[0, 1], [1, 0]] {
        let (mut sim, _) = Sim::start();
        sim.reach_serving();
        let mut effects = vec![];
        for sign in order {
            effects.extend(sim.child(match sign {
                0 => ChildEvent::LinkClosed,
                _ => ChildEvent::Exited(Exit::Signal(11)),
            }));
        }
        assert_eq!(
            reaped(&effects),
            Some(DeathCause::Signalled(11)),
            "{order:?}"
        );
        assert_eq!(sim.state(), "spawning");
    }
}

#[test]
fn a_socket_that_closes_without_an_exit_is_killed_after_the_reap_deadline() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.child(ChildEvent::LinkClosed);
    let reap = Deadlines::default().reap;
    assert!(!killed(&sim.pass(reap - MS)));
    assert!(killed(&sim.pass(MS)));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(reaped(&effects), Some(DeathCause::SocketClosed));
}

#[test]
fn a_socket_held_open_by_a_grandchild_delays_the_reaping_only_to_its_deadline() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.child(ChildEvent::Exited(Exit::Code(73)));
    let effects = sim.pass(Deadlines::default().reap);
    assert_eq!(reaped(&effects).map(|cause| cause.label()), Some("io"));
}

#[test]
fn a_missing_heartbeat_kills_and_a_steady_one_does_not() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.pass_with(Duration::from_secs(600), |sim| {
        sim.child(beat());
    });
    assert_eq!(sim.state(), "serving");
    let heartbeat = Deadlines::default().heartbeat;
    assert!(!killed(&sim.pass(heartbeat - MS)));
    assert!(killed(&sim.pass(MS)));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert!(matches!(
        reaped(&effects),
        Some(DeathCause::HeartbeatLost { .. })
    ));
}

#[test]
fn a_step_deadline_kills_despite_heartbeats() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let step = Deadlines::default().step;
    let effects = sim.child(ChildEvent::Heartbeat {
        step_elapsed: Some(step - MS),
    });
    assert_eq!(effects, []);
    let effects = sim.child(ChildEvent::Heartbeat {
        step_elapsed: Some(step),
    });
    assert!(killed(&effects));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(
        reaped(&effects),
        Some(DeathCause::StepDeadline { ran_for: step })
    );
}

#[test]
fn only_a_load_without_progress_is_killed() {
    let (mut sim, _) = Sim::start();
    sim.reach_loading();
    sim.pass_with(Duration::from_secs(600), |sim| {
        sim.child(beat());
        let bytes_done = sim.now.as_millis() as u64;
        sim.child(ChildEvent::LoadProgress {
            bytes_done,
            bytes_total: 1 << 40,
        });
    });
    assert_eq!(sim.state(), "loading");
    let same = |sim: &mut Sim| {
        sim.child(beat());
        sim.child(ChildEvent::LoadProgress {
            bytes_done: 600_000,
            bytes_total: 1 << 40,
        });
    };
    let load = Deadlines::default().load;
    assert!(!killed(&sim.pass_with(load - MS, same)));
    assert!(killed(&sim.pass_with(MS, same)));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert!(matches!(
        reaped(&effects),
        Some(DeathCause::LoadStalled {
            bytes_done: 600_000,
            ..
        })
    ));
}

#[test]
fn a_child_without_hello_is_killed_and_the_next_one_is_delayed() {
    let (mut sim, _) = Sim::start();
    sim.child(ChildEvent::Spawned { pid: PID });
    assert!(killed(&sim.pass(Deadlines::default().handshake)));
    sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(sim.state(), "backoff");
    let effects = sim.pass(RestartPolicy::default().first_delay);
    assert_eq!(effects, [action(Generation(2), ChildAction::Spawn)]);
}

#[test]
fn a_spawn_that_times_out_is_given_up_and_its_late_process_killed() {
    let (mut sim, _) = Sim::start();
    sim.pass(Deadlines::default().spawn);
    assert_eq!(sim.state(), "backoff");
    let late = Event::Child {
        generation: Generation(1),
        event: ChildEvent::Spawned { pid: PID },
    };
    let effects = sim.event(late);
    assert_eq!(
        effects,
        [action(Generation(1), ChildAction::Kill(Signal::Kill))]
    );
}

#[test]
fn a_late_process_is_killed_in_its_own_seat() {
    let two = [const { PreviousChild::None }; 2];
    let (mut sim, _) = Sim::with_devices(Settings::default(), &two);
    sim.pass(Deadlines::default().spawn);
    let (seat, generation) = (SeatId(2), Generation(2));
    let late = ChildEvent::Spawned { pid: PID };
    let action = ChildAction::Kill(Signal::Kill);
    let kill = Effect::Child {
        seat,
        generation,
        action,
    };
    assert_eq!(sim.child_in(seat, late), [kill]);
}

#[test]
fn accepted_features_pass_and_others_end_the_worker() {
    let settings = Settings {
        accept_features: vec!["fault-injection".to_owned()],
        ..Settings::default()
    };
    let hello = ChildEvent::Hello {
        pid: PID,
        features: vec!["fault-injection".to_owned()],
    };
    let (mut sim, _) = Sim::with(settings);
    sim.child(ChildEvent::Spawned { pid: PID });
    sim.child(hello.clone());
    assert_eq!(sim.state(), "loading");

    let (mut sim, _) = Sim::start();
    sim.child(ChildEvent::Spawned { pid: PID });
    assert!(killed(&sim.child(hello)));
    let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
    assert_eq!(ended(&effects), Some(SupervisorExit::ChildIncompatible));
}

#[test]
fn a_permanent_fault_at_the_first_load_ends_the_worker_with_its_code() {
    let insufficient = Fault::InsufficientMemory {
        required_bytes: 2,
        available_bytes: 1,
        device: "cpu".to_owned(),
        model: "m".to_owned(),
    };
    let missing = Fault::DeviceUnavailable {
        message: "cuda:7".to_owned(),
    };
    for (fault, exit) in [
        (model_load_fault(), SupervisorExit::ModelLoad),
        (insufficient, SupervisorExit::InsufficientMemory),
        (missing, SupervisorExit::DeviceUnavailable),
    ] {
        let (mut sim, _) = Sim::start();
        sim.reach_loading();
        let code = fault.exit_code().code();
        sim.child(ChildEvent::Fault(fault));
        assert_eq!(ended(&sim.die(Exit::Code(code))), Some(exit));
        assert_eq!(sim.state(), "failed");
        assert_eq!(i32::from(exit.code()), code);
    }
}

#[test]
fn a_permanent_fault_after_service_is_retried() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.die(Exit::Signal(9));
    sim.reach_loading();
    sim.child(ChildEvent::Fault(model_load_fault()));
    sim.die(Exit::Code(65));
    assert_eq!(sim.state(), "backoff");
}

#[test]
fn a_permanent_exit_code_without_a_fault_counts_like_the_fault() {
    let (mut sim, _) = Sim::start();
    sim.reach_loading();
    assert_eq!(
        ended(&sim.die(Exit::Code(67))),
        Some(SupervisorExit::DeviceUnavailable)
    );
}

#[test]
fn a_fault_that_arrives_after_the_exit_is_the_cause() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.child(ChildEvent::Exited(Exit::Code(68)));
    sim.child(ChildEvent::Fault(device_fault()));
    let effects = sim.child(ChildEvent::LinkClosed);
    assert_eq!(reaped(&effects), Some(DeathCause::Reported(device_fault())));
}

#[test]
fn messages_of_past_generations_are_counted_and_dropped() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.die(Exit::Signal(11));
    sim.reach_serving();
    let before = sim.life().clone();
    let late = Event::Child {
        generation: Generation(1),
        event: ChildEvent::Fault(device_fault()),
    };
    assert_eq!(sim.event(late), []);
    assert_eq!(*sim.life(), before);
    assert_eq!(sim.worker.stale_events(), 1);
}

#[test]
fn unexpected_messages_are_violations() {
    for (prepare, message) in [
        (Sim::reach_serving as fn(&mut Sim), ChildEvent::Ready),
        (Sim::reach_serving, hello()),
        (
            Sim::reach_serving,
            ChildEvent::LoadProgress {
                bytes_done: 1,
                bytes_total: 2,
            },
        ),
        (Sim::reach_loading, hello()),
        (
            |sim| drop(sim.child(ChildEvent::Spawned { pid: PID })),
            beat(),
        ),
        (
            |sim| drop(sim.child(ChildEvent::Spawned { pid: PID })),
            ChildEvent::Ready,
        ),
    ] {
        let (mut sim, _) = Sim::start();
        prepare(&mut sim);
        assert!(killed(&sim.child(message.clone())), "{message:?}");
        let effects = sim.child(ChildEvent::Exited(Exit::Signal(9)));
        assert!(matches!(
            reaped(&effects),
            Some(DeathCause::ProtocolViolation(_))
        ));
    }
}

#[test]
fn a_spawn_without_free_descriptors_is_retried_and_counts_no_death() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.die(Exit::Signal(9));
    let deaths = format!("{:?}", sim.worker.ledger(DeviceId(0)));
    for _ in 0..100 {
        assert_eq!(sim.child(ChildEvent::SpawnStarved), []);
        assert_eq!(sim.state(), "backoff");
        sim.now = sim.worker.poll_deadline().expect("a scheduled retry");
        let effects = sim.event(Event::Tick);
        assert!(
            matches!(
                effects[..],
                [Effect::Child {
                    action: ChildAction::Spawn,
                    ..
                }]
            ),
            "{effects:?}"
        );
    }
    assert_eq!(format!("{:?}", sim.worker.ledger(DeviceId(0))), deaths);
    sim.reach_serving();
}

#[test]
fn a_dismissal_escalates_from_shutdown_to_sigterm_to_sigkill_to_unreapable() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    sim.event(Event::Drain {
        timeout: Duration::from_secs(5),
    });
    sim.event(Event::Idle);
    let deadlines = Deadlines::default();
    let stage = |sim: &Sim| match sim.life() {
        State::Killing { stage, .. } => Some(*stage),
        _ => None,
    };
    assert_eq!(stage(&sim), Some(KillStage::Asked));
    sim.pass(deadlines.dismiss);
    assert_eq!(stage(&sim), Some(KillStage::Terminated));
    sim.pass(deadlines.terminate);
    assert_eq!(stage(&sim), Some(KillStage::Killed));
    let effects = sim.pass(deadlines.kill);
    assert_eq!(ended(&effects), Some(SupervisorExit::Unreapable));
    assert_eq!(sim.state(), "failed");
}

#[test]
fn a_pause_of_the_supervisor_extends_the_heartbeat_deadline() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    // The machine was suspended for an hour. The tick precedes the heartbeats that are in the socket.
    sim.now += Duration::from_secs(3600);
    assert_eq!(sim.event(Event::Tick), []);
    sim.child(beat());
    assert_eq!(sim.state(), "serving");
    assert!(killed(&sim.pass(Deadlines::default().heartbeat)));
}

#[test]
fn ticks_at_the_polled_deadlines_suffice_to_detect_silence() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let mut effects = vec![];
    while !killed(&effects) {
        sim.now = sim.worker.poll_deadline().unwrap();
        effects = sim.event(Event::Tick);
    }
    assert_eq!(sim.now, Deadlines::default().heartbeat);
}

#[test]
fn an_oom_kill_has_its_own_cause_and_delays_the_next_child() {
    let (mut sim, _) = Sim::start();
    sim.reach_serving();
    let effects = sim.die(Exit::OomKilled);
    let cause = DeathCause::OomKilled;
    let generation = sim.generation();
    assert!(
        effects.contains(&action(generation, ChildAction::Reap(cause))),
        "{effects:?}"
    );
    assert_eq!(sim.state(), "backoff", "the memory is not free yet");
    assert_eq!(sim.worker.ledger(DeviceId(0)).by_cause()["oom_killed"], 1);
    sim.pass(Duration::from_secs(1));
    assert_eq!(sim.state(), "spawning");
}

#[test]
fn a_failure_ends_every_request_with_a_reason() {
    let (mut sim, _) = Sim::start();
    let mut effects = vec![];
    for _ in 0..6 {
        sim.pass_until_spawning();
        sim.reach_serving();
        effects = sim.die(Exit::Signal(11));
    }
    assert_eq!(sim.state(), "failed");
    let position = |wanted: fn(&Effect) -> bool| effects.iter().position(wanted).unwrap();
    let closed = position(|effect| *effect == Effect::RefuseNewWork);
    let ended = position(|effect| *effect == Effect::EndRequests(EndReason::Failed));
    let end = position(|effect| {
        matches!(effect, Effect::End { exit: SupervisorExit::CrashLoop, reason }
            if reason.contains("signal 11"))
    });
    assert!(closed < ended && ended < end, "{effects:?}");
    assert_eq!(SupervisorExit::CrashLoop.code(), 82);
    assert_eq!(sim.worker.poll_deadline(), None);
}
