//! Drafts: the tokens are those without, in fewer steps.

use super::*;

fn echoing(limits: Limits, pages: u32) -> Bench {
    let mut bench = Bench::new(limits, pages, true);
    bench.device.echoes = Some(3);
    bench
}

fn text(request: u64, max_tokens: u32) -> Submission {
    let prompt: Vec<u32> = [1, 2, 3].into_iter().cycle().take(14).collect();
    submission(request, &prompt, max_tokens)
}

fn without_drafts(submission: &Submission) -> Outcome {
    alone_on(submission, echoing(limits(), 64))
}

#[test]
fn drafts_save_steps_and_change_no_token() {
    for is_ahead in [false, true] {
        let (mut offered, mut accepted) = (0, 0);
        for request in 0..40 {
            let mut bench = echoing(limits(), 64);
            bench.is_ahead = is_ahead;
            bench.submit(text(request, 40));
            bench.run();
            assert_eq!(bench.outcome(request), &without_drafts(&text(request, 40)));
            let counters = bench.scheduler.load().counters;
            assert_eq!(counters.generated_tokens, 40);
            // A prompt of three chunks, and each token that was not accepted as a draft.
            let steps = 2 + 40 - counters.accepted_draft_tokens;
            assert!(bench.step >= steps, "{} steps of {steps}", bench.step);
            assert!(
                is_ahead || bench.step == steps,
                "{} steps of {steps}",
                bench.step
            );
            let counted = [counters.draft_tokens, counters.accepted_draft_tokens];
            assert_eq!(bench.drafted, counted, "each request is told of its own");
            offered += counters.draft_tokens;
            accepted += counters.accepted_draft_tokens;
        }
        assert!(
            accepted > 200 && offered - accepted > 100,
            "{accepted} of {offered}"
        );
    }
}

/// The end is a draft in front of others.
#[test]
fn nothing_counts_behind_an_end() {
    let prompt: Vec<u32> = [1, 2, 3, 4, 5, 6, 8, 10, 11, 9, 12]
        .into_iter()
        .cycle()
        .take(19)
        .collect();
    let bench = || {
        let mut bench = echoing(limits(), 64);
        bench.device.echoes = Some(11);
        bench
    };
    let mut ends = 0;
    for request in 0..100 {
        let ending = with(submission(request, &prompt, 40), |it| {
            it.stop_token_ids = [TokenId(9)].into();
        });
        let mut drafting = bench();
        drafting.submit(ending.clone());
        drafting.run();
        let expected = alone_on(&ending, bench());
        assert_eq!(drafting.outcome(request), &expected);
        let is_end =
            expected.tokens.len() == 2 && expected.reasons == [FinishReason::EndOfSequence];
        ends += u32::from(is_end && drafting.scheduler.load().counters.draft_tokens > 1);
    }
    assert!(ends > 30, "{ends} answers end within their drafts");
}

#[test]
fn drafts_stay_within_the_length_of_the_answer_and_the_context() {
    for max_tokens in 1..60 {
        let mut bench = echoing(limits(), 64);
        bench.submit(text(5, max_tokens));
        bench.run();
        assert_eq!(bench.outcome(5), &without_drafts(&text(5, max_tokens)));
    }
}

#[test]
fn a_draft_costs_no_other_sequence_its_pages() {
    // Each has exactly the pages that its tokens need.
    let pages = 2 * 54_u32.div_ceil(PAGE_TOKENS);
    let mut bench = echoing(limits(), pages);
    for request in [1, 2] {
        let mut own = text(request, 40);
        own.prompt[0] = TokenId(30 + request as u32);
        bench.submit(own);
    }
    for _ in 0..200 {
        bench.turn(5);
        let mut waiting = bench.scheduler.waiting.iter();
        assert!(!waiting.any(|it| it.was_running), "one is parked");
    }
    bench.run();
    assert_eq!(bench.outcome(1).tokens.len(), 40);
    assert!(bench.scheduler.load().counters.accepted_draft_tokens > 0);
}

#[test]
fn a_prediction_saves_steps_and_changes_no_token() {
    let plain = |request| submission(request, &[1, 2, 3], 40);
    let mut saved = 0;
    for request in 0..40 {
        let expected = alone(&plain(request), 64);
        for (changed, least) in [(None, 30), (Some(7), 0), (Some(0), 0)] {
            let mut prediction = expected.tokens.clone();
            if let Some(place) = changed {
                prediction[place] = TokenId(8);
            }
            let mut bench = Bench::new(limits(), 64, true);
            bench.is_ahead = request % 2 == 0;
            bench.submit(with(plain(request), |it| it.prediction = prediction.into()));
            bench.run();
            assert_eq!(bench.outcome(request), &expected, "{changed:?}");
            let accepted = bench.scheduler.load().counters.accepted_draft_tokens;
            assert!(accepted >= least, "{accepted} accepted, {changed:?}");
            saved += accepted;
        }
    }
    assert!(saved > 40 * 40, "{saved}");
}

#[test]
fn a_prediction_outside_the_vocabulary_is_refused() {
    let mut bench = Bench::new(limits(), 64, true);
    bench.submit(with(submission(1, &[1, 2, 3], 40), |it| {
        it.prediction = [TokenId(1), TokenId(VOCAB)].into();
    }));
    bench.run();
    let FinishReason::Refused { message } = bench.only_reason(1) else {
        panic!()
    };
    assert!(message.contains("prediction"), "{message}");
}

#[test]
fn a_request_that_declines_drafts_has_none_beside_others_that_have() {
    let mut bench = echoing(limits(), 64);
    let declining = |request| with(text(request, 30), |it| it.without_drafts = true);
    bench.submit(declining(1));
    bench.run();
    assert_eq!(bench.scheduler.load().counters.draft_tokens, 0);
    bench.submit(text(2, 30));
    bench.submit(declining(3));
    bench.run();
    assert!(bench.scheduler.load().counters.accepted_draft_tokens > 0);
    assert_eq!(bench.outcome(2), &without_drafts(&text(2, 30)));
}

#[test]
fn a_trace_and_a_setting_exclude_drafts() {
    let traced = Limits {
        traces_logits: true,
        ..limits()
    };
    let off = Limits {
        speculates: false,
        ..limits()
    };
    for limits in [traced, off] {
        let mut bench = echoing(limits, 64);
        bench.submit(text(1, 30));
        bench.run();
        assert_eq!(bench.scheduler.load().counters.draft_tokens, 0);
    }
}

/// Masks behind drafts arrive all at once, some of them in time, or none.
#[test]
fn drafts_under_a_grammar_save_steps_and_change_no_token() {
    let counted = [0, 1, 3, 15].map(|drafted_at_once| {
        let mut counted = [0; 2];
        for request in 0..60 {
            let plain = constraint::constrained(request, &[1, 2, 3], 40);
            let plain = with(plain, |it| it.min_tokens = request as u32 % 3 * 9);
            let expected = alone(&plain, 64);
            let mut prediction = expected.tokens.clone();
            if request % 4 == 0 {
                prediction[20] = TokenId(0);
            }
            let mut bench = Bench::new(limits(), 64, true);
            bench.is_ahead = request % 2 == 0;
            bench.play.forces = request % 3 == 0;
            bench.play.drafted_at_once = drafted_at_once;
            bench.submit(with(plain, |it| it.prediction = prediction.into()));
            bench.run();
            assert_eq!(bench.outcome(request), &expected);
            let Counters {
                draft_tokens,
                accepted_draft_tokens,
                ..
            } = bench.scheduler.load().counters;
            assert_eq!(bench.drafted, [draft_tokens, accepted_draft_tokens]);
            counted[0] += accepted_draft_tokens;
            counted[1] += draft_tokens - accepted_draft_tokens;
        }
        counted
    });
    let [accepted, rejected] = [0, 1].map(|at| counted.map(|it| it[at]));
    assert!(accepted.is_sorted_by(|a, b| a < b), "{accepted:?}");
    assert!(accepted[0] == 0 && accepted[3] > 1400, "{accepted:?}");
    // One without a mask in time is rejected.
    assert!(rejected.iter().all(|it| *it > 0), "{rejected:?}");
}

/// A neighbour gets a token in each step, whether masks of drafts arrive or not.
#[test]
fn late_masks_of_drafts_do_not_delay_a_neighbour() {
    let predicted = constraint::constrained(1, &[1, 2, 3], 40);
    let expected = alone(&predicted, 64);
    for (drafted_at_once, tokens) in [(0, 0..25), (15, 40..41)] {
        let mut bench = Bench::new(limits(), 64, true);
        bench.play.drafted_at_once = drafted_at_once;
        bench.submit(with(predicted.clone(), |it| {
            it.prediction = expected.tokens.clone().into();
        }));
        bench.submit(submission(2, &[4, 5], 40));
        for _ in 0..40 {
            bench.turn(5);
        }
        let [own, neighbours] = [1, 2].map(|request| bench.outcome(request).tokens.len());
        assert!(
            tokens.contains(&own),
            "{own} tokens, {drafted_at_once} at once"
        );
        assert_eq!(neighbours as u64, bench.step, "{drafted_at_once} at once");
    }
}
