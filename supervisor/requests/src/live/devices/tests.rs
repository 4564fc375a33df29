//! Two or three devices: placement of requests while one of them is out of use, drained, or of another class.

use super::*;
use crate::error_code::ErrorCode;
use crate::record::{NewRequest, StreamEvent};
use crate::scene::Scene;
use crate::stream::RequestStream;
use crate::testing::{Journal, SEAT, class, read, request, step};
use std::num::NonZeroU8;
use worker_orcd_ipc::{Command, FinishReason, TokenId};
use worker_orcd_lifecycle::DeathCause;

const ONE: SeatId = SeatId(0);
const TWO: SeatId = SeatId(2);

/// Journal with a serving child on each device, of these classes.
fn journal(kinds: &[&str]) -> Journal {
    let devices = NonZeroU8::new(kinds.len() as u8).unwrap();
    let mut journal = Journal::with_devices(16, devices);
    for (seat, kind) in (0..).step_by(2).map(SeatId).zip(kinds) {
        journal.serve_by(seat, class(kind), 4);
    }
    journal
}

fn given(journal: &mut Journal, seat: SeatId) -> Vec<RequestId> {
    let submitted = |command| match command {
        Command::Submit(submission) => Some(submission.request),
        _ => None,
    };
    let commands = journal.commands_of(seat).into_iter();
    commands.filter_map(submitted).collect()
}

fn draw(journal: &mut Journal, seat: SeatId, id: RequestId, index: u32) {
    let report = step(&[(id, index, 0)], &[]);
    journal.requests.step(seat, &report, journal.now).unwrap();
}

fn die(journal: &mut Journal, seat: SeatId) {
    die_of(journal, seat, &DeathCause::Signalled(9));
}

fn die_of(journal: &mut Journal, seat: SeatId, cause: &DeathCause) {
    let now = journal.now;
    journal.requests.suspend(seat);
    journal.requests.reaped(seat, cause, &Scene::default(), now);
}

fn strand(journal: &mut Journal, device: u8) -> Failure {
    let failure = Failure::new(ErrorCode::WorkerUnhealthy, "it is out");
    let now = journal.now;
    journal.requests.strand(DeviceId(device), &failure, now);
    failure
}

fn events(stream: &mut RequestStream) -> Vec<StreamEvent> {
    read(stream).0
}

#[test]
fn a_stream_goes_on_at_once_with_a_child_of_its_kin_and_with_no_other() {
    for (kinds, goes_on) in [(["a", "a"], true), (["a", "b"], false)] {
        let mut journal = journal(&kinds);
        let (id, _stream) = journal.submit(request("a"));
        assert_eq!(given(&mut journal, ONE), [id]);
        draw(&mut journal, ONE, id, 0);
        die(&mut journal, ONE);
        let expected = if goes_on { vec![id] } else { vec![] };
        assert_eq!(given(&mut journal, TWO), expected);
        journal.serve_by(SeatId(1), class("a"), 4);
        let later = given(&mut journal, SeatId(1));
        assert_eq!(
            later.len() + expected.len(),
            1,
            "the request waits for its determinism class"
        );
    }
}

#[test]
fn who_has_been_told_nothing_goes_anywhere() {
    let mut journal = journal(&["a", "b"]);
    let (id, _stream) = journal.submit(request("a"));
    assert_eq!(given(&mut journal, ONE), [id]);
    die(&mut journal, ONE);
    assert_eq!(given(&mut journal, TWO), [id]);
}

#[test]
fn a_device_that_is_out_ends_only_streams_that_no_other_can_go_on_with() {
    let mut journal = journal(&["a", "b", "a"]);
    let third = SeatId(4);
    // The prompts have no common prefix, so each request goes to a different device.
    let new = |seat: SeatId| NewRequest {
        prompt: vec![TokenId(u32::from(seat.0)); 300],
        ..request(&seat.to_string())
    };
    let mut streams = [ONE, TWO, third].map(|seat| {
        let (id, stream) = journal.submit(new(seat));
        assert_eq!(given(&mut journal, seat), [id]);
        draw(&mut journal, seat, id, 0);
        (id, stream)
    });
    streams
        .iter_mut()
        .for_each(|(_, stream)| drop(events(stream)));
    for (seat, device) in [(ONE, 0), (TWO, 1)] {
        strand(&mut journal, device);
        die(&mut journal, seat);
    }
    let [(one, first), (_, second), (three, last)] = &mut streams;
    assert_eq!(given(&mut journal, third), [*one]);
    let failed = events(second).pop();
    let Some(StreamEvent::Failed(failure)) = failed else {
        panic!("{failed:?}");
    };
    assert!(failure.retriable);
    draw(&mut journal, third, *one, 1);
    draw(&mut journal, third, *three, 1);
    assert_eq!((events(first).len(), events(last).len()), (1, 1));
}

#[test]
fn a_stream_whose_child_is_not_buried_yet_ends_when_it_is() {
    let mut journal = journal(&["a", "b"]);
    let (id, mut stream) = journal.submit(request("a"));
    draw(&mut journal, ONE, id, 0);
    let failure = strand(&mut journal, 0);
    draw(&mut journal, ONE, id, 1);
    assert_eq!(events(&mut stream).len(), 2, "late reports count");
    die(&mut journal, ONE);
    assert_eq!(events(&mut stream), [StreamEvent::Failed(failure)]);
}

#[test]
fn a_stream_waits_for_a_device_that_comes_back() {
    let mut journal = journal(&["a", "b", "a"]);
    let (id, _stream) = journal.submit(request("a"));
    draw(&mut journal, ONE, id, 0);
    die(&mut journal, SeatId(4));
    die(&mut journal, ONE);
    strand(&mut journal, 0);
    assert_eq!(
        journal.requests.len(),
        1,
        "the third device will have a child"
    );
    journal.requests.readmit(DeviceId(0));
    journal.serve_by(SeatId(1), class("a"), 4);
    assert_eq!(given(&mut journal, SeatId(1)), [id]);
}

#[test]
fn a_drained_child_gives_everything_back_and_it_goes_on_elsewhere() {
    let mut journal = journal(&["a", "a"]);
    let (id, _stream) = journal.submit(request("a"));
    given(&mut journal, ONE);
    draw(&mut journal, ONE, id, 0);
    journal.requests.withdraw(ONE);
    assert!(!journal.requests.is_withdrawn(ONE));
    let (other, _other) = journal.submit(request("b"));
    assert_eq!(
        given(&mut journal, TWO),
        [other],
        "a withdrawn child gets no submission"
    );
    let [Command::Cancel { request }] = journal.commands_of(ONE)[..] else {
        panic!("expected a call-back");
    };
    let gone = step(&[(request, 1, 0)], &[(request, FinishReason::Cancelled)]);
    journal.requests.step(ONE, &gone, journal.now).unwrap();
    assert!(journal.requests.is_withdrawn(ONE));
    let commands = journal.commands_of(TWO);
    let [Command::Submit(submission)] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!((submission.request, submission.generated.len()), (id, 2));
}

/// Submits a request and makes it a suspect by two deaths at one place.
fn suspect(journal: &mut Journal) -> RequestId {
    let (id, _) = journal.submit(request("suspect"));
    for _ in 0..2 {
        let mut seats = [ONE, TWO].into_iter();
        let seat = seats.find(|seat| journal.requests.in_flight(*seat).any(|it| it.id == id));
        let seat = seat.expect("a seat");
        die_of(journal, seat, &DeathCause::Signalled(11));
        if seat == ONE {
            journal.serve_by(seat, class("a"), 4);
        }
    }
    assert!(journal.requests.is_suspect(id));
    id
}

#[test]
fn with_one_device_left_for_good_a_suspect_has_its_turn_there() {
    let mut journal = journal(&["a", "a"]);
    let id = suspect(&mut journal);
    let (other, _other) = journal.submit(request("other"));
    assert_eq!(given(&mut journal, ONE), [other], "for other requests");
    strand(&mut journal, 1);
    let [Command::Cancel { request }] = journal.commands_of(ONE)[..] else {
        panic!("expected a call-back of the other request");
    };
    assert_eq!(request, other);
    let gone = step(&[], &[(other, FinishReason::Cancelled)]);
    journal.requests.step(ONE, &gone, journal.now).unwrap();
    assert_eq!(given(&mut journal, ONE), [id]);
}

#[test]
fn pages_of_another_kin_are_not_adopted() {
    use worker_orcd_ipc::{Generation, KvSource, SealedPage, Sealing, StepReport};
    for (kind, adopted) in [("a", true), ("b", false)] {
        let mut journal = journal(&["a", "b"]);
        journal.requests.loads(ONE, Generation(1), None);
        let (id, _stream) = journal.submit(request("a"));
        given(&mut journal, ONE);
        let page = SealedPage {
            page: 0,
            tokens: 2,
            checksum: 7,
        };
        let sealed = StepReport {
            sealed: vec![Sealing {
                request: id,
                first: 0,
                pages: vec![page],
            }],
            ..step(&[], &[])
        };
        journal.requests.step(ONE, &sealed, journal.now).unwrap();
        die(&mut journal, TWO);
        die(&mut journal, ONE);
        let source = KvSource {
            child: Generation(1),
            bytes: 1,
        };
        journal
            .requests
            .loads(SeatId(1), Generation(2), Some(source));
        journal.serve_by(SeatId(1), class(kind), 4);
        let commands = journal.commands_of(SeatId(1));
        let Some(Command::Submit(submission)) = commands.first() else {
            panic!("{commands:?}");
        };
        assert_eq!(submission.sealed.is_some(), adopted, "{kind}");
    }
}

#[test]
fn what_is_called_back_still_counts_and_nothing_is_given_out_any_more() {
    let mut journal = Journal::serving();
    let (id, _reader) = journal.submit(request("a"));
    journal.commands();
    journal.requests.recall();
    let commands = journal.commands();
    assert!(matches!(&commands[..], [Command::Cancel { request }] if *request == id));
    let (_, _other) = journal.submit(request("b"));
    assert!(
        !journal.requests.is_withdrawn(SEAT),
        "the child has the first request"
    );
    let last = step(&[(id, 0, 0)], &[]);
    journal.requests.step(SEAT, &last, journal.now).unwrap();
    let gone = step(&[], &[(id, FinishReason::Cancelled)]);
    journal.requests.step(SEAT, &gone, journal.now).unwrap();
    assert!(journal.commands().is_empty(), "no further submission");
    assert!(journal.requests.is_withdrawn(SEAT));
    assert_eq!(journal.requests.len(), 2, "both continue elsewhere");
}
