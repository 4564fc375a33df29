//! Overdue children.

use super::*;
use crate::record::NewRequest;
use crate::scene::Scene;
use crate::testing::{Journal, class, read, request, step, text_of};
use std::num::NonZeroU8;
use worker_orcd_ipc::{Command, FinishReason, TokenId};
use worker_orcd_lifecycle::DeathCause;

const ONE: SeatId = SeatId(0);
const TWO: SeatId = SeatId(2);

/// Journal with a serving child on each device, of these classes.
fn journal(kinds: [&str; 2], slots: usize) -> Journal {
    let mut journal = Journal::with_devices(16, NonZeroU8::new(2).unwrap());
    for (seat, kind) in [ONE, TWO].into_iter().zip(kinds) {
        journal.serve_by(seat, class(kind), slots);
    }
    journal
}

fn draw(journal: &mut Journal, seat: SeatId, id: RequestId, index: u32) {
    let report = step(&[(id, index, 0)], &[]);
    journal.requests.step(seat, &report, journal.now).unwrap();
}

fn let_go(journal: &mut Journal, seat: SeatId, id: RequestId) {
    let report = step(&[], &[(id, FinishReason::Cancelled)]);
    journal.requests.step(seat, &report, journal.now).unwrap();
}

fn die(journal: &mut Journal, seat: SeatId) {
    journal.requests.suspend(seat);
    let (cause, now) = (DeathCause::Signalled(11), journal.now);
    journal
        .requests
        .reaped(seat, &cause, &Scene::default(), now);
}

fn submitted(commands: &[Command]) -> Vec<RequestId> {
    let id = |command: &Command| match command {
        Command::Submit(submission) => Some(submission.request),
        _ => None,
    };
    commands.iter().filter_map(id).collect()
}

/// Submits requests, each with one token from the first child.
fn streams_of_the_first(journal: &mut Journal, count: u32) -> Vec<RequestId> {
    let new = |number: u32| NewRequest {
        prompt: vec![TokenId(0); 1 + number as usize],
        ..request(&number.to_string())
    };
    let ids: Vec<_> = (0..count).map(|it| journal.submit(new(it)).0).collect();
    assert_eq!(submitted(&journal.commands_of(ONE)), ids);
    ids.iter().for_each(|id| draw(journal, ONE, *id, 0));
    ids
}

/// Journal with streams on the first child. The second child serves later.
fn with_streams(kinds: [&str; 2], streams: u32, room: usize) -> (Journal, Vec<RequestId>) {
    let mut journal = Journal::with_devices(16, NonZeroU8::new(2).unwrap());
    journal.serve_by(ONE, class(kinds[0]), 8);
    let ids = streams_of_the_first(&mut journal, streams);
    journal.serve_by(TWO, class(kinds[1]), room);
    (journal, ids)
}

#[test]
fn streams_of_a_child_that_is_overdue_go_on_elsewhere_before_it_dies() {
    let mut journal = journal(["a", "a"], 8);
    let (id, mut stream) = journal.submit(request("a"));
    assert_eq!(submitted(&journal.commands_of(ONE)), [id]);
    draw(&mut journal, ONE, id, 0);
    assert_eq!(journal.requests.set_overdue(ONE), 1);
    assert_eq!(submitted(&journal.commands_of(TWO)), [id]);
    draw(&mut journal, TWO, id, 1);
    die(&mut journal, ONE);
    assert_eq!(
        submitted(&journal.commands_of(TWO)),
        [],
        "no second submission"
    );
    draw(&mut journal, TWO, id, 2);
    assert_eq!(text_of(&read(&mut stream).0), "aaa");
    assert_eq!(journal.requests.totals().recoveries, 1);
}

#[test]
fn what_an_overdue_child_says_of_those_who_left_is_not_believed() {
    let (mut journal, ids) = with_streams(["a", "a"], 1, 8);
    journal.requests.set_overdue(ONE);
    let cancels = journal.commands_of(ONE);
    assert!(matches!(&cancels[..], [Command::Cancel { request }] if *request == ids[0]));
    draw(&mut journal, ONE, ids[0], 1);
    assert!(journal.requests.trust(ONE));
    draw(&mut journal, ONE, ids[0], 2);
    draw(&mut journal, TWO, ids[0], 1);
    let_go(&mut journal, ONE, ids[0]);
    assert!(!journal.requests.trust(ONE), "the child is trusted already");
}

#[test]
fn a_child_gets_nothing_while_it_is_doubted_and_then_no_request_that_it_still_has() {
    let (mut journal, ids) = with_streams(["a", "a"], 1, 8);
    journal.requests.set_overdue(ONE);
    journal.commands_of(ONE);
    let (other, _stream) = journal.submit(request("b"));
    assert_eq!(submitted(&journal.commands_of(TWO)), [ids[0], other]);
    journal.requests.trust(ONE);
    draw(&mut journal, TWO, ids[0], 1);
    die(&mut journal, TWO);
    assert_eq!(submitted(&journal.commands_of(ONE)), [other]);
    let_go(&mut journal, ONE, ids[0]);
    assert_eq!(submitted(&journal.commands_of(ONE)), [ids[0]]);
}

#[test]
fn who_finds_no_room_elsewhere_waits_for_the_overdue_child_or_its_death() {
    let (mut journal, ids) = with_streams(["a", "a"], 3, 2);
    assert_eq!(journal.requests.set_overdue(ONE), 2);
    assert_eq!(submitted(&journal.commands_of(TWO)), ids[..2]);
    journal.requests.trust(ONE);
    draw(&mut journal, ONE, ids[2], 1);
    die(&mut journal, ONE);
    assert_eq!(submitted(&journal.commands_of(TWO)), ids[2..]);
}

#[test]
fn without_another_child_of_its_kin_nobody_is_doubted() {
    let (mut journal, _) = with_streams(["a", "b"], 1, 8);
    assert_eq!(journal.requests.set_overdue(ONE), 0);
    let (id, _stream) = journal.submit(request("b"));
    let commands = journal.commands_of(ONE);
    let taken = [submitted(&commands), submitted(&journal.commands_of(TWO))];
    assert_eq!(taken.concat(), [id], "both children accept requests");
    assert!(!journal.requests.trust(ONE));
    assert_eq!(journal.requests.totals().overdue_children, 0);
}

/// The death of an overdue child counts for the requests that left it. A request that a death has met stays with
/// its overdue child until the next death.
#[test]
fn a_death_counts_for_those_who_left_in_doubt_and_not_for_those_who_left_one_that_went_on() {
    for goes_on in [false, true] {
        let mut journal = journal(["a", "a"], 8);
        let (id, _stream) = journal.submit(request("a"));
        for seat in [ONE, TWO] {
            let is_clean = goes_on || seat == ONE;
            journal.commands_of(seat);
            assert_eq!(journal.requests.set_overdue(seat), usize::from(is_clean));
            if goes_on {
                journal.requests.trust(seat);
                let_go(&mut journal, seat, id);
            }
            die(&mut journal, seat);
            journal.serve_by(seat, class("a"), 8);
        }
        assert_eq!(journal.requests.is_suspect(id), !goes_on, "{goes_on}");
    }
}
