//! Guarantees of the journal, tested in memory.

use super::*;
use crate::record::{NewRequest, OnFault, Piece, StreamEvent};
use crate::scene::Scene;
use crate::testing::{Journal, SEAT, read, request, step, text_of};
use std::time::Duration;
use worker_orcd_ipc::TokenId;
use worker_orcd_lifecycle::DeathCause;

const NO_END: &[(RequestId, FinishReason)] = &[];

fn failure(events: &[StreamEvent]) -> Option<ErrorCode> {
    match events.last() {
        Some(StreamEvent::Failed(failure)) => Some(failure.code),
        _ => None,
    }
}

fn signal() -> DeathCause {
    DeathCause::Signalled(11)
}

#[test]
fn tokens_become_text_and_the_end_comes_once() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    assert!(matches!(&journal.commands()[..], [Command::Submit(s)] if s.generated.is_empty()));
    journal
        .requests
        .step(SEAT, &step(&[(id, 0, 0)], NO_END), journal.now)
        .unwrap();
    let (events, over) = read(&mut stream);
    assert_eq!(
        events,
        [StreamEvent::Text(Piece {
            text: "a".to_owned(),
            index: 0,
            number: 0,
            echoes: false,
            logprobs: None,
        })]
    );
    assert!(!over);
    journal.later(Duration::from_millis(20));
    let last = step(
        &[(id, 1, 1), (id, 2, 4)],
        &[(id, FinishReason::EndOfSequence)],
    );
    journal.requests.step(SEAT, &last, journal.now).unwrap();
    let (events, over) = read(&mut stream);
    assert!(over);
    assert_eq!(text_of(&events), "b");
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(completion.stop_reason, StopReason::Eos);
    assert_eq!(
        (completion.tokens_in, completion.tokens_out),
        (2, 3),
        "the eos token counts"
    );
    assert_eq!(completion.decode_time, Duration::from_millis(20));
    assert!(journal.requests.is_empty());
    assert_eq!(journal.registry.live(), 0);
    assert_eq!(read(&mut stream), (vec![], true));
}

#[test]
fn half_a_character_waits_for_its_other_half_and_a_lone_one_is_not_lost() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    journal
        .requests
        .step(SEAT, &step(&[(id, 0, 2)], NO_END), journal.now)
        .unwrap();
    assert_eq!(read(&mut stream).0, []);
    journal
        .requests
        .step(SEAT, &step(&[(id, 1, 3), (id, 2, 2)], NO_END), journal.now)
        .unwrap();
    assert_eq!(
        read(&mut stream).0,
        [StreamEvent::Text(Piece {
            text: "é".to_owned(),
            index: 1,
            number: 0,
            echoes: false,
            logprobs: None,
        })]
    );
    let end = step(&[], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
    let (events, _) = read(&mut stream);
    assert_eq!(
        events[0],
        StreamEvent::Text(Piece {
            text: "\u{fffd}".to_owned(),
            index: 2,
            number: 1,
            echoes: false,
            logprobs: None,
        })
    );
}

#[test]
fn a_slow_reader_gets_everything_at_once_in_pieces() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    for index in 0..8 {
        journal
            .requests
            .step(SEAT, &step(&[(id, index, index % 2)], NO_END), journal.now)
            .unwrap();
    }
    let (events, _) = read(&mut stream);
    assert_eq!(events.len(), 8);
    assert_eq!(text_of(&events), "abababab");
}

#[test]
fn a_stop_string_ends_the_stream_and_the_childs_late_words_are_no_violation() {
    let mut journal = Journal::serving();
    let stop = vec!["bb".to_owned()];
    let (id, mut stream) = journal.submit(NewRequest {
        stop,
        ..request("job")
    });
    journal.commands();
    let report = step(&[(id, 0, 0), (id, 1, 1), (id, 2, 1)], NO_END);
    journal.requests.step(SEAT, &report, journal.now).unwrap();
    let (events, over) = read(&mut stream);
    assert!(over);
    assert_eq!(text_of(&events), "a");
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(completion.stop_reason, StopReason::StopSequence);
    assert_eq!(completion.stop_sequence.as_deref(), Some("bb"));
    assert_eq!(journal.commands(), [Command::Cancel { request: id }]);
    let late = step(&[(id, 3, 0)], &[(id, FinishReason::Cancelled)]);
    journal.requests.step(SEAT, &late, journal.now).unwrap();
    let again = journal
        .requests
        .step(SEAT, &step(&[(id, 4, 0)], NO_END), journal.now);
    assert!(matches!(again, Err(Violation::UnknownRequest { .. })));
}

#[test]
fn text_held_back_for_a_stop_string_is_given_at_the_end() {
    let mut journal = Journal::serving();
    let stop = vec!["bb".to_owned()];
    let (id, mut stream) = journal.submit(NewRequest {
        stop,
        ..request("job")
    });
    let report = step(&[(id, 0, 0), (id, 1, 1)], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &report, journal.now).unwrap();
    assert_eq!(text_of(&read(&mut stream).0), "ab");
}

#[test]
fn a_request_goes_on_with_the_next_child_behind_the_tokens_it_has() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    journal.commands();
    // The second child's token completes a character that the first child began.
    journal
        .requests
        .step(SEAT, &step(&[(id, 0, 0), (id, 1, 2)], NO_END), journal.now)
        .unwrap();
    journal.requests.suspend(SEAT);
    journal
        .requests
        .reaped(SEAT, &signal(), &Scene::default(), journal.now);
    assert!(stream.recovering());
    let (waiting, _second) = journal.submit(request("other"));
    assert_eq!(journal.commands(), []);
    journal.serve(SEAT);
    match &journal.commands()[..] {
        [Command::Submit(first), Command::Submit(second)] => {
            assert_eq!(first.generated, [TokenId(0), TokenId(2)]);
            assert_eq!(second.request, waiting);
        }
        other => panic!("{other:?}"),
    }
    let report = step(&[(id, 2, 3)], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &report, journal.now).unwrap();
    let (events, over) = read(&mut stream);
    assert!(over && !stream.recovering());
    assert_eq!(text_of(&events), "aé");
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!((completion.recoveries, completion.tokens_out), (1, 3));
}

#[test]
fn on_fault_fail_ends_with_one_retriable_error() {
    let mut journal = Journal::serving();
    let on_fault = Some(OnFault::Fail);
    let (id, mut stream) = journal.submit(NewRequest {
        on_fault,
        ..request("job")
    });
    journal
        .requests
        .step(SEAT, &step(&[(id, 0, 0)], NO_END), journal.now)
        .unwrap();
    journal
        .requests
        .reaped(SEAT, &signal(), &Scene::default(), journal.now);
    let (events, over) = read(&mut stream);
    assert!(over);
    assert_eq!(text_of(&events), "a");
    assert_eq!(failure(&events), Some(ErrorCode::WorkerUnhealthy));
    assert!(ErrorCode::WorkerUnhealthy.is_retriable());
    assert_eq!(journal.registry.live(), 0);
}

#[test]
fn an_operators_kills_end_no_stream_however_many_there_are() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    for _ in 0..50 {
        journal.requests.reaped(
            SEAT,
            &DeathCause::Signalled(9),
            &Scene::default(),
            journal.now,
        );
        journal.serve(SEAT);
        assert_eq!(journal.requests.on_probation(), 0);
    }
    let end = step(&[(id, 0, 0)], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
    let (events, _) = read(&mut stream);
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(completion.recoveries, 50);
}

#[test]
fn cancelling_ends_the_stream_at_once_and_tells_the_child() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    journal.commands();
    journal.requests.cancel(id, journal.now);
    journal.requests.cancel(id, journal.now);
    assert_eq!(failure(&read(&mut stream).0), Some(ErrorCode::Cancelled));
    assert_eq!(journal.commands(), [Command::Cancel { request: id }]);
}

#[test]
fn a_client_that_goes_away_frees_its_place() {
    let mut journal = Journal::serving();
    let (id, stream) = journal.submit(request("job"));
    journal.commands();
    drop(stream);
    journal.run_controls();
    assert_eq!(journal.commands(), [Command::Cancel { request: id }]);
    assert_eq!(journal.registry.live(), 0);
}

#[test]
fn a_client_that_goes_away_after_the_end_causes_nothing() {
    let mut journal = Journal::serving();
    let (id, stream) = journal.submit(request("job"));
    journal.commands();
    let end = step(&[], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
    drop(stream);
    journal.run_controls();
    assert_eq!(journal.commands(), []);
}

#[test]
fn a_deadline_ends_what_runs_and_what_waits() {
    let mut journal = Journal::serving();
    let deadline = Some(Duration::from_secs(1));
    let (running, mut first) = journal.submit(NewRequest {
        timeout: deadline,
        ..request("running")
    });
    journal.requests.suspend(SEAT);
    let (_, mut second) = journal.submit(NewRequest {
        timeout: deadline,
        ..request("waiting")
    });
    assert_eq!(
        journal.requests.next_deadline(),
        Some(journal.now + Duration::from_secs(1))
    );
    journal.later(Duration::from_millis(999));
    journal.requests.expire(journal.now);
    assert_eq!(
        journal.requests.len(),
        2,
        "{running} has a millisecond left"
    );
    journal.later(Duration::from_millis(1));
    journal.requests.expire(journal.now);
    for stream in [&mut first, &mut second] {
        assert_eq!(failure(&read(stream).0), Some(ErrorCode::InferenceTimeout));
    }
    assert_eq!(journal.requests.next_deadline(), None);
}

#[test]
fn running_out_of_memory_ends_that_job_alone() {
    let mut journal = Journal::serving();
    let (big, mut first) = journal.submit(request("big"));
    let (_, mut second) = journal.submit(request("small"));
    let reason = FinishReason::OutOfMemory {
        needed_bytes: 9,
        available_bytes: 1,
    };
    journal
        .requests
        .step(SEAT, &step(&[], &[(big, reason)]), journal.now)
        .unwrap();
    assert_eq!(failure(&read(&mut first).0), Some(ErrorCode::VramOom));
    assert_eq!(read(&mut second), (vec![], false));
}

#[test]
fn a_grammar_that_fails_on_the_way_ends_that_job_with_its_tokens_and_the_reason() {
    let mut journal = Journal::serving();
    let (bad, mut first) = journal.submit(request("bad"));
    let (_, mut second) = journal.submit(request("other"));
    let reason = FinishReason::GrammarFailed {
        message: "too deep".to_owned(),
    };
    journal
        .requests
        .step(SEAT, &step(&[(bad, 0, 0)], &[(bad, reason)]), journal.now)
        .unwrap();
    let (events, over) = read(&mut first);
    assert_eq!(text_of(&events), "a");
    let Some(StreamEvent::Failed(failure)) = events.last() else {
        panic!("{events:?}");
    };
    assert!(over && !failure.retriable, "a retry fails again");
    assert!(failure.message.contains("too deep"), "{failure:?}");
    assert_eq!(read(&mut second), (vec![], false));
}

#[test]
fn lies_are_recognised() {
    type Lie = fn(RequestId) -> StepReport;
    let cases: [(&str, Lie); 6] = [
        ("unknown request", |_| {
            step(&[(RequestId(99), 0, 0)], NO_END)
        }),
        ("a token twice", |id| {
            step(&[(id, 0, 0), (id, 0, 0)], NO_END)
        }),
        ("a token skipped", |id| step(&[(id, 1, 0)], NO_END)),
        ("outside the vocabulary", |id| step(&[(id, 0, 7)], NO_END)),
        ("more than `max_tokens`", |id| {
            let tokens: Vec<_> = (0..9).map(|index| (id, index, 0)).collect();
            step(&tokens, NO_END)
        }),
        ("cancelled without a cancellation", |id| {
            step(&[], &[(id, FinishReason::Cancelled)])
        }),
    ];
    for (name, report) in cases {
        let mut journal = Journal::serving();
        let (id, _stream) = journal.submit(request("job"));
        let outcome = journal.requests.step(SEAT, &report(id), journal.now);
        assert!(outcome.is_err(), "{name} was accepted");
    }
}

#[test]
fn a_waiting_request_that_ends_is_never_submitted() {
    let mut journal = Journal::serving();
    journal
        .requests
        .reaped(SEAT, &signal(), &Scene::default(), journal.now);
    let (id, _stream) = journal.submit(request("job"));
    journal.requests.cancel(id, journal.now);
    journal.serve(SEAT);
    assert_eq!(journal.commands(), []);
}

#[test]
fn a_pause_of_streams_begins_with_their_last_token_and_not_with_the_notice() {
    let mut journal = Journal::serving();
    assert_eq!(
        journal.requests.silent_since(SEAT),
        None,
        "no request waits"
    );
    let accepted_at = journal.now;
    let (id, _stream) = journal.submit(request("job"));
    journal.later(Duration::from_secs(1));
    let (_, _newer) = journal.submit(request("newer"));
    let silent_since = journal.requests.silent_since(SEAT);
    assert_eq!(silent_since, Some(accepted_at), "no token yet");
    journal.later(Duration::from_secs(1));
    let token = step(&[(id, 0, 0)], NO_END);
    journal.requests.step(SEAT, &token, journal.now).unwrap();
    let last_token_at = journal.now;
    journal.later(Duration::from_secs(1));
    let silent_since = journal.requests.silent_since(SEAT);
    assert_eq!(silent_since, Some(last_token_at));
    let elsewhere = journal.requests.silent_since(SeatId(1));
    assert_eq!(elsewhere, None, "another seat has no request");
}

#[test]
fn a_pause_is_counted_from_the_last_token_and_only_where_a_stream_went_over() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(request("job"));
    let (_, _unheard) = journal.submit(request("had no token yet"));
    let token = |journal: &mut Journal, index| {
        let report = step(&[(id, index, 0)], NO_END);
        journal.requests.step(SEAT, &report, journal.now).unwrap();
    };
    let pauses = |journal: &Journal| {
        let pauses = journal.requests.totals().pauses;
        (pauses.count(), pauses.seconds())
    };
    token(&mut journal, 0);
    journal.later(Duration::from_secs(1));
    journal.requests.hesitate(SEAT);
    token(&mut journal, 1);
    assert_eq!(pauses(&journal), (0, 0.0), "the same child continued");
    journal.later(Duration::from_secs(2));
    journal
        .requests
        .reaped(SEAT, &signal(), &Scene::default(), journal.now);
    journal.serve(SEAT);
    journal.commands();
    journal.later(Duration::from_secs(3));
    token(&mut journal, 2);
    assert_eq!(pauses(&journal), (1, 5.0));
    journal.later(Duration::from_secs(7));
    token(&mut journal, 3);
    assert_eq!(pauses(&journal), (1, 5.0), "the pause had ended");
    assert_eq!(journal.requests.totals().gaps.count(), 3);
}

fn beginning(request: RequestId, cached_tokens: u32) -> StepReport {
    StepReport {
        began: vec![Began {
            request,
            cached_tokens,
        }],
        ..step(&[], &[])
    }
}

#[test]
fn the_first_word_about_cached_tokens_stands() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    for cached_tokens in [1, 2, 0] {
        let report = beginning(id, cached_tokens);
        journal.requests.step(SEAT, &report, journal.now).unwrap();
    }
    let end = step(&[(id, 0, 0)], &[(id, FinishReason::MaxTokens)]);
    journal.requests.step(SEAT, &end, journal.now).unwrap();
    let (events, _) = read(&mut stream);
    let Some(StreamEvent::Finished(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(completion.cached_tokens, 1);
}

#[test]
fn a_child_has_no_more_of_a_prompt_than_there_is() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(request("job"));
    let report = beginning(id, 3);
    let outcome = journal.requests.step(SEAT, &report, journal.now);
    assert_eq!(outcome, Err(Violation::CachedTokens(id)));
}
