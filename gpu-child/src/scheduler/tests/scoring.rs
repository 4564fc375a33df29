//! Prompts with log probabilities, beside prompts without.

use super::*;
use crate::logprobs::PromptPart;
use worker_orcd_ipc::{PromptLogprobs, Scored};

impl PagedDevice {
    /// A number computed from the token after a row, and from all tokens up to the row as they are in the pages.
    pub(super) fn scored(
        &mut self,
        work: &[SequenceWork<'_>],
        wanted: Vec<PromptPart>,
    ) -> Vec<Scored> {
        let scored = wanted.into_iter().map(|part| {
            let rows = self.hidden(work, &[part.request]);
            let rows = rows.iter().filter(|row| row.position >= part.first);
            let of = |(row, token): (&crate::pooling::HiddenRow, &TokenId)| Logprobs {
                of_token: number(row.values[0], *token),
                rank: 1,
                top: vec![],
            };
            let logprobs: Vec<_> = rows.zip(&part.tokens).map(of).collect();
            assert_eq!(logprobs.len(), part.tokens.len(), "a row is missing");
            Scored {
                request: part.request,
                first: part.first,
                logprobs,
            }
        });
        scored.collect()
    }
}

fn number(row: f32, token: TokenId) -> f32 {
    -(row * 64.0 + token.0 as f32)
}

impl Bench {
    pub(super) fn hear_scored(&mut self, scored: Vec<Scored>) {
        self.scheduler.score(&scored);
        for part in scored {
            let told = self.scored.entry(part.request).or_default();
            assert!(!self.outcomes.contains_key(&part.request), "after a token");
            assert_eq!(part.first as usize, told.len(), "once, and in order");
            told.extend(part.logprobs);
        }
    }
}

fn scoring(request: u64, prompt: &[u32], max_tokens: u32, told: u32) -> Submission {
    Submission {
        prompt_logprobs: Some(PromptLogprobs {
            top: 0,
            reported: told,
        }),
        ..submission(request, prompt, max_tokens)
    }
}

/// The definition, without pages and chunks.
fn expected(prompt: &[u32]) -> Vec<f32> {
    let mut sum = 0.0;
    let row = |pair: &[u32]| {
        sum = sum * 0.5 + pair[0] as f32;
        number(sum, TokenId(pair[1]))
    };
    prompt.windows(2).map(row).collect()
}

fn scores_of(bench: &Bench, request: u64) -> Vec<f32> {
    let told = bench.scored.get(&RequestId(request));
    told.into_iter().flatten().map(|it| it.of_token).collect()
}

#[test]
fn all_of_a_prompt_is_told_before_a_token_and_also_where_none_is_wanted() {
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5];
    for max_tokens in [0, 1, 5] {
        let mut bench = Bench::new(limits(), 20, true);
        // Cached pages of other requests yield no log probabilities.
        bench.submit(submission(1, &prompt, 2));
        bench.run();
        bench.submit(scoring(2, &prompt, max_tokens, 0));
        bench.run();
        assert_eq!(scores_of(&bench, 2), expected(&prompt));
        let tokens = &bench.outcome(2).tokens;
        assert_eq!(tokens.len(), max_tokens as usize);
        assert_eq!(bench.only_reason(2), &FinishReason::MaxTokens);
        assert_eq!(bench.scheduler.load().counters.prefix_hit_tokens, 0);
        let plain = alone(&submission(2, &prompt, max_tokens), 20);
        assert_eq!(*tokens, plain.tokens, "the draw is another");
        // It has filled the cache.
        bench.submit(submission(3, &prompt, 1));
        bench.run();
        assert_eq!(bench.scheduler.load().counters.prefix_hit_tokens, 8);
    }
}

#[test]
fn a_prompt_of_one_token_has_nothing_to_tell() {
    for max_tokens in [0, 3] {
        let mut bench = Bench::new(limits(), 20, true);
        bench.submit(scoring(1, &[3], max_tokens, 0));
        bench.run();
        assert_eq!(scores_of(&bench, 1), [0.0; 0]);
        assert_eq!(bench.outcome(1).tokens.len(), max_tokens as usize);
    }
}

#[test]
fn forced_tokens_come_behind_what_is_told_of_the_prompt() {
    let prompt: Vec<u32> = (10..30).collect();
    let mut bench = Bench::new(limits(), 20, true);
    bench.play.forces = true;
    let request = constraint::constrained(1, &prompt, 30);
    let whole = alone(&request, 20);
    let grammar = request.params.grammar.clone();
    bench.submit(with(scoring(1, &prompt, 30, 0), |it| it.grammar = grammar));
    bench.run();
    assert_eq!(scores_of(&bench, 1), expected(&prompt));
    assert_eq!(bench.outcome(1).tokens, whole.tokens);
    assert!(bench.play.taken > 0, "nothing was forced");
}

#[test]
fn another_child_tells_what_was_not_told_and_takes_over_pages_before_that() {
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5];
    for (before, reused) in [(0, 0), (3, 0), (5, 4), (7, 4), (8, 8)] {
        let mut bench = Bench::new(limits(), 20, true);
        bench.submit(submission(1, &prompt, 1));
        bench.run();
        let known = expected(&prompt).into_iter().take(before as usize);
        let known = known.map(|it| Logprobs {
            of_token: it,
            rank: 1,
            top: vec![],
        });
        bench.scored.insert(RequestId(2), known.collect());
        bench.submit(scoring(2, &prompt, 2, before));
        bench.run();
        assert_eq!(scores_of(&bench, 2), expected(&prompt), "{before}");
        let hits = bench.scheduler.load().counters.prefix_hit_tokens;
        assert_eq!(hits, reused, "{before}");
    }
}

#[test]
fn a_step_has_no_more_of_them_than_its_reader_has_time_for_and_others_have_the_rest() {
    let mut limits = limits();
    limits.max_batch_tokens = 100;
    let mut bench = Bench::new(limits, 40, true);
    let prompt: Vec<u32> = (10..40).collect();
    for request in 1..=2 {
        bench.submit(scoring(request, &prompt, 1, 0));
    }
    bench.submit(submission(3, &prompt, 1));
    let rows = |bench: &Bench| scores_of(bench, 1).len() + scores_of(bench, 2).len();
    assert!(bench.turn(100));
    let most = crate::scheduler::scoring::ROWS;
    assert!((1..=most).contains(&rows(&bench)), "{}", rows(&bench));
    assert!(
        bench.outcomes.contains_key(&RequestId(3)),
        "the other waits"
    );
    bench.run();
    for request in 1..=2 {
        assert_eq!(scores_of(&bench, request), expected(&prompt));
    }
}

proptest! {
    #[test]
    fn whatever_is_beside_them_they_are_the_same(
        prompts in prop::collection::vec(
            (prop::collection::vec(8_u32..12, 1..20), 0_u32..30, any::<bool>()),
            1..12,
        ),
        chunk in 1_u32..9,
        // Few: decoding sequences evict others.
        pages in 12_u32..20,
        is_ahead in any::<bool>(),
    ) {
        let mut bench = Bench::new(limits(), pages, true);
        bench.is_ahead = is_ahead;
        for (request, (prompt, max_tokens, scores)) in (0..).zip(&prompts) {
            bench.submit(match scores {
                true => scoring(request, prompt, *max_tokens, 0),
                false => submission(request, prompt, 30),
            });
            bench.turn(chunk);
        }
        bench.run();
        for (request, (prompt, max_tokens, scores)) in (0..).zip(&prompts) {
            if *scores {
                prop_assert_eq!(scores_of(&bench, request), expected(prompt));
                let tokens = bench.outcome(request).tokens.len();
                prop_assert_eq!(tokens, *max_tokens as usize);
            }
        }
    }
}
