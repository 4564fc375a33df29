//! Reasoning budgets: the samples are the same after a failover at any token, and with or without steps launched ahead.

use super::*;
use worker_orcd_ipc::ThinkingBudget;

const CLOSING: [u32; 2] = [48, 49];

/// The prompt opens the reasoning. No token has a text, so no tag comes by itself.
pub(super) fn budget(tokens: u32) -> ThinkingBudget {
    ThinkingBudget {
        tokens,
        open: None,
        close: "</think>".to_owned(),
        closing: CLOSING.map(TokenId).to_vec(),
    }
}

fn thinking(request: u64, tokens: u32, max_tokens: u32) -> Submission {
    with(submission(request, &[1, 2, 3], max_tokens), |it| {
        it.thinking = Some(Arc::new(budget(tokens)));
    })
}

#[test]
fn so_many_tokens_are_free_then_the_tag_comes_and_what_follows_is_free() {
    let free = alone(&submission(1, &[1, 2, 3], 12), 16).tokens;
    for tokens in 0..12 {
        let found = alone(&thinking(1, tokens, 12), 16).tokens;
        let before = tokens as usize;
        assert_eq!(found[..before], free[..before]);
        let tag = &found[before..12.min(before + 2)];
        assert_eq!(*tag, CLOSING.map(TokenId)[..tag.len()], "{found:?}");
        // As if the tag had been a part of the prompt.
        if before < 10 {
            let behind = Submission {
                generated: found[..before + 2].to_vec(),
                ..submission(1, &[1, 2, 3], 12)
            };
            assert_eq!(alone(&behind, 16).tokens, found[before + 2..]);
        }
    }
}

#[test]
fn a_history_goes_on_where_it_was_at_each_of_its_tokens() {
    let whole = alone(&thinking(1, 5, 12), 16);
    for known in 0..12 {
        let rest = Submission {
            generated: whole.tokens[..known].to_vec(),
            ..thinking(1, 5, 12)
        };
        assert_eq!(alone(&rest, 16).tokens, whole.tokens[known..], "{known}");
    }
}

#[test]
fn steps_ahead_change_no_byte_of_it_and_hold_up_no_neighbour() {
    let mut bench = Bench::new(limits(), 32, true).ahead();
    for request in 1..=3 {
        bench.submit(thinking(request, 4 * request as u32 - 4, 12));
    }
    bench.submit(submission(4, &[9, 8], 12));
    let mut steps = 0;
    while bench
        .outcomes
        .get(&RequestId(4))
        .is_none_or(|it| it.reasons.is_empty())
    {
        bench.turn(64);
        steps += 1;
        assert!(steps < 100, "it does not come to an end");
    }
    // Every step but the one with the prompt has one of its tokens, and one is still in flight.
    assert!(steps <= 12 + 3, "{steps} steps");
    bench.run();
    for request in 1..=3 {
        let expected = alone(&thinking(request, 4 * request as u32 - 4, 12), 32);
        assert_eq!(bench.outcome(request).tokens, expected.tokens, "{request}");
    }
    assert_eq!(bench.outcome(4), &alone(&submission(4, &[9, 8], 12), 32));
}

#[test]
fn drafts_end_where_the_tag_may_be_forced() {
    for tokens in 0..40 {
        let plain = thinking(1, tokens, 40);
        let expected = alone(&plain, 32);
        let mut bench = Bench::new(limits(), 32, true);
        bench.submit(with(plain, |it| {
            it.prediction = expected.tokens.clone().into();
        }));
        bench.run();
        assert_eq!(bench.outcome(1), &expected, "{tokens} tokens");
        let accepted = bench.scheduler.load().counters.accepted_draft_tokens;
        assert!(accepted >= 20, "{accepted} accepted, {tokens} tokens");
    }
}

#[test]
fn a_bound_without_a_tag_is_refused() {
    let mut bench = Bench::new(limits(), 16, true);
    bench.submit(with(thinking(1, 5, 12), |it| {
        Arc::make_mut(it.thinking.as_mut().unwrap()).closing.clear();
    }));
    bench.run();
    let reason = bench.only_reason(1);
    assert!(matches!(reason, FinishReason::Refused { .. }), "{reason:?}");
}
