//! Transition tables as text files: `life.txt` of one seat, `worker.txt` of a worker of one device.
//!
//! After an intended change, `UPDATE_GOLDEN=1 cargo test -p worker-orcd-lifecycle` rewrites them for review.

#[allow(dead_code)]
mod common;

use common::{PID, STANDBY, Sim, device_fault, every_event, hello};
use std::fmt::Write as _;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};
use worker_orcd_lifecycle::{
    ChildAction, ChildEvent, Deadlines, DeathCause, DeviceId, Effect, Event, Exit, GpuVerdict,
    Life, SeatId, Settings, Xid,
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/");

/// 10 ms, less than each deadline.
const SOON: Duration = Duration::from_millis(10);

type Prepare = fn(&mut Sim);

/// States of a worker: name in the table, and the events that reach it.
const STATES: [(&str, Prepare); 19] = [
    ("Spawning", |_| {}),
    ("Handshaking", |sim| {
        sim.child(ChildEvent::Spawned { pid: common::PID });
    }),
    ("Loading", Sim::reach_loading),
    ("Loading (draining)", |sim| {
        sim.reach_loading();
        sim.event(Event::Drain {
            timeout: Duration::from_secs(5),
        });
    }),
    ("Serving", Sim::reach_serving),
    ("Serving (spawning a standby)", |sim| {
        sim.reach_serving();
        sim.event(Event::Replace);
    }),
    ("Serving (loading a standby)", |sim| {
        sim.reach_serving();
        sim.event(Event::Replace);
        sim.reach_loading_in(STANDBY);
    }),
    ("Serving (a standby kept)", |sim| {
        *sim = Sim::with_standby();
        sim.reach_standing_by();
    }),
    ("Draining", |sim| {
        sim.reach_serving();
        sim.event(Event::Drain {
            timeout: Duration::from_secs(5),
        });
    }),
    ("Killing (asked)", |sim| {
        sim.reach_serving();
        sim.event(Event::Drain {
            timeout: Duration::from_secs(5),
        });
        sim.event(Event::Idle);
    }),
    ("Killing (killed for cause)", |sim| {
        sim.reach_serving();
        sim.child(ChildEvent::Violation("garbage".to_owned()));
    }),
    ("Reaping (fault reported)", |sim| {
        sim.reach_serving();
        sim.child(ChildEvent::Fault(device_fault()));
    }),
    ("Reaping (exited)", |sim| {
        sim.reach_serving();
        sim.child(ChildEvent::Exited(Exit::Code(72)));
    }),
    ("Backoff", |sim| {
        sim.reach_serving();
        sim.die(Exit::Signal(11));
        sim.reach_serving();
        sim.die(Exit::Signal(11));
    }),
    ("Spawning (condemned)", condemn),
    ("Killing (condemned)", |sim| {
        sim.reach_serving();
        condemn(sim);
    }),
    ("Spawning (leaving)", |sim| {
        sim.event(Event::StopNow);
    }),
    ("Stopped", |sim| {
        sim.reach_serving();
        sim.event(Event::StopNow);
        sim.child(ChildEvent::Exited(Exit::Signal(9)));
    }),
    ("Failed", |sim| {
        sim.child(ChildEvent::SpawnFailed {
            message: "no such file".to_owned(),
            permanent: true,
        });
    }),
];

fn condemn(sim: &mut Sim) {
    sim.event(Event::Gpu(DeviceId(0), GpuVerdict::Reported(Xid(Some(95)))));
}

type Live = fn(&mut Life);

/// States of a seat: name in the table, and the calls that reach it.
const LIFE_STATES: [(&str, Live); 12] = [
    ("Vacant", |_| {}),
    ("Spawning", spawn),
    ("Handshaking", shake_hands),
    ("Loading", load),
    ("Loading (a standby)", load_standby),
    ("StandingBy", |life| {
        load_standby(life);
        handle(life, ChildEvent::Ready);
    }),
    ("Serving", serve),
    ("Killing (asked)", |life| {
        serve(life);
        life.dismiss(Duration::ZERO);
    }),
    ("Killing (for cause)", |life| {
        serve(life);
        life.kill(Duration::ZERO, DeathCause::LinkStalled);
    }),
    ("Reaping (fault reported)", |life| {
        serve(life);
        handle(life, ChildEvent::Fault(device_fault()));
    }),
    ("Reaping (exited)", |life| {
        serve(life);
        handle(life, ChildEvent::Exited(Exit::Code(72)));
    }),
    ("Unreapable", |life| {
        serve(life);
        life.kill(Duration::ZERO, DeathCause::LinkStalled);
        life.tick(Deadlines::default().kill);
    }),
];

fn spawn(life: &mut Life) {
    life.spawn(Duration::ZERO, Generation::FIRST, None);
}

fn shake_hands(life: &mut Life) {
    spawn(life);
    handle(life, ChildEvent::Spawned { pid: PID });
}

fn load(life: &mut Life) {
    shake_hands(life);
    handle(life, hello());
}

fn load_standby(life: &mut Life) {
    life.assign(Role::Standby);
    load(life);
}

fn serve(life: &mut Life) {
    load(life);
    handle(life, ChildEvent::Ready);
}

fn handle(life: &mut Life, event: ChildEvent) {
    life.handle(Duration::ZERO, event)
        .expect("an event that the state accepts");
}

/// Call of the worker on a seat.
type Order = fn(&mut Life) -> Vec<ChildAction>;

const ORDERS: [(&str, Order); 5] = [
    ("tick", |life| life.tick(SOON)),
    ("promote", |life| life.promote(SOON)),
    ("dismiss", |life| life.dismiss(SOON)),
    ("kill", |life| life.kill(SOON, DeathCause::LinkStalled)),
    ("end at once", |life| life.end_at_once(SOON)),
];

#[test]
fn the_table_of_a_seat_equals_its_golden_file() {
    let mut text = String::from(
        "# state × event → next state: actions. `=`: no change. `stale`: the seat has no child that could\n\
         # have caused the event. Written by tests/transitions.rs.\n",
    );
    for (name, prepare) in LIFE_STATES {
        writeln!(text, "\n{name}").unwrap();
        let mut line = |label: &str, act: &dyn Fn(&mut Life) -> Option<Vec<ChildAction>>| {
            let mut life = Life::new(Duration::ZERO, Role::Active, &Settings::default());
            prepare(&mut life);
            let before = format!("{:?}", life.state());
            let row = match act(&mut life) {
                None => "stale".to_owned(),
                Some(actions) if actions.is_empty() && before == format!("{:?}", life.state()) => {
                    "=".to_owned()
                }
                Some(actions) => {
                    let actions: Vec<_> = actions.iter().map(describe_action).collect();
                    let row = format!("→ {}: {}", life.state().name(), actions.join(", "));
                    row.trim_end_matches([':', ' ']).to_owned()
                }
            };
            writeln!(text, "    {label:<24} {row}").unwrap();
        };
        for (label, order) in ORDERS {
            line(label, &|life| Some(order(life)));
        }
        for (label, event) in every_event(SeatId(0), Generation::FIRST) {
            if let Event::Child { event, .. } = event {
                line(label, &|life| life.handle(SOON, event.clone()));
            }
        }
    }
    assert_golden("life.txt", &text);
}

#[test]
fn the_table_of_a_worker_equals_its_golden_file() {
    let mut text = String::from(
        "# state × event → next state: effects. `=`: no change. Only child events to which the worker\n\
         # reacts; the others are in life.txt. Written by tests/transitions.rs.\n",
    );
    for (name, prepare) in STATES {
        writeln!(text, "\n{name}").unwrap();
        let events = every_event(SeatId(0), reach(prepare).generation());
        for (label, event) in events
            .into_iter()
            .filter(|(_, event)| is_the_workers(event))
        {
            let mut sim = reach(prepare);
            let (before, stale) = (format!("{:?}", sim.worker), sim.worker.stale_events());
            let effects = sim.event(event);
            let is_stale = sim.worker.stale_events() > stale;
            let row = match effects.is_empty() {
                true if is_stale => "stale".to_owned(),
                true if before == format!("{:?}", sim.worker) => "=".to_owned(),
                _ => row(&sim, &effects),
            };
            writeln!(text, "    {label:<24} {row}").unwrap();
        }
    }
    assert_golden("worker.txt", &text);
}

fn is_the_workers(event: &Event) -> bool {
    let Event::Child { event, .. } = event else {
        return true;
    };
    matches!(
        event,
        ChildEvent::Spawned { .. }
            | ChildEvent::SpawnFailed { .. }
            | ChildEvent::SpawnStarved
            | ChildEvent::Ready
            | ChildEvent::Progress
            | ChildEvent::LinkClosed
            | ChildEvent::Exited(_)
    )
}

fn assert_golden(name: &str, table: &str) {
    let path = format!("{GOLDEN}{name}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let mut lines = golden.lines().zip(table.lines());
    let first_difference = lines.find(|(old, new)| old != new);
    assert!(
        golden == table,
        "{name} changed; first at {first_difference:#?}"
    );
}

fn reach(prepare: Prepare) -> Sim {
    let (mut sim, _) = Sim::start();
    prepare(&mut sim);
    sim.now += SOON;
    // A tick records the time, so that recording it again is no change.
    sim.event(Event::Tick);
    sim
}

fn row(sim: &Sim, effects: &[Effect]) -> String {
    let effects: Vec<_> = effects.iter().map(describe).collect();
    let row = format!("→ {}: {}", sim.state(), effects.join(", "));
    row.trim_end_matches([':', ' ']).to_owned()
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Child {
            generation, action, ..
        } => format!("{generation}: {}", describe_action(action)),
        Effect::Failover {
            predecessor,
            successor,
        } => format!("failover from {predecessor} to {successor}"),
        Effect::DeviceOut(device) => format!("device {device} out"),
        Effect::DeviceIn(device) => format!("device {device} in"),
        Effect::RefuseNewWork => "refuse new work".to_owned(),
        Effect::EndRequests(reason) => format!("end requests ({reason:?})"),
        Effect::End { exit, .. } => format!("end {exit}"),
    }
}

fn describe_action(action: &ChildAction) -> String {
    match action {
        ChildAction::Spawn => "spawn".to_owned(),
        ChildAction::Load(Role::Active) => "load".to_owned(),
        ChildAction::Load(Role::Standby) => "load (standby)".to_owned(),
        ChildAction::StandBy => "stand by".to_owned(),
        ChildAction::Promote => "promote".to_owned(),
        ChildAction::Serve => "serve".to_owned(),
        ChildAction::Suspend { .. } => "suspend".to_owned(),
        ChildAction::InvalidateWeights(_) => "invalidate weights".to_owned(),
        ChildAction::Release => "release".to_owned(),
        ChildAction::Vacate => "vacate".to_owned(),
        ChildAction::Dismiss => "dismiss".to_owned(),
        ChildAction::Kill(signal) => format!("kill {signal:?}"),
        ChildAction::Reap(cause) => format!("reap ({})", cause.label()),
    }
}
