//! Requests that end with a vector and without tokens.

use crate::record::{NewRequest, StreamEvent};
use crate::testing::{Journal, SEAT, params, read, request, step};
use crate::violation::Violation;
use worker_orcd_ipc::{Command, FinishReason, Pooling};

fn wanting(job_id: &str) -> NewRequest {
    NewRequest {
        params: params(|it| it.max_tokens = 0),
        embeds: Some(Pooling::Mean),
        ..request(job_id)
    }
}

fn vector(values: &[f32]) -> FinishReason {
    FinishReason::Embedded {
        values: values.to_vec(),
    }
}

#[test]
fn a_vector_is_the_one_event_of_who_wants_it() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(wanting("a"));
    let commands = journal.commands();
    let is_asked = |command: &Command| match command {
        Command::Submit(it) => it.embeds == Some(Pooling::Mean),
        _ => false,
    };
    assert!(commands.iter().any(is_asked), "{commands:?}");
    let end = step(&[], &[(id, vector(&[0.5, -1.0]))]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
    let (events, is_over) = read(&mut stream);
    let [StreamEvent::Embedded(embedding)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(embedding.values, [0.5, -1.0]);
    assert!(is_over);
    assert!(journal.requests.is_empty());
}

#[test]
fn another_answer_than_was_asked_for_is_not_believed() {
    let answers = [
        (wanting("a"), FinishReason::MaxTokens),
        (wanting("a"), FinishReason::EndOfSequence),
        (wanting("a"), vector(&[])),
        (wanting("a"), vector(&[f32::NAN])),
        (request("a"), vector(&[1.0])),
    ];
    for (new, answer) in answers {
        let mut journal = Journal::serving();
        let (id, _stream) = journal.submit(new);
        journal.commands();
        let end = step(&[], &[(id, answer)]);
        let found = journal.requests.step(SEAT, &end, journal.now);
        assert_eq!(found, Err(Violation::Answer(id)));
    }
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(wanting("a"));
    journal.commands();
    let token = step(&[(id, 0, 0)], &[]);
    let found = journal.requests.step(SEAT, &token, journal.now);
    assert!(matches!(found, Err(Violation::TooMany { .. })), "{found:?}");
}
