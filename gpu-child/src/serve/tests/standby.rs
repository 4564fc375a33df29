//! A standby, until its promotion.

use super::counter::PROMOTED_KV_BYTES;
use super::*;
use worker_orcd_ipc::TraceOrder;

/// Number of trace lines that a promoted child writes.
fn traced_lines(traces: bool) -> usize {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace.jsonl");
    let mut supervisor = Supervisor::start(|_, _| Ok(loaded(Duration::ZERO)));
    supervisor.send(&Command::Load(LoadOrder {
        role: Role::Standby,
        trace: Some(TraceOrder {
            path: path.to_str().expect("a plain path").to_owned(),
            first_values: 1,
        }),
        ..order()
    }));
    supervisor.until(|event| matches!(event, Event::Ready(_)));
    supervisor.send(&Command::Promote { traces });
    supervisor.submit(1, 5, 3);
    assert_eq!(supervisor.collect(1).0.len(), 3);
    let trace = std::fs::read_to_string(path).expect("it was opened");
    trace.lines().count()
}

#[test]
fn a_promoted_child_goes_on_with_a_trace_unless_that_has_stopped() {
    assert_eq!(traced_lines(true), 3);
    assert_eq!(traced_lines(false), 0);
}

/// This report determines the next standby's memory.
#[test]
fn memory_that_is_taken_at_the_promotion_is_told_before_the_next_report_is_due() {
    let mut supervisor = Supervisor::start(|_, _| Ok(loaded(Duration::ZERO)));
    supervisor.send(&Command::Load(LoadOrder {
        role: Role::Standby,
        ..order()
    }));
    supervisor.until(|event| matches!(event, Event::Ready(_)));
    supervisor.send(&Command::Promote { traces: false });
    // Far fewer steps than until the next memory report.
    for _ in 0..10 {
        let heartbeat = supervisor.until(|event| matches!(event, Event::Heartbeat(_)));
        let Event::Heartbeat(heartbeat) = heartbeat else {
            panic!("a heartbeat");
        };
        if heartbeat.memory.kv_capacity_bytes == PROMOTED_KV_BYTES {
            return;
        }
    }
    panic!("it was not told");
}
