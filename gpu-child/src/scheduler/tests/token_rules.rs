//! Rules on tokens: what is sampled with them, with and without a grammar, and after a history.

use super::constraint::constrained;
use super::*;

/// A request with an end, and with these rules: `min_tokens`, stop tokens, allowed tokens.
fn ruled(request: u64, min_tokens: u32, stop: &[u32], allowed: &[u32]) -> Submission {
    with(submission(request, &[1, 2, 3], 30), |it| {
        rule(it, min_tokens, stop, allowed);
    })
}

fn rule(params: &mut GenerationParams, min_tokens: u32, stop: &[u32], allowed: &[u32]) {
    params.ignore_eos = false;
    params.min_tokens = min_tokens;
    params.stop_token_ids = stop.iter().copied().map(TokenId).collect();
    params.allowed_token_ids = allowed.iter().copied().map(TokenId).collect();
}

fn ends(token: TokenId) -> bool {
    [EOG, TokenId(9), TokenId(20)].contains(&token)
}

#[test]
fn an_answer_ends_behind_its_least_tokens_at_the_first_token_that_ends_it() {
    let mut ended = 0;
    for seed in 0..100 {
        let outcome = alone(&ruled(seed, 5, &[9, 20], &[]), 16);
        let (last, others) = outcome.tokens.split_last().unwrap();
        assert!(!others.iter().any(|token| ends(*token)), "{outcome:?}");
        assert_eq!(
            ends(*last),
            outcome.reasons == [FinishReason::EndOfSequence]
        );
        assert!(outcome.tokens.len() > 5, "{outcome:?}");
        ended += u32::from(ends(*last));
        let early = alone(&ruled(seed, 0, &[9, 20], &[]), 16);
        let is_early = early.tokens.len() <= 5;
        assert!(is_early || early == outcome, "{early:?}, {outcome:?}");
    }
    assert!(ended > 20, "{ended}");
}

#[test]
fn only_allowed_tokens_are_drawn_and_an_end_is_one_of_them_or_never_comes() {
    let allowed = [3, 8, 9, 31, 32, 49];
    for seed in 0..50 {
        let outcome = alone(&ruled(seed, 0, &[], &allowed), 16);
        let is_allowed = |token: &TokenId| allowed.contains(&token.0);
        assert!(outcome.tokens.iter().all(is_allowed), "{outcome:?}");
        assert_eq!(outcome.reasons, [FinishReason::MaxTokens]);
        // Nothing but an end is left.
        let over = alone(&ruled(seed, 5, &[9], &[EOG.0, 9]), 16);
        assert_eq!(over.tokens.len(), 1);
        assert_eq!(over.reasons, [FinishReason::EndOfSequence]);
    }
}

/// Outcome where the model's file suppresses these tokens.
fn suppressing(tokens: &[TokenId], request: Submission) -> Outcome {
    let id = request.request;
    let limits = Limits {
        suppressed: tokens.to_vec(),
        ..limits()
    };
    let mut bench = Bench::new(limits, 16, true);
    bench.submit(request);
    bench.run();
    bench.outcome(id.0).clone()
}

#[test]
fn suppressed_tokens_are_never_drawn() {
    let suppressed: Vec<_> = (0..VOCAB).filter(|id| id % 3 == 1).map(TokenId).collect();
    let mut differ = 0;
    for seed in 0..30 {
        let plain = submission(seed, &[1, 2, 3], 30);
        let outcome = suppressing(&suppressed, plain.clone());
        assert_eq!(outcome.tokens.len(), 30);
        assert!(
            outcome
                .tokens
                .iter()
                .all(|token| !suppressed.contains(token))
        );
        differ += usize::from(outcome != suppressing(&[], plain));
        let allowed = [3, 4, 7];
        let outcome = suppressing(&suppressed, ruled(seed, 0, &[], &allowed));
        assert!(outcome.tokens.iter().all(|token| token.0 == 3));
        // Nothing else is left.
        let outcome = suppressing(&suppressed, ruled(seed, 0, &[], &[4, 7]));
        assert!(outcome.tokens.iter().all(|token| [4, 7].contains(&token.0)));
    }
    assert!(differ > 20, "{differ}");
}

#[test]
fn a_grammar_goes_on_with_a_suppressed_token_if_no_other_fits() {
    let suppressed = TokenId(13);
    let mut drawn = 0;
    for seed in 0..50 {
        let outcome = suppressing(&[suppressed], constrained(seed, &[1, 2, 3], 20));
        let reason = &outcome.reasons[..];
        assert!(
            matches!(
                reason,
                [FinishReason::EndOfSequence | FinishReason::MaxTokens]
            ),
            "{reason:?}"
        );
        drawn += usize::from(outcome.tokens.contains(&suppressed));
    }
    assert!((1..50).contains(&drawn), "{drawn}");
}

#[test]
fn a_grammar_s_tokens_are_those_that_the_rules_leave() {
    // Sometimes it is the only token of a mask.
    let forbidden = TokenId(13);
    let allowed: Vec<u32> = (0..VOCAB).filter(|id| *id != forbidden.0).collect();
    let mut failed = 0;
    for seed in 0..50 {
        let under_both = with(constrained(seed, &[1, 2, 3], 20), |it| {
            rule(it, 4, &[12, 14], &allowed);
        });
        let outcome = alone(&under_both, 16);
        assert!(!outcome.tokens.contains(&forbidden), "{outcome:?}");
        match &outcome.reasons[..] {
            [FinishReason::GrammarFailed { message }] => {
                assert!(message.contains("allowed_token_ids"), "{message}");
                failed += 1;
            }
            [FinishReason::EndOfSequence] => {
                assert!([EOG.0, 12, 14].contains(&outcome.tokens.last().unwrap().0));
            }
            reasons => assert_eq!(reasons, [FinishReason::MaxTokens]),
        }
    }
    assert!((1..50).contains(&failed), "{failed}");
}

#[test]
fn a_history_goes_on_where_it_was_and_steps_ahead_change_nothing() {
    let allowed: Vec<u32> = (0..VOCAB).filter(|token| token % 3 != 1).collect();
    for seed in 0..20 {
        let ruled = ruled(seed, 8, &[9, 20, 21], &allowed);
        let whole = alone(&ruled, 16);
        for known in 0..whole.tokens.len() {
            let rest = Submission {
                generated: whole.tokens[..known].to_vec(),
                ..ruled.clone()
            };
            assert_eq!(alone(&rest, 16).tokens, whole.tokens[known..], "{known}");
        }
        let mut ahead = Bench::new(limits(), 16, true).ahead();
        ahead.submit(ruled);
        ahead.run();
        assert_eq!(ahead.outcome(seed), &whole);
    }
}

#[test]
fn lists_that_are_no_tokens_in_order_are_refused() {
    for (stop, allowed) in [
        (&[VOCAB][..], &[][..]),
        (&[3, 2], &[]),
        (&[], &[2, 2]),
        (&[], &[1, VOCAB]),
    ] {
        let mut bench = Bench::new(limits(), 16, true);
        bench.submit(ruled(1, 0, stop, allowed));
        bench.run();
        let reason = bench.only_reason(1);
        assert!(matches!(reason, FinishReason::Refused { .. }), "{reason:?}");
    }
}
