//! Log probabilities arrive with the tokens of the requests that select them, and with no others.

use super::counter::{Counter, loaded_with};
use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use worker_orcd_ipc::{DrawnLogprobs, Logprobs};

fn submission(request: u64, logprobs: Option<u8>) -> Submission {
    Submission {
        request: RequestId(request),
        client: ClientId(request),
        prompt: vec![TokenId(1), TokenId(5)],
        params: Arc::new(GenerationParams {
            // The first is there before the others, and after them.
            max_tokens: if logprobs.is_some() { 20 } else { 90 },
            ignore_eos: true,
            logprobs,
            ..GenerationParams::default()
        }),
        ..Submission::default()
    }
}

/// The counter's sampled token is likelier than all others, which are equally likely.
fn is_of_its_token(its: &DrawnLogprobs, token: TokenId) {
    let expected = 1.0 - (std::f32::consts::E + (VOCAB - 1) as f32).ln();
    let Logprobs {
        of_token,
        rank,
        top,
    } = &its.logprobs;
    assert_eq!(*rank, 1);
    assert!((of_token - expected).abs() < 1e-5, "{of_token} of {token}");
    let count = if its.request.0 == 3 { 3 } else { 0 };
    let others = (0..).filter(|id| *id != token.0);
    let ids: Vec<_> = std::iter::once(token.0).chain(others).take(count).collect();
    assert_eq!(top.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), ids);
}

#[test]
fn they_come_with_the_tokens_of_those_who_want_them_also_beside_steps_ahead() {
    for is_ahead in [false, true] {
        let counter = Counter::new(Duration::from_millis(1)).ahead(is_ahead);
        let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
        let mask_requests = [(1, None), (2, Some(0)), (3, Some(3))];
        for (request, logprobs) in mask_requests {
            let submission = submission(request, logprobs);
            supervisor.send(&Command::Submit(Box::new(submission)));
            if request == 1 {
                supervisor.step();
            }
        }
        let (mut ends, mut shared) = (0, false);
        while ends < mask_requests.len() {
            let report = supervisor.step();
            ends += report.finished.len();
            let wanted = report.drawn.iter().filter(|it| it.request != RequestId(1));
            let wanted: Vec<_> = wanted.map(|it| (it.request, it.index)).collect();
            let told = report.logprobs.iter();
            let told: Vec<_> = told.map(|it| (it.request, it.index)).collect();
            assert_eq!(told, wanted, "{report:?}");
            shared |= report.drawn.len() == mask_requests.len();
            for its in &report.logprobs {
                let mut drawn = report.drawn.iter();
                let drawn = drawn.find(|it| it.request == its.request).unwrap();
                is_of_its_token(its, drawn.token);
            }
        }
        assert!(shared, "nobody was beside them");
    }
}

#[test]
fn their_steps_are_begun_while_another_one_is_on_its_way() {
    for logprobs in [None, Some(3)] {
        let begun_ahead = Arc::new(AtomicU32::new(0));
        let counter = Counter::new(Duration::from_millis(1)).ahead(true);
        let counter = counter.counting(&begun_ahead);
        let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
        let mut submission = submission(3, logprobs);
        Arc::make_mut(&mut submission.params).max_tokens = 20;
        supervisor.send(&Command::Submit(Box::new(submission)));
        let mut told = 0;
        loop {
            let report = supervisor.step();
            for (its, drawn) in report.logprobs.iter().zip(&report.drawn) {
                is_of_its_token(its, drawn.token);
                told += 1;
            }
            if !report.finished.is_empty() {
                break;
            }
        }
        assert_eq!(told, if logprobs.is_some() { 20 } else { 0 });
        // All but those of the prompt and of the token after it, as those of others.
        assert_eq!(begun_ahead.load(Ordering::Relaxed), 18, "{logprobs:?}");
    }
}
