//! Requests that leave a dying child for one that already serves.

use crate::record::{OnFault, StreamEvent};
use crate::scene::Scene;
use crate::testing::{Journal, read, request, step};
use worker_orcd_lifecycle::{DeathCause, SeatId};

fn crash() -> DeathCause {
    DeathCause::Signalled(11)
}

#[test]
fn what_a_dead_child_had_goes_to_one_that_serves_at_once() {
    let (dead, standby) = (SeatId(0), SeatId(1));
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(request("a"));
    journal.requests.suspend(dead);
    // The standby serves before the dead child is reaped, and takes new requests immediately.
    journal.serve(standby);
    let (new, _other) = journal.submit(request("b"));
    let with = |journal: &Journal, seat| -> Vec<_> {
        let given = journal.requests.in_flight(seat);
        given.map(|record| record.id).collect()
    };
    assert_eq!(
        (with(&journal, dead), with(&journal, standby)),
        (vec![id], vec![new])
    );
    let now = journal.now;
    journal
        .requests
        .reaped(dead, &crash(), &Scene::default(), now);
    assert_eq!(with(&journal, standby), [id, new]);
    assert_eq!(journal.requests.totals().recoveries, 1);
}

#[test]
fn who_leaves_a_dying_child_goes_on_before_its_burial_and_is_judged_there() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(request("a"));
    let with = |journal: &Journal, seat| journal.requests.in_flight(SeatId(seat)).count();
    // A single death at a place makes no suspect, so the request need not wait until the child is reaped.
    for (dead, successor, early) in [(0, 1, 1), (1, 0, 0)] {
        journal.requests.suspend(SeatId(dead));
        journal.serve(SeatId(successor));
        journal.requests.release(SeatId(dead));
        assert_eq!(with(&journal, successor), early, "death in seat {dead}");
        assert_eq!(with(&journal, dead), 1 - early);
        let now = journal.now;
        journal
            .requests
            .reaped(SeatId(dead), &crash(), &Scene::default(), now);
        assert_eq!(with(&journal, successor), 1);
    }
    assert!(journal.requests.is_suspect(id), "both deaths count");
    assert_eq!(journal.requests.totals().recoveries, 2);
}

#[test]
fn who_wants_to_fail_gets_no_token_of_the_next_child() {
    let mut journal = Journal::serving();
    journal.on_fault = OnFault::Fail;
    let (_, mut stream) = journal.submit(request("a"));
    journal.requests.suspend(SeatId(0));
    journal.serve(SeatId(1));
    journal.requests.release(SeatId(0));
    assert_eq!(journal.requests.in_flight(SeatId(1)).count(), 0);
    let now = journal.now;
    journal
        .requests
        .reaped(SeatId(0), &crash(), &Scene::default(), now);
    let events = read(&mut stream).0;
    assert!(matches!(events[..], [StreamEvent::Failed(_)]), "{events:?}");
}

#[test]
fn each_of_two_deaths_that_overlap_is_judged_by_what_the_request_was_then() {
    let mut journal = Journal::serving();
    let (first, successor) = (SeatId(0), SeatId(1));
    let (id, _stream) = journal.submit(request("a"));
    journal.requests.suspend(first);
    journal.serve(successor);
    journal.requests.release(first);
    // The request advances on the successor, which dies before the first child is reaped.
    for index in 0..3 {
        let report = step(&[(id, index, 0)], &[]);
        journal
            .requests
            .step(successor, &report, journal.now)
            .unwrap();
    }
    journal.requests.suspend(successor);
    journal.requests.release(successor);
    let now = journal.now;
    for seat in [successor, first] {
        journal
            .requests
            .reaped(seat, &crash(), &Scene::default(), now);
    }
    assert_eq!(journal.requests.totals().recoveries, 2);
    assert!(
        !journal.requests.is_suspect(id),
        "the deaths were at two places"
    );
}

#[test]
fn a_suspect_runs_alone_with_the_standby_that_took_over() {
    let mut journal = Journal::serving();
    let (first, _stream) = journal.submit(request("a"));
    let (second, _other) = journal.submit(request("b"));
    for dead in [0, 1] {
        let (dead, successor) = (SeatId(dead), SeatId(1 - dead));
        journal.requests.suspend(dead);
        journal.serve(successor);
        let now = journal.now;
        journal
            .requests
            .reaped(dead, &crash(), &Scene::default(), now);
    }
    assert_eq!(journal.requests.on_probation(), 2);
    let given = journal.requests.in_flight(SeatId(0));
    let given: Vec<_> = given.map(|record| record.id).collect();
    assert_eq!(given, [first], "and {second} waits");
}
