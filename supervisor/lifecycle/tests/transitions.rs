//! The whole transition table as a readable file: every event in every state.
//!
//! After a deliberate change, `UPDATE_GOLDEN=1 cargo test -p worker-orcd-lifecycle` rewrites it,
//! and the diff is what a reviewer judges.

#[allow(dead_code)]
mod common;

use common::{Sim, device_fault, every_event};
use std::fmt::Write as _;
use std::time::Duration;
use worker_orcd_lifecycle::{ChildEvent, Effect, Event, Exit};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/transitions.txt");

type Prepare = fn(&mut Sim);

/// Each state as it is reached first, under the name it has in the table.
const STATES: [(&str, Prepare); 13] = [
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

#[test]
fn the_table_is_the_golden_one() {
    let table = table();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &table).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    let first_difference = golden
        .lines()
        .zip(table.lines())
        .find(|(old, new)| old != new);
    assert!(
        golden == table,
        "the table changed; first at {first_difference:#?}"
    );
}

fn table() -> String {
    let mut text = String::from(
        "# state × event → next state: effects. `=` means that nothing happens.\n\
         # Written by tests/transitions.rs.\n",
    );
    for (name, prepare) in STATES {
        writeln!(text, "\n{name}").unwrap();
        let events = every_event(reach(prepare).generation());
        for (label, event) in events {
            let mut sim = reach(prepare);
            let before = format!("{:?}", sim.machine.state());
            let effects = sim.event(event);
            let unchanged = before == format!("{:?}", sim.machine.state()) && effects.is_empty();
            let row = if unchanged {
                "=".to_owned()
            } else {
                row(&sim, &effects)
            };
            writeln!(text, "    {label:<24} {row}").unwrap();
        }
    }
    text
}

fn reach(prepare: Prepare) -> Sim {
    let (mut sim, _) = Sim::start();
    prepare(&mut sim);
    // Some time passes, too little for any deadline.
    sim.now += Duration::from_millis(10);
    sim
}

fn row(sim: &Sim, effects: &[Effect]) -> String {
    let effects: Vec<_> = effects.iter().map(describe).collect();
    let row = format!("→ {}: {}", sim.state(), effects.join(", "));
    row.trim_end_matches([':', ' ']).to_owned()
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Spawn { generation } => format!("spawn {generation}"),
        Effect::Load { generation } => format!("load {generation}"),
        Effect::Serve { generation } => format!("serve {generation}"),
        Effect::Suspend { generation } => format!("suspend {generation}"),
        Effect::Dismiss { generation } => format!("dismiss {generation}"),
        Effect::Kill { generation, signal } => format!("kill {generation} {signal:?}"),
        Effect::Bury { generation, cause } => format!("bury {generation} ({})", cause.label()),
        Effect::RefuseNewWork => "refuse new work".to_owned(),
        Effect::EndRequests(reason) => format!("end requests ({reason:?})"),
        Effect::End { exit, .. } => format!("end {exit}"),
    }
}
