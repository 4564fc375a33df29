//! Sealed KV cache pages: which the next child adopts, and which it does not.

use crate::scene::Scene;
use crate::stream::RequestStream;
use crate::testing::{Journal, request, step};
use crate::violation::Violation;
use std::num::NonZeroU8;
use worker_orcd_ipc::{
    Command, FinishReason, Generation, KvSource, MAX_PAGE_GROUPS, RequestId, SealedPage,
    SealedPages, Sealing, StepReport,
};
use worker_orcd_lifecycle::{DeathCause, SeatId};

const FIRST: SeatId = SeatId(0);
const SUCCESSOR: SeatId = SeatId(1);
const CHILD: Generation = Generation(1);

fn page(page: u32) -> SealedPage {
    SealedPage {
        page,
        tokens: 32,
        checksum: u128::from(page),
    }
}

fn kv_of(child: Generation) -> KvSource {
    KvSource { child, bytes: 0 }
}

fn sealing(request: RequestId, first: u32, pages: &[u32]) -> StepReport {
    StepReport {
        sealed: vec![Sealing {
            request,
            first,
            pages: pages.iter().copied().map(page).collect(),
        }],
        ..step(&[], &[])
    }
}

/// Journal with an active child and a standby that may adopt its pages.
fn with_standby() -> Journal {
    let mut journal = Journal::serving();
    journal.requests.loads(FIRST, CHILD, None);
    journal
        .requests
        .loads(SUCCESSOR, Generation(2), Some(kv_of(CHILD)));
    journal
}

fn report(journal: &mut Journal, report: &StepReport) -> Result<(), Violation> {
    journal.requests.step(FIRST, report, journal.now)
}

/// Submits a request with tokens for several pages, and seals two of them.
fn seal_two_pages(journal: &mut Journal) -> (RequestId, RequestStream) {
    let (id, stream) = journal.submit(request("a"));
    let drawn: Vec<_> = (0..6).map(|index| (id, index, 0)).collect();
    report(journal, &step(&drawn, &[])).unwrap();
    report(journal, &sealing(id, 0, &[1, 2])).unwrap();
    (id, stream)
}

fn succeed(journal: &mut Journal) {
    journal.requests.suspend(FIRST);
    journal.serve(SUCCESSOR);
    journal.requests.release(FIRST);
}

fn reaped(journal: &mut Journal) {
    let (cause, now) = (DeathCause::Signalled(11), journal.now);
    journal
        .requests
        .reaped(FIRST, &cause, &Scene::default(), now);
}

/// Pages in `CopyAhead` commands to the successor.
fn copied_ahead(journal: &mut Journal) -> Vec<Vec<u32>> {
    let commands = journal.commands_of(SUCCESSOR).into_iter();
    commands
        .map(|command| match command {
            Command::CopyAhead { pages } => pages.iter().map(|it| it.page).collect(),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Pages of each submission to the successor, `None` for a `ReleaseKv`.
fn given(journal: &mut Journal) -> Vec<Option<Vec<u32>>> {
    let commands = journal.commands_of(SUCCESSOR).into_iter();
    let pages = |sealed: SealedPages| {
        assert_eq!(sealed.child, CHILD);
        sealed.pages.iter().map(|it| it.page).collect()
    };
    commands
        .map(|command| match command {
            Command::Submit(submission) => Some(submission.sealed.map_or_else(Vec::new, pages)),
            Command::ReleaseKv { .. } => None,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn the_next_child_gets_the_pages_with_the_request_and_is_then_told_to_let_go() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    let (waits, _other) = journal.submit(request("b"));
    // Two prompt tokens and two generated ones: four pages.
    report(&mut journal, &step(&[(id, 0, 0), (id, 1, 0)], &[])).unwrap();
    report(&mut journal, &sealing(id, 0, &[7, 8])).unwrap();
    report(&mut journal, &sealing(id, 1, &[9, 5])).unwrap();
    report(&mut journal, &sealing(waits, 0, &[3])).unwrap();
    succeed(&mut journal);
    assert_eq!(
        given(&mut journal),
        [Some(vec![7, 9, 5]), Some(vec![3]), None]
    );
    reaped(&mut journal);
    assert_eq!(given(&mut journal), [], "the KV cache is released already");
}

#[test]
fn a_list_that_cannot_be_is_dropped() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    // Limit: two prompt tokens, each in one page per group of layers.
    let too_many = [1; 2 * MAX_PAGE_GROUPS + 1];
    for (first, pages) in [(1, &[4][..]), (0, &too_many)] {
        report(&mut journal, &sealing(id, 0, &[7])).unwrap();
        report(
            &mut journal,
            &sealing(id, first + u32::from(first > 0), pages),
        )
        .unwrap();
    }
    succeed(&mut journal);
    assert_eq!(given(&mut journal), [None, Some(vec![])]);
}

#[test]
fn each_token_may_lie_in_a_page_of_each_group_of_layers() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    let pages = [1; 2 * MAX_PAGE_GROUPS];
    report(&mut journal, &sealing(id, 0, &pages)).unwrap();
    succeed(&mut journal);
    assert_eq!(given(&mut journal)[0], Some(pages.to_vec()));
}

#[test]
fn pages_of_a_request_that_is_not_there_are_a_violation() {
    let mut journal = with_standby();
    let request = RequestId(99);
    let what = "pages";
    assert_eq!(
        report(&mut journal, &sealing(request, 0, &[1])),
        Err(Violation::UnknownRequest { what, request })
    );
}

#[test]
fn pages_of_a_request_that_was_cancelled_are_nobody_s() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    journal.requests.cancel(id, journal.now);
    report(&mut journal, &sealing(id, 0, &[1])).unwrap();
    let left = step(&[], &[(id, FinishReason::Cancelled)]);
    report(&mut journal, &left).unwrap();
    assert!(report(&mut journal, &sealing(id, 0, &[1])).is_err());
}

#[test]
fn what_may_be_wrong_is_given_to_nobody() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    journal.requests.distrust(SUCCESSOR);
    journal.requests.distrust(FIRST);
    succeed(&mut journal);
    assert_eq!(given(&mut journal), [None, Some(vec![])]);
}

#[test]
fn pages_that_a_request_has_given_up_are_given_to_nobody() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    report(&mut journal, &sealing(id, 0, &[])).unwrap();
    succeed(&mut journal);
    assert_eq!(given(&mut journal), [None, Some(vec![])]);
}

#[test]
fn pages_of_another_child_than_the_one_that_may_be_adopted_from_are_not_given() {
    let mut journal = with_standby();
    journal
        .requests
        .loads(SUCCESSOR, Generation(2), Some(kv_of(Generation(7))));
    let (id, _stream) = journal.submit(request("a"));
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    succeed(&mut journal);
    assert_eq!(given(&mut journal), [None, Some(vec![])]);
}

#[test]
fn a_suspect_computes_everything_itself() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    journal.requests.suspend(FIRST);
    reaped(&mut journal);
    // A second death at the same place makes the request a suspect.
    journal.serve(FIRST);
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    succeed(&mut journal);
    reaped(&mut journal);
    assert!(journal.requests.is_suspect(id));
    assert_eq!(given(&mut journal), [Some(vec![]), None]);
}

#[test]
fn the_kv_cache_is_kept_for_those_who_wait_for_the_reaping() {
    let mut journal = with_standby();
    let (id, _stream) = journal.submit(request("a"));
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    journal.requests.suspend(FIRST);
    journal.serve(SUCCESSOR);
    assert_eq!(given(&mut journal), [], "no submission and no release yet");
    reaped(&mut journal);
    assert_eq!(given(&mut journal), [Some(vec![7]), None]);
}

/// The last page of a request is never sent, because it may be sealed again.
#[test]
fn a_child_that_stands_by_is_told_of_each_whole_page_once() {
    let mut journal = with_standby();
    let (id, _stream) = seal_two_pages(&mut journal);
    assert!(copied_ahead(&mut journal).is_empty(), "the standby loads");
    journal.requests.copies_ahead(SUCCESSOR);
    assert_eq!(copied_ahead(&mut journal), [[1]], "pages sealed earlier");
    for (first, pages, expected) in [
        (1, &[2][..], &[][..]),
        (2, &[3], &[2]),
        (2, &[3, 4, 5], &[3, 4]),
        (5, &[6], &[5]),
        (0, &[], &[]),
        (0, &[7, 8], &[7]),
    ] {
        report(&mut journal, &sealing(id, first, pages)).unwrap();
        assert_eq!(copied_ahead(&mut journal).concat(), expected);
    }
}

#[test]
fn nobody_is_told_of_pages_but_a_child_that_stands_by_behind_theirs() {
    for (child, serves) in [(Generation(7), false), (CHILD, true)] {
        let mut journal = with_standby();
        journal
            .requests
            .loads(SUCCESSOR, Generation(2), Some(kv_of(child)));
        let (id, _stream) = seal_two_pages(&mut journal);
        journal.requests.copies_ahead(SUCCESSOR);
        if serves {
            journal.serve(SUCCESSOR);
        }
        report(&mut journal, &sealing(id, 2, &[3, 4])).unwrap();
        let commands = journal.commands_of(SUCCESSOR);
        let is_told = |command: &Command| matches!(command, Command::CopyAhead { .. });
        assert!(!commands.iter().any(is_told), "{commands:?}");
    }
}

/// A child treats pages before its `Load` as a protocol violation and dies.
#[test]
fn the_child_behind_one_that_stood_by_is_told_of_no_pages_before_it_stands_by() {
    let mut journal = with_standby();
    let (id, _stream) = seal_two_pages(&mut journal);
    journal.requests.copies_ahead(SUCCESSOR);
    assert_eq!(copied_ahead(&mut journal), [[1]]);
    journal.requests.suspend(SUCCESSOR);
    report(&mut journal, &sealing(id, 2, &[3])).unwrap();
    assert!(
        copied_ahead(&mut journal).is_empty(),
        "no Load for this child yet"
    );
    let source = Some(kv_of(CHILD));
    journal.requests.loads(SUCCESSOR, Generation(3), source);
    report(&mut journal, &sealing(id, 3, &[4])).unwrap();
    assert!(copied_ahead(&mut journal).is_empty(), "the standby loads");
    journal.requests.copies_ahead(SUCCESSOR);
    assert_eq!(copied_ahead(&mut journal), [[1, 2, 3]]);
}

/// Seats of the first children of three devices, each with access to the others' KV caches.
const SIBLINGS: [SeatId; 3] = [SeatId(0), SeatId(2), SeatId(4)];

fn with_siblings() -> Journal {
    let devices = NonZeroU8::new(3).expect("three");
    let mut journal = Journal::with_devices(4, devices);
    for (number, seat) in (1..).zip(SIBLINGS) {
        journal.requests.loads(seat, Generation(number), None);
        journal.serve(seat);
    }
    for seat in SIBLINGS {
        for number in (1..).map(Generation).take(SIBLINGS.len()) {
            journal.requests.attached(seat, number);
        }
    }
    journal
}

fn released_by(journal: &mut Journal, seat: SeatId) -> Vec<Generation> {
    let commands = journal.commands_of(seat).into_iter();
    let released = commands.filter_map(|command| match command {
        Command::ReleaseKv { child } => Some(child),
        _ => None,
    });
    released.collect()
}

#[test]
fn a_sibling_gets_the_pages_of_a_dead_child_and_everybody_lets_go_of_its_kv_cache() {
    let mut journal = with_siblings();
    let (id, _stream) = journal.submit(request("a"));
    let at = SIBLINGS.map(|seat| !journal.commands_of(seat).is_empty());
    assert_eq!(at, [true, false, false]);
    report(&mut journal, &step(&[(id, 0, 0)], &[])).unwrap();
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    assert!(
        released_by(&mut journal, SIBLINGS[1]).is_empty(),
        "the child is alive"
    );

    journal.requests.suspend(FIRST);
    journal.requests.release(FIRST);
    let submitted = journal.commands_of(SIBLINGS[1]).into_iter();
    let mut pages = Vec::new();
    let mut released = Vec::new();
    for command in submitted {
        match command {
            Command::Submit(submission) => {
                assert!(released.is_empty(), "released before the submission");
                let sealed = submission.sealed.expect("pages");
                assert_eq!(sealed.child, CHILD);
                pages.extend(sealed.pages.iter().map(|it| it.page));
            }
            Command::ReleaseKv { child } => released.push(child),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pages, [7]);
    assert_eq!(released, [CHILD]);
    assert_eq!(released_by(&mut journal, SIBLINGS[2]), [CHILD]);
    reaped(&mut journal);
    assert!(released_by(&mut journal, SIBLINGS[1]).is_empty(), "once");
}

#[test]
fn a_child_that_was_not_given_a_kv_cache_gets_no_pages_of_it() {
    let devices = NonZeroU8::new(2).expect("two");
    let mut journal = Journal::with_devices(4, devices);
    for (number, seat) in (1..).zip(&SIBLINGS[..2]) {
        journal.requests.loads(*seat, Generation(number), None);
        journal.serve(*seat);
    }
    let (id, _stream) = journal.submit(request("a"));
    report(&mut journal, &step(&[(id, 0, 0)], &[])).unwrap();
    report(&mut journal, &sealing(id, 0, &[7])).unwrap();
    journal.requests.suspend(FIRST);
    journal.requests.release(FIRST);
    let commands = journal.commands_of(SIBLINGS[1]);
    let [Command::Submit(submission)] = &commands[..] else {
        panic!("{commands:?}");
    };
    assert_eq!(submission.sealed, None);
}
