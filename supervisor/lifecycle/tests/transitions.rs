//! Two transition tables as readable files: of one life, and of a worker of one device.
//!
//! After a deliberate change, `UPDATE_GOLDEN=1 cargo test -p worker-orcd-lifecycle` rewrites them,
//! and the diff is what a reviewer judges.

#[allow(dead_code)]
mod common;

use common::{PID, STANDBY, Sim, device_fault, every_event, hello};
use std::fmt::Write as _;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};
use worker_orcd_lifecycle::{
    ChildEvent, Deadlines, DeathCause, Deed, DeviceId, Effect, Event, Exit, Life, SeatId, Settings,
    Testimony, Xid,
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/");

/// Some time, too little for any deadline.
const SOON: Duration = Duration::from_millis(10);

type Prepare = fn(&mut Sim);

/// Each state as it is reached first, under the name it has in the table.
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
    ("Reaping (said a fault)", |sim| {
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
    sim.event(Event::Gpu(DeviceId(0), Testimony::Reported(Xid(Some(95)))));
}

type Live = fn(&mut Life);

/// Each state of a life as it is reached first.
const LIFE_STATES: [(&str, Live); 12] = [
    ("Vacant", |_| {}),
    ("Spawning", spawn),
    ("Handshaking", shake_hands),
    ("Loading", load),
    ("Loading (a standby)", load_standby),
    ("StandingBy", |life| {
        load_standby(life);
        tell(life, ChildEvent::Ready);
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
    ("Reaping (said a fault)", |life| {
        serve(life);
        tell(life, ChildEvent::Fault(device_fault()));
    }),
    ("Reaping (exited)", |life| {
        serve(life);
        tell(life, ChildEvent::Exited(Exit::Code(72)));
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
    tell(life, ChildEvent::Spawned { pid: PID });
}

fn load(life: &mut Life) {
    shake_hands(life);
    tell(life, hello());
}

fn load_standby(life: &mut Life) {
    life.assign(Role::Standby);
    load(life);
}

fn serve(life: &mut Life) {
    load(life);
    tell(life, ChildEvent::Ready);
}

fn tell(life: &mut Life, event: ChildEvent) {
    life.tell(Duration::ZERO, event).expect("it is its time");
}

/// What the worker may want of it.
type Order = fn(&mut Life) -> Vec<Deed>;

const ORDERS: [(&str, Order); 5] = [
    ("tick", |life| life.tick(SOON)),
    ("promote", |life| life.promote(SOON)),
    ("dismiss", |life| life.dismiss(SOON)),
    ("kill", |life| life.kill(SOON, DeathCause::LinkStalled)),
    ("end at once", |life| life.end_at_once(SOON)),
];

#[test]
fn the_table_of_a_life_is_the_golden_one() {
    let mut text = String::from(
        "# state × event → next state: what is done. `=` means that nothing happens, `stale` that\n\
         # nobody is there whom it could be about. Written by tests/transitions.rs.\n",
    );
    for (name, prepare) in LIFE_STATES {
        writeln!(text, "\n{name}").unwrap();
        let mut line = |label: &str, act: &dyn Fn(&mut Life) -> Option<Vec<Deed>>| {
            let mut life = Life::new(Duration::ZERO, Role::Active, &Settings::default());
            prepare(&mut life);
            let before = format!("{:?}", life.state());
            let row = match act(&mut life) {
                None => "stale".to_owned(),
                Some(deeds) if deeds.is_empty() && before == format!("{:?}", life.state()) => {
                    "=".to_owned()
                }
                Some(deeds) => {
                    let deeds: Vec<_> = deeds.iter().map(describe_deed).collect();
                    let row = format!("→ {}: {}", life.state().name(), deeds.join(", "));
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
                line(label, &|life| life.tell(SOON, event.clone()));
            }
        }
    }
    assert_golden("life.txt", &text);
}

#[test]
fn the_table_of_a_worker_is_the_golden_one() {
    let mut text = String::from(
        "# state × event → next state: effects. `=` means that nothing happens. Of a child only\n\
         # what a worker acts upon; the rest is in life.txt. Written by tests/transitions.rs.\n",
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
    // The worker has heard of the time: what it notes of it is no change.
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
            generation, deed, ..
        } => format!("{generation}: {}", describe_deed(deed)),
        Effect::Succession { of, heir } => format!("{heir} in place of {of}"),
        Effect::DeviceOut(device) => format!("device {device} out"),
        Effect::DeviceIn(device) => format!("device {device} in"),
        Effect::RefuseNewWork => "refuse new work".to_owned(),
        Effect::EndRequests(reason) => format!("end requests ({reason:?})"),
        Effect::End { exit, .. } => format!("end {exit}"),
    }
}

fn describe_deed(deed: &Deed) -> String {
    match deed {
        Deed::Spawn => "spawn".to_owned(),
        Deed::Load(Role::Active) => "load".to_owned(),
        Deed::Load(Role::Standby) => "load (standby)".to_owned(),
        Deed::StandBy => "stand by".to_owned(),
        Deed::Promote => "promote".to_owned(),
        Deed::Serve => "serve".to_owned(),
        Deed::Suspend { .. } => "suspend".to_owned(),
        Deed::DoubtWeights(_) => "doubt weights".to_owned(),
        Deed::Release => "release".to_owned(),
        Deed::Vacate => "vacate".to_owned(),
        Deed::Dismiss => "dismiss".to_owned(),
        Deed::Kill(signal) => format!("kill {signal:?}"),
        Deed::Bury(cause) => format!("bury ({})", cause.label()),
    }
}
