//! A query of death beside innocent requests, on a simulated child.

use super::*;
use crate::error_code::ErrorCode;
use crate::record::{Failure, NewRequest, StreamEvent};
use crate::refusal::Refusal;
use crate::scene::Within;
use crate::stream::RequestStream;
use crate::testing::{Journal, QUARANTINE_FOR, SEAT, params, read, request, step};
use std::num::NonZeroU8;
use worker_orcd_ipc::Command;
use worker_orcd_ipc::{Fault, FinishReason, TokenId};
use worker_orcd_lifecycle::SeatId;

fn crash() -> DeathCause {
    DeathCause::Signalled(11)
}

fn submitted(journal: &mut Journal) -> Vec<RequestId> {
    let submit = |command| match command {
        Command::Submit(submission) => Some(submission.request),
        _ => None,
    };
    journal.commands().into_iter().filter_map(submit).collect()
}

fn cancelled(journal: &mut Journal) -> Vec<RequestId> {
    let cancel = |command| match command {
        Command::Cancel { request } => Some(request),
        _ => None,
    };
    journal.commands().into_iter().filter_map(cancel).collect()
}

/// Death between two steps, according to the flight recorder. Returns the requests that the next child gets.
fn die(journal: &mut Journal, cause: &DeathCause) -> Vec<RequestId> {
    die_at(journal, cause, &Scene::default())
}

fn die_at(journal: &mut Journal, cause: &DeathCause, scene: &Scene) -> Vec<RequestId> {
    journal.commands();
    journal.requests.suspend(SEAT);
    journal.requests.reaped(SEAT, cause, scene, journal.now);
    journal.serve(SEAT);
    submitted(journal)
}

fn emit(journal: &mut Journal, id: RequestId, indexes: std::ops::Range<u32>) {
    let tokens: Vec<_> = indexes.map(|index| (id, index, 0)).collect();
    journal
        .requests
        .step(SEAT, &step(&tokens, &[]), journal.now)
        .unwrap();
}

fn finish(journal: &mut Journal, id: RequestId, reason: FinishReason) {
    journal
        .requests
        .step(SEAT, &step(&[], &[(id, reason)]), journal.now)
        .unwrap();
}

fn failure(stream: &mut RequestStream) -> Option<Failure> {
    match read(stream).0.pop() {
        Some(StreamEvent::Failed(failure)) => Some(failure),
        _ => None,
    }
}

fn killer() -> NewRequest {
    NewRequest {
        prompt: vec![TokenId(3); 5],
        ..request("killer")
    }
}

#[test]
fn a_query_of_death_costs_three_children_and_its_company_nothing_but_time() {
    let mut journal = Journal::serving();
    let (guilty, mut bad) = journal.submit(killer());
    let (innocent, mut good) = journal.submit(request("innocent"));
    assert_eq!(die(&mut journal, &crash()), [guilty, innocent]);
    assert_eq!(
        die(&mut journal, &crash()),
        [guilty],
        "the suspect runs alone"
    );
    assert_eq!(journal.requests.on_probation(), 2);
    assert_eq!(
        die(&mut journal, &crash()),
        [innocent],
        "the killer has ended, and the other suspect has its turn"
    );
    let quarantined = failure(&mut bad).expect("a failed request");
    assert_eq!(quarantined.code, ErrorCode::Quarantined);
    assert!(!quarantined.retriable);
    assert_eq!(journal.requests.totals().quarantined, 1);
    emit(&mut journal, innocent, 0..8);
    assert_eq!(journal.requests.on_probation(), 0);
    finish(&mut journal, innocent, FinishReason::MaxTokens);
    let (events, over) = read(&mut good);
    assert!(over && matches!(events.last(), Some(StreamEvent::Finished(_))));
}

#[test]
fn another_way_to_die_is_no_proof_until_the_fifth() {
    let mut journal = Journal::serving();
    let (only, mut stream) = journal.submit(killer());
    let other = DeathCause::SocketClosed;
    for cause in [crash(), crash(), other.clone(), other] {
        assert_eq!(die(&mut journal, &cause), [only], "{cause}");
    }
    assert_eq!(die(&mut journal, &crash()), []);
    let quarantined = failure(&mut stream).expect("a failed request");
    assert_eq!(quarantined.code, ErrorCode::Quarantined);
}

/// A wrong token, an invalid frame and a flood are three different faults, although their label is the same.
#[test]
fn three_violations_of_the_protocol_convict_only_where_they_are_the_same() {
    let violation = |reason: &str| DeathCause::ProtocolViolation(reason.to_owned());
    for (reasons, is_proof) in [
        (["token id 7 of 9", "a frame of 1 byte", "a flood"], false),
        (
            ["token id 7 of 9", "token id 8 of 9", "token id 70 of 9"],
            true,
        ),
    ] {
        let mut journal = Journal::serving();
        let (only, mut stream) = journal.submit(killer());
        for reason in reasons {
            die(&mut journal, &violation(reason));
        }
        assert_eq!(failure(&mut stream).is_some(), is_proof, "{reasons:?}");
        assert_eq!(
            journal.requests.on_probation(),
            usize::from(!is_proof),
            "{only:?}"
        );
    }
}

/// Five deaths that no request caused: the only request advances between them.
fn five_deaths_of_nobodys_doing(journal: &mut Journal) {
    let (walker, _stream) = journal.submit(NewRequest {
        params: params(|it| it.max_tokens = 10),
        ..request("walker")
    });
    for death in 0..5 {
        emit(journal, walker, 2 * death..2 * death + 2);
        die(journal, &crash());
    }
    finish(journal, walker, FinishReason::MaxTokens);
}

#[test]
fn an_innocent_outlives_bad_luck_on_a_machine_that_kills_by_itself() {
    let mut journal = Journal::serving();
    five_deaths_of_nobodys_doing(&mut journal);
    let (unlucky, mut stream) = journal.submit(killer());
    for _ in 0..4 {
        assert_eq!(die(&mut journal, &crash()), [unlucky], "two of them alone");
    }
    emit(&mut journal, unlucky, 0..8);
    assert_eq!(journal.requests.on_probation(), 0);
    finish(&mut journal, unlucky, FinishReason::MaxTokens);
    let (events, over) = read(&mut stream);
    assert!(over && matches!(events.last(), Some(StreamEvent::Finished(_))));
}

#[test]
fn a_killer_is_convicted_on_a_machine_that_kills_by_itself_too_and_sooner_once_it_is_well() {
    for (later, deaths) in [(Duration::ZERO, 5), (LATELY + Duration::from_secs(1), 3)] {
        let mut journal = Journal::serving();
        five_deaths_of_nobodys_doing(&mut journal);
        journal.later(later);
        let (_, mut stream) = journal.submit(killer());
        for _ in 1..deaths {
            die(&mut journal, &crash());
            assert!(failure(&mut stream).is_none());
        }
        die(&mut journal, &crash());
        let quarantined = failure(&mut stream).expect("a failed request");
        assert_eq!(quarantined.code, ErrorCode::Quarantined);
    }
}

/// Scene in a step with these positions of one prompt.
fn in_prompt(id: RequestId, positions: std::ops::Range<u32>) -> Scene {
    Scene {
        within: Some(Within::Beginning),
        drafting: None,
        prompts: [(id, positions)].into(),
        stopped: false,
    }
}

#[test]
fn a_long_prompt_that_never_gets_through_is_tried_again_and_never_accused() {
    let mut journal = Journal::serving();
    let (long, mut stream) = journal.submit(NewRequest {
        prompt: vec![TokenId(0); 2182],
        ..request("long")
    });
    for death in 0..50 {
        let at = 13 * death % 68 * 32;
        let scene = in_prompt(long, at..at + 32);
        assert_eq!(die_at(&mut journal, &crash(), &scene), [long]);
    }
    assert!(failure(&mut stream).is_none());
}

#[test]
fn who_waits_inside_the_child_is_not_accused_of_a_step_that_it_is_not_in() {
    let mut journal = Journal::serving();
    let (guilty, mut bad) = journal.submit(killer());
    let (waiting, _good) = journal.submit(request("waiting"));
    let scene = in_prompt(guilty, 0..5);
    die_at(&mut journal, &crash(), &scene);
    assert_eq!(die_at(&mut journal, &crash(), &scene), [guilty]);
    assert_eq!(
        journal.requests.on_probation(),
        1,
        "the waiting request is no suspect"
    );
    assert_eq!(die_at(&mut journal, &crash(), &scene), [waiting]);
    assert!(failure(&mut bad).is_some());
}

#[test]
fn a_panic_beside_a_step_may_be_the_doing_of_who_waits_and_convicts_only_alone() {
    let mut journal = Journal::serving();
    let (computed, _one) = journal.submit(request("computed"));
    let (guilty, mut bad) = journal.submit(killer());
    let panic = DeathCause::Reported(Fault::Panic {
        message: "a queue".to_owned(),
        location: String::new(),
    });
    for at in [0..1, 1..2] {
        die_at(&mut journal, &panic, &in_prompt(computed, at));
    }
    assert_eq!(journal.requests.on_probation(), 1);
    for _ in 0..3 {
        assert!(failure(&mut bad).is_none());
        die(&mut journal, &panic);
    }
    assert!(failure(&mut bad).is_some(), "{guilty} alone, between steps");
}

#[test]
fn a_child_that_was_stopped_by_a_signal_convicts_nobody() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    let scene = Scene {
        stopped: true,
        ..in_prompt(id, 0..2)
    };
    let cause = DeathCause::HeartbeatLost {
        silent_for: Duration::from_secs(2),
    };
    for _ in 0..9 {
        assert_eq!(die_at(&mut journal, &cause, &scene), [id]);
    }
    assert!(failure(&mut stream).is_none());
    assert_eq!(journal.requests.on_probation(), 0);
}

#[test]
fn what_was_quarantined_is_refused_for_its_time_and_by_any_name() {
    let mut journal = Journal::serving();
    let (_, mut stream) = journal.submit(killer());
    for _ in 0..3 {
        die(&mut journal, &crash());
    }
    assert!(failure(&mut stream).is_some());
    let refusal = journal.registry.inspect(&killer_again(), journal.now);
    let left = QUARANTINE_FOR;
    assert_eq!(refusal, Err(Refusal::Quarantined { left }));
    assert_eq!(refusal.unwrap_err().code(), ErrorCode::Quarantined);
    assert_eq!(journal.registry.quarantined(journal.now).len(), 1);
    assert_eq!(
        journal.registry.inspect(&request("other"), journal.now),
        Ok(())
    );
    journal.later(QUARANTINE_FOR);
    assert_eq!(
        journal.registry.inspect(&killer_again(), journal.now),
        Ok(())
    );
    assert_eq!(journal.registry.quarantined(journal.now), []);
}

fn killer_again() -> NewRequest {
    let mut again = killer();
    again.job_id = "again".to_owned();
    again.params = params(|it| it.sampling.seed = 99);
    again
}

#[test]
fn a_suspect_rejoins_everybody_once_past_the_fatal_step() {
    let mut journal = Journal::serving();
    let (first, _one) = journal.submit(request("first"));
    let (second, _two) = journal.submit(request("second"));
    emit(&mut journal, first, 0..3);
    die(&mut journal, &crash());
    assert_eq!(die(&mut journal, &crash()), [first]);
    let (late, _three) = journal.submit(request("late"));
    emit(&mut journal, first, 3..4);
    assert_eq!(
        submitted(&mut journal),
        [],
        "one token came from the prompt"
    );
    emit(&mut journal, first, 4..5);
    assert_eq!(
        cancelled(&mut journal),
        [first],
        "the second suspect needs an empty child"
    );
    // Reports before the confirmed cancellation remain valid.
    emit(&mut journal, first, 5..6);
    finish(&mut journal, first, FinishReason::Cancelled);
    assert_eq!(submitted(&mut journal), [second]);
    emit(&mut journal, second, 0..2);
    let again = journal.commands();
    let resumed: Vec<_> = again
        .iter()
        .map(|command| match command {
            Command::Submit(submission) => (submission.request, submission.generated.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(resumed, [(first, 6), (late, 0)], "all run together again");
    assert_eq!(journal.requests.on_probation(), 0);
}

#[test]
fn a_stream_that_moves_on_between_deaths_is_never_suspected() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(NewRequest {
        params: params(|it| it.max_tokens = 1000),
        ..request("long")
    });
    for death in 0..100 {
        emit(&mut journal, id, 2 * death..2 * death + 2);
        assert_eq!(die(&mut journal, &crash()), [id]);
        assert_eq!(journal.requests.on_probation(), 0);
    }
}

#[test]
fn an_operators_kill_of_a_child_with_one_suspect_convicts_nobody() {
    let mut journal = Journal::serving();
    let (id, mut stream) = journal.submit(request("job"));
    die(&mut journal, &crash());
    die(&mut journal, &crash());
    for _ in 0..5 {
        assert_eq!(die(&mut journal, &DeathCause::Signalled(9)), [id]);
    }
    assert!(failure(&mut stream).is_none());
    assert_eq!(journal.requests.on_probation(), 1);
}

#[test]
fn a_request_that_the_child_names_is_the_only_suspect() {
    let mut journal = Journal::serving();
    let (guilty, mut bad) = journal.submit(killer());
    let (innocent, _good) = journal.submit(request("innocent"));
    let cause = DeathCause::Reported(Fault::NonFiniteLogits {
        step: 1,
        request: guilty,
    });
    die(&mut journal, &cause);
    assert_eq!(die(&mut journal, &cause), [guilty]);
    assert_eq!(journal.requests.on_probation(), 1);
    assert_eq!(die(&mut journal, &cause), [innocent]);
    assert!(failure(&mut bad).is_some());
}

#[test]
fn two_queries_of_death_at_once_cost_four_children() {
    let mut journal = Journal::serving();
    let (_, mut one) = journal.submit(killer());
    let mut other = killer();
    other.job_id = "other killer".to_owned();
    other.prompt.push(TokenId(1));
    let (_, mut two) = journal.submit(other);
    for _ in 0..4 {
        die(&mut journal, &crash());
    }
    assert!(failure(&mut one).is_some() && failure(&mut two).is_some());
}

/// Variant of [`die`] that returns the number of deaths attributed to requests.
fn ascribed(journal: &mut Journal, cause: &DeathCause) -> u32 {
    journal.commands();
    journal.requests.suspend(SEAT);
    let ascribed = journal
        .requests
        .reaped(SEAT, cause, &Scene::default(), journal.now);
    journal.serve(SEAT);
    ascribed
}

#[test]
fn deaths_of_a_suspect_alone_are_ascribed_to_it_and_those_in_company_to_no_request() {
    let mut journal = Journal::serving();
    five_deaths_of_nobodys_doing(&mut journal);
    let (_, mut stream) = journal.submit(killer());
    let deaths: Vec<_> = (0..5).map(|_| ascribed(&mut journal, &crash())).collect();
    assert_eq!(deaths, [0, 0, 1, 1, 5], "a proof takes five deaths");
    assert!(failure(&mut stream).is_some());
    let (_, _stream) = journal.submit(request("other"));
    let killed = DeathCause::Signalled(9);
    assert_eq!(ascribed(&mut journal, &killed), 0, "the cause is external");
}

#[test]
fn copies_of_one_killer_are_convicted_together() {
    let mut journal = Journal::serving();
    let mut streams = vec![];
    for copy in 0..4 {
        let job_id = format!("copy {copy}");
        streams.push(journal.submit(NewRequest { job_id, ..killer() }).1);
    }
    for _ in 0..3 {
        die(&mut journal, &crash());
    }
    for stream in &mut streams {
        assert_eq!(
            failure(stream).map(|end| end.code),
            Some(ErrorCode::Quarantined)
        );
    }
    assert!(journal.requests.is_empty());
}

#[test]
fn a_suspect_that_ends_in_any_way_lets_the_others_go_on() {
    type End = fn(&mut Journal, RequestId);
    let ends: [(&str, End); 4] = [
        ("cancelled", |journal, id| {
            journal.requests.cancel(id, journal.now)
        }),
        ("abandoned", |journal, id| {
            journal.requests.abandon(id, journal.now)
        }),
        ("expired", |journal, _| {
            journal.later(Duration::from_secs(60));
            journal.requests.expire(journal.now);
        }),
        ("finished", |journal, id| {
            finish(journal, id, FinishReason::EndOfSequence)
        }),
    ];
    for (name, end) in ends {
        let mut journal = Journal::serving();
        let deadline = Some(Duration::from_secs(60));
        let (suspect, _one) = journal.submit(NewRequest {
            timeout: deadline,
            ..request("suspect")
        });
        die(&mut journal, &crash());
        assert_eq!(die(&mut journal, &crash()), [suspect]);
        let (waiting, _two) = journal.submit(request("waiting"));
        assert_eq!(submitted(&mut journal), []);
        end(&mut journal, suspect);
        assert_eq!(submitted(&mut journal), [waiting], "{name}");
    }
}

#[test]
fn the_next_suspect_waits_until_the_child_has_let_go_of_the_last() {
    let mut journal = Journal::serving();
    let (first, _one) = journal.submit(request("first"));
    let (second, _two) = journal.submit(request("second"));
    die(&mut journal, &crash());
    assert_eq!(die(&mut journal, &crash()), [first]);
    journal.requests.cancel(first, journal.now);
    assert_eq!(
        cancelled(&mut journal),
        [first],
        "no request runs beside the suspect"
    );
    finish(&mut journal, first, FinishReason::Cancelled);
    assert_eq!(submitted(&mut journal), [second]);
}

#[test]
fn one_that_was_called_back_can_be_cancelled_and_its_child_answers_once() {
    let mut journal = Journal::serving();
    let (first, mut stream) = journal.submit(request("first"));
    let (second, _two) = journal.submit(request("second"));
    die(&mut journal, &crash());
    die(&mut journal, &crash());
    emit(&mut journal, first, 0..2);
    assert_eq!(cancelled(&mut journal), [first]);
    assert!(
        stream.recovering(),
        "the client sees that the request waits"
    );
    journal.requests.cancel(first, journal.now);
    assert_eq!(journal.commands(), []);
    assert_eq!(
        failure(&mut stream).map(|end| end.code),
        Some(ErrorCode::Cancelled)
    );
    finish(&mut journal, first, FinishReason::Cancelled);
    assert_eq!(submitted(&mut journal), [second]);
}

#[test]
fn the_end_of_the_worker_ends_those_on_probation_too() {
    let mut journal = Journal::serving();
    let (_, mut one) = journal.submit(request("one"));
    let (_, mut two) = journal.submit(request("two"));
    die(&mut journal, &crash());
    die(&mut journal, &crash());
    let end = Failure::new(ErrorCode::WorkerUnhealthy, "the worker has failed");
    journal.requests.fail_all(&end, journal.now);
    assert_eq!(failure(&mut one).as_ref(), Some(&end));
    assert_eq!(failure(&mut two).as_ref(), Some(&end));
    assert_eq!(journal.requests.on_probation(), 0);
    assert_eq!(journal.registry.live(), 0);
}

#[test]
fn a_suspect_takes_one_seat_for_itself_and_the_other_serves_everybody_else() {
    const SEATS: [SeatId; 2] = [SeatId(0), SeatId(2)];
    let mut journal = Journal::with_devices(4, NonZeroU8::new(2).unwrap());
    let given = |journal: &mut Journal, seat| -> Vec<_> {
        let submitted = |command| match command {
            Command::Submit(submission) => Some(submission.request),
            _ => None,
        };
        let commands = journal.commands_of(seat).into_iter();
        commands.filter_map(submitted).collect()
    };
    for seat in SEATS {
        journal.serve(seat);
    }
    let another = |tokens| NewRequest {
        prompt: vec![TokenId(0); tokens],
        ..request(&format!("{tokens} tokens"))
    };
    let ids = [1, 2, 3, 4].map(|tokens| journal.submit(another(tokens)));
    let [(one, _), (two, _), (three, _), (four, _)] = &ids;
    assert_eq!(given(&mut journal, SEATS[0]), [*one, *three], "even shares");
    assert_eq!(given(&mut journal, SEATS[1]), [*two, *four]);
    // Two deaths at the same place of both requests, while the other seat accepts none.
    for _ in 0..2 {
        let now = journal.now;
        let scene = Scene::default();
        journal.requests.suspend(SEATS[0]);
        journal.requests.suspend(SEATS[1]);
        journal.requests.reaped(SEATS[0], &crash(), &scene, now);
        for seat in SEATS {
            journal.serve(seat);
        }
    }
    assert_eq!(journal.requests.on_probation(), 2);
    let (new, _stream) = journal.submit(another(5));
    let with = |journal: &Journal, seat| -> Vec<_> {
        let given = journal.requests.in_flight(seat);
        given.map(|record| record.id).collect()
    };
    assert_eq!(
        with(&journal, SEATS[0]),
        [*one],
        "one suspect runs alone, the next waits"
    );
    assert_eq!(with(&journal, SEATS[1]), [*two, *four, new]);
    // While one seat is empty, the other is not reserved for the suspect.
    let now = journal.now;
    journal.requests.suspend(SEATS[0]);
    journal
        .requests
        .reaped(SEATS[0], &crash(), &Scene::default(), now);
    assert_eq!(
        journal.requests.totals().quarantined,
        1,
        "the third death, alone"
    );
    assert_eq!(with(&journal, SEATS[1]), [*two, *four, new]);
    journal.serve(SEATS[0]);
    assert_eq!(with(&journal, SEATS[0]), [*three]);
}
