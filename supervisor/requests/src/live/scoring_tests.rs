//! Log probabilities of prompts.

use crate::record::NewRequest;
use crate::testing::{Journal, SEAT, params, request, step};
use crate::violation::Violation;
use worker_orcd_ipc::{
    Command, FinishReason, Logprobs, PromptLogprobs, RequestId, Scored, StepReport, TokenId,
};

fn wanting(echo: Option<u32>, logprobs: Option<u8>) -> NewRequest {
    NewRequest {
        prompt: vec![TokenId(0), TokenId(1), TokenId(0), TokenId(1)],
        echo,
        params: params(|it| it.logprobs = logprobs),
        ..request("a")
    }
}

fn scored(request: RequestId, first: u32, logprobs: &[f32]) -> StepReport {
    let of = |of_token: &f32| Logprobs {
        of_token: *of_token,
        rank: 1,
        top: vec![],
    };
    StepReport {
        scored: vec![Scored {
            request,
            first,
            logprobs: logprobs.iter().map(of).collect(),
        }],
        ..StepReport::default()
    }
}

/// Request for log probabilities of the prompt without an echo.
fn apart(prompt_logprobs: Option<u8>) -> NewRequest {
    NewRequest {
        prompt_logprobs,
        ..wanting(None, Some(0))
    }
}

/// Report with a rank that no token of the vocabulary has.
fn ranked(rank: u32) -> StepReport {
    let mut report = scored(RequestId(0), 0, &[-1.0]);
    report.scored[0].logprobs[0].rank = rank;
    report
}

#[test]
fn a_prompt_is_reported_for_an_echo_and_apart_from_it_with_enough_likely_tokens() {
    for (echo, logprobs, prompt_logprobs, top) in [
        (None, Some(5), None, None),
        (None, None, Some(2), Some(2)),
        (Some(0), Some(5), Some(2), Some(5)),
        (Some(0), Some(2), Some(5), Some(5)),
        (Some(0), None, Some(2), Some(2)),
    ] {
        let mut journal = Journal::serving();
        let asked = NewRequest {
            prompt_logprobs,
            ..wanting(echo, logprobs)
        };
        let (_, _stream) = journal.submit(asked);
        let [Command::Submit(submission)] = &journal.commands()[..] else {
            panic!("expected a submission");
        };
        let reported = submission.prompt_logprobs.map(|it| it.top);
        assert_eq!(reported, top, "{echo:?}, {logprobs:?}, {prompt_logprobs:?}");
    }
}

#[test]
fn the_next_child_is_asked_for_what_is_not_known_yet() {
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(wanting(Some(0), Some(0)));
    let asked = |journal: &mut Journal| match &journal.commands()[..] {
        [Command::Submit(submission)] => submission.prompt_logprobs,
        other => panic!("{other:?}"),
    };
    let expected = |sent| {
        Some(PromptLogprobs {
            top: 0,
            reported: sent,
        })
    };
    assert_eq!(asked(&mut journal), expected(0));
    let report = scored(id, 0, &[-1.0, -2.0]);
    journal.requests.step(SEAT, &report, journal.now).unwrap();
    journal.requests.suspend(SEAT);
    journal.requests.release(SEAT);
    journal.serve(SEAT);
    assert_eq!(asked(&mut journal), expected(2));
    // A repeated report is a violation.
    let found = journal.requests.step(SEAT, &report, journal.now);
    assert_eq!(found, Err(Violation::Logprobs(id)));
}

#[test]
fn what_was_not_asked_for_or_cannot_be_is_not_believed() {
    let id = RequestId(0);
    let top = |mut report: StepReport| {
        report.scored[0].logprobs[0].top = vec![(TokenId(0), -1.0)];
        report
    };
    for (new, report) in [
        (wanting(None, Some(0)), scored(id, 0, &[-1.0])),
        (wanting(Some(0), None), scored(id, 0, &[-1.0])),
        (wanting(Some(0), Some(0)), scored(id, 1, &[-1.0])),
        (wanting(Some(0), Some(0)), scored(id, 0, &[-1.0; 4])),
        (wanting(Some(0), Some(0)), scored(id, 0, &[0.5])),
        (wanting(Some(0), Some(0)), top(scored(id, 0, &[-1.0]))),
        (wanting(Some(0), Some(0)), step(&[(id, 0, 0)], &[])),
        (apart(Some(0)), top(scored(id, 0, &[-1.0]))),
        (apart(Some(1)), scored(id, 0, &[-1.0])),
        (wanting(Some(0), Some(0)), ranked(0)),
        (wanting(Some(0), Some(0)), ranked(8)),
    ] {
        let mut journal = Journal::serving();
        let (own, _stream) = journal.submit(new);
        let mut report = report;
        report.scored.iter_mut().for_each(|it| it.request = own);
        report.drawn.iter_mut().for_each(|it| it.request = own);
        if let Some(drawn) = report.drawn.first() {
            report.logprobs = vec![worker_orcd_ipc::DrawnLogprobs {
                request: own,
                index: drawn.index,
                logprobs: Logprobs {
                    of_token: -1.0,
                    rank: 1,
                    top: vec![],
                },
            }];
        }
        let found = journal.requests.step(SEAT, &report, journal.now);
        assert_eq!(found, Err(Violation::Logprobs(own)), "{report:?}");
    }
    let mut journal = Journal::serving();
    let (id, _stream) = journal.submit(wanting(Some(0), Some(0)));
    let end = step(&[], &[(id, FinishReason::MaxTokens)]);
    let found = journal.requests.step(SEAT, &end, journal.now);
    assert_eq!(found, Err(Violation::Answer(id)));
}
