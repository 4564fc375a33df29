//! Counts of drafts: those of the tokens that a client gets, over all children.

use super::*;
use crate::record::{NewRequest, StreamEvent};
use crate::scene::Scene;
use crate::stream::RequestStream;
use crate::testing::{Journal, SEAT, read, request, step};

/// Tokens of a request from this index on, and the drafts before them.
fn behind(id: RequestId, first: u32, tokens: &[u32], drafts: u32) -> StepReport {
    let tokens: Vec<_> = (first..)
        .zip(tokens)
        .map(|(at, token)| (id, at, *token))
        .collect();
    let drafted = vec![Drafted {
        request: id,
        drafts,
    }];
    StepReport {
        drafted,
        ..step(&tokens, &[])
    }
}

fn counts(stream: &mut RequestStream) -> (u32, u32, u32) {
    let (events, _) = read(stream);
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    let drafts = completion.drafts;
    (drafts.accepted, drafts.rejected(), completion.tokens_out)
}

fn end(journal: &mut Journal, id: RequestId) {
    let end = step(&[], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
}

#[test]
fn tokens_behind_the_first_of_a_step_are_accepted_drafts() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    journal.commands();
    let now = journal.now;
    for report in [
        behind(id, 0, &[0, 1, 0], 3),
        // Forced by a grammar.
        step(&[(id, 3, 0), (id, 4, 0)], &[]),
        behind(id, 5, &[1], 7),
        step(&[(id, 6, 0)], &[]),
        behind(id, 7, &[0], 1),
    ] {
        journal.requests.step(SEAT, &report, now).unwrap();
    }
    end(&mut journal, id);
    assert_eq!(counts(&mut stream), (2, 9, 8));
}

#[test]
fn a_draft_behind_a_stop_string_is_rejected() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(NewRequest {
        stop: vec!["b".to_owned()],
        ..request("job")
    });
    journal.commands();
    let report = behind(id, 0, &[0, 1, 0, 0], 3);
    journal.requests.step(SEAT, &report, journal.now).unwrap();
    assert_eq!(counts(&mut stream), (1, 2, 2));
}

#[test]
fn counts_survive_a_death() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    journal.commands();
    let now = journal.now;
    journal
        .requests
        .step(SEAT, &behind(id, 0, &[0, 1], 3), now)
        .unwrap();
    let scene = Scene::default();
    journal
        .requests
        .reaped(SEAT, &DeathCause::Signalled(9), &scene, now);
    journal.serve(SEAT);
    journal.commands();
    journal
        .requests
        .step(SEAT, &behind(id, 2, &[0, 0], 1), now)
        .unwrap();
    end(&mut journal, id);
    assert_eq!(counts(&mut stream), (2, 2, 4));
}

#[test]
fn drafts_that_do_not_fit_their_tokens_are_a_violation() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(request("job"));
    let (other, _other) = journal.submit(request("other"));
    journal.commands();
    let violation = Err(Violation::Drafts(id));
    let too_few = behind(id, 0, &[0, 1, 0], 1);
    let none = behind(id, 0, &[0], 0);
    let without_a_token = behind(id, 0, &[], 1);
    let of_another = StepReport {
        drafted: behind(id, 0, &[], 1).drafted,
        ..step(&[(other, 0, 0)], &[])
    };
    for report in [too_few, none, without_a_token, of_another] {
        let answer = journal.requests.step(SEAT, &report, journal.now);
        assert_eq!(answer, violation, "{report:?}");
    }
}
