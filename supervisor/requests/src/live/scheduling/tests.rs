//! Rebalancing between children.

use super::*;
use crate::record::NewRequest;
use crate::scene::Scene;
use crate::testing::{Journal, class, request, step};
use std::num::NonZeroU8;
use worker_orcd_ipc::{Began, Command, FinishReason, StepReport, TokenId};
use worker_orcd_lifecycle::DeathCause;

const ONE: SeatId = SeatId(0);
const TWO: SeatId = SeatId(2);

fn journal() -> Journal {
    let mut journal = Journal::with_devices(64, NonZeroU8::new(2).unwrap());
    journal.serve_by(ONE, class("a"), 2);
    journal
}

/// Request with `tokens` tokens that it shares with no other.
fn long(job: u32, tokens: usize) -> NewRequest {
    NewRequest {
        prompt: vec![TokenId(100 + job); tokens],
        ..request(&job.to_string())
    }
}

fn called_back(journal: &mut Journal) -> Vec<RequestId> {
    let cancelled = |command| match command {
        Command::Cancel { request } => Some(request),
        _ => None,
    };
    let commands = journal.commands_of(ONE).into_iter();
    commands.filter_map(cancelled).collect()
}

fn submitted(journal: &mut Journal, seat: SeatId) -> Vec<RequestId> {
    let submitted = |command| match command {
        Command::Submit(it) => Some(it.request),
        _ => None,
    };
    let commands = journal.commands_of(seat).into_iter();
    commands.filter_map(submitted).collect()
}

fn apply(journal: &mut Journal, seat: SeatId, report: &StepReport) {
    journal.requests.step(seat, report, journal.now).unwrap();
}

fn begin(journal: &mut Journal, ids: &[RequestId]) {
    let began = |id: &RequestId| Began {
        request: *id,
        cached_tokens: 0,
    };
    let report = StepReport {
        began: ids.iter().map(began).collect(),
        ..step(&[], &[])
    };
    apply(journal, ONE, &report);
}

#[test]
fn a_child_that_has_room_gets_the_youngest_that_another_has_not_begun_one_at_a_time() {
    let mut journal = journal();
    let ids = [1, 2, 3, 4, 5].map(|job| journal.submit(long(job, 1000)).0);
    assert_eq!(submitted(&mut journal, ONE), ids);
    begin(&mut journal, &ids[..2]);
    journal.serve_by(TWO, class("a"), 2);
    assert_eq!(called_back(&mut journal), [ids[4]]);
    assert_eq!(submitted(&mut journal, TWO), []);
    apply(&mut journal, ONE, &step(&[(ids[0], 0, 0)], &[]));
    assert_eq!(called_back(&mut journal), [], "one request is in transit");
    apply(
        &mut journal,
        ONE,
        &step(&[], &[(ids[4], FinishReason::Cancelled)]),
    );
    assert_eq!(submitted(&mut journal, TWO), [ids[4]]);
    assert_eq!(called_back(&mut journal), [ids[3]], "there is room for two");
    apply(
        &mut journal,
        ONE,
        &step(&[], &[(ids[3], FinishReason::Cancelled)]),
    );
    assert_eq!(submitted(&mut journal, TWO), [ids[3]]);
    assert_eq!(called_back(&mut journal), []);
}

#[test]
fn what_a_child_has_begun_stays_with_it() {
    let mut journal = journal();
    let ids = [1, 2].map(|job| journal.submit(long(job, 9000)).0);
    submitted(&mut journal, ONE);
    begin(&mut journal, &ids);
    journal.serve_by(TWO, class("a"), 2);
    assert_eq!(called_back(&mut journal), []);
}

#[test]
fn a_conversation_goes_where_its_beginning_is_until_that_child_is_reaped() {
    let mut journal = journal();
    journal.serve_by(TWO, class("a"), 2);
    let (id, _stream) = journal.submit(long(1, 1000));
    assert_eq!(submitted(&mut journal, ONE), [id]);
    let end = step(&[(id, 0, 0)], &[(id, FinishReason::MaxTokens)]);
    apply(&mut journal, ONE, &end);
    let next = |job: &str| NewRequest {
        prompt: vec![TokenId(101); 1100],
        ..request(job)
    };
    let (other, _other) = journal.submit(long(2, 50));
    assert_eq!(submitted(&mut journal, ONE), [other]);
    let (id, _stream) = journal.submit(next("next"));
    assert_eq!(
        submitted(&mut journal, ONE),
        [id],
        "with another request ahead of it"
    );
    let now = journal.now;
    journal.requests.suspend(ONE);
    let cause = DeathCause::Signalled(9);
    journal.requests.reaped(ONE, &cause, &Scene::default(), now);
    let both = submitted(&mut journal, TWO);
    let tokens: Vec<_> = both.iter().map(|id| (*id, 0, 0)).collect();
    let ends: Vec<_> = both
        .iter()
        .map(|id| (*id, FinishReason::MaxTokens))
        .collect();
    apply(&mut journal, TWO, &step(&tokens, &ends));
    journal.serve_by(ONE, class("a"), 2);
    let (id, _stream) = journal.submit(next("once more"));
    assert_eq!(
        submitted(&mut journal, TWO),
        [id],
        "the next child has no cached prefix"
    );
}

#[test]
fn between_clients_the_one_with_the_most_in_the_line_gives_way() {
    let mut journal = journal();
    let mut of_client = BTreeMap::new();
    let mut ids = vec![];
    for (job, client) in [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)] {
        let (id, _) = journal.submit_of(ClientId(client), long(job, 1000));
        of_client.insert(id, client);
        ids.push(id);
    }
    submitted(&mut journal, ONE);
    begin(&mut journal, &ids[..2]);
    journal.serve_by(TWO, class("a"), 2);
    assert_eq!(
        called_back(&mut journal),
        [ids[3]],
        "not the youngest of all"
    );
}
