//! A draft model: the tokens are those without, in fewer steps. Its device reads its own pages only, and checks that they
//! hold the text before each draft.

use super::*;
use crate::device::SlidingGroups;

fn of_model() -> DraftModelLimits {
    DraftModelLimits {
        vocab_size: VOCAB,
        max_sequence_tokens: 64,
        max_batch_tokens: 40,
    }
}

impl Bench {
    /// Adds a draft model with these pages, which errs at one of so many tokens.
    fn drafting(self, pages: u32, errs: Option<u64>) -> Self {
        self.drafting_with(of_model(), pages, errs, KvGroups::ONE)
    }

    fn drafting_with(
        mut self,
        limits: DraftModelLimits,
        pages: u32,
        errs: Option<u64>,
        groups: KvGroups,
    ) -> Self {
        let geometry = KvGeometry {
            page_tokens: PAGE_TOKENS,
            pages,
            page_bytes: 100,
            groups,
        };
        self.scheduler = self
            .scheduler
            .with_draft_model(limits, KvPages::new(geometry, true));
        let mut device = PagedDevice::new(geometry);
        (device.errs, device.checks_history) = (errs, groups == KvGroups::ONE);
        device.checks_groups = true;
        self.draft = Some(device);
        self
    }

    pub(super) fn turn_of_draft_model(&mut self) {
        let Some(device) = &mut self.draft else {
            return;
        };
        let mut turn = self.scheduler.draft_turn().unwrap();
        if !turn.begin(self.draft_chunk) {
            return;
        }
        loop {
            let work = turn.work();
            if work.is_empty() {
                break;
            }
            let rows: usize = work.iter().map(|it| it.tokens.len()).sum();
            assert!(rows <= of_model().max_batch_tokens as usize, "{rows} rows");
            self.draft_rows += rows;
            device.begin(&work);
            let samples = work.iter().flat_map(SequenceWork::samples);
            let draws: Vec<_> = samples.map(Some).collect();
            let drawn = device.draw(&draws);
            drop(work);
            turn.take(&drawn).unwrap();
        }
        turn.end();
    }

    fn counted(&self) -> [u64; 2] {
        let counters = self.scheduler.load().counters;
        assert_eq!(
            self.drafted,
            [counters.draft_tokens, counters.accepted_draft_tokens],
            "each request is told of its own"
        );
        [
            counters.model_draft_tokens,
            counters.accepted_model_draft_tokens,
        ]
    }
}

fn plain(request: u64, max_tokens: u32) -> Submission {
    submission(request, &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11], max_tokens)
}

fn without_drafts(submission: &Submission) -> Outcome {
    alone(submission, 64)
}

/// With the noise of the served model, each draft of an equal model is right.
#[test]
fn an_equal_model_is_always_right() {
    for is_ahead in [false, true] {
        for request in 0..40 {
            let mut bench = Bench::new(limits(), 64, true).drafting(64, None);
            bench.is_ahead = is_ahead;
            bench.submit(plain(request, 40));
            bench.run();
            let expected = without_drafts(&plain(request, 40));
            assert_eq!(bench.outcome(request), &expected);
            let [offered, accepted] = bench.counted();
            assert_eq!(accepted, offered, "{request}");
            assert!(accepted >= 30, "{accepted} of {offered}");
            assert!(bench.step < 20, "{} steps", bench.step);
        }
    }
}

#[test]
fn a_model_that_errs_changes_no_token() {
    for (errs, least, most) in [(8, 1000, 1500), (2, 400, 1000), (1, 0, 0)] {
        let (mut offered, mut accepted) = (0, 0);
        for request in 0..40 {
            let mut bench = Bench::new(limits(), 64, true).drafting(64, Some(errs));
            bench.is_ahead = request % 2 == 0;
            bench.submit(plain(request, 40));
            bench.run();
            let expected = without_drafts(&plain(request, 40));
            assert_eq!(bench.outcome(request), &expected);
            let counted = bench.counted();
            offered += counted[0];
            accepted += counted[1];
        }
        assert!(offered > accepted, "{accepted} of {offered}");
        assert!(
            (least..=most).contains(&accepted),
            "{accepted} of {offered}, one of {errs} wrong"
        );
    }
}

/// Sequences of different lengths, of which some decline, some end early and some have rules on tokens.
#[test]
fn many_sequences_draft_together() {
    let mut bench = Bench::new(limits(), 96, true).drafting(96, Some(6));
    let of = |request: u64| {
        let prompt: Vec<u32> = (0..3 + 2 * request as u32).map(|it| it % 40 + 8).collect();
        with(submission(request, &prompt, 10 + request as u32), |it| {
            it.without_drafts = request % 5 == 3;
            it.ignore_eos = request.is_multiple_of(3);
            it.min_tokens = request as u32 % 4;
            it.sampling.temperature = 0.5;
        })
    };
    for request in 0..16 {
        bench.submit(of(request));
    }
    bench.run();
    for request in 0..16 {
        assert_eq!(bench.outcome(request), &without_drafts(&of(request)));
    }
    assert!(bench.counted()[1] > 20, "{:?}", bench.counted());
}

#[test]
fn the_text_goes_before_the_model() {
    let text: Vec<u32> = [1, 2, 3].into_iter().cycle().take(14).collect();
    let (mut all, mut of_model) = (0, [0; 2]);
    for request in 0..20 {
        let mut bench = Bench::new(limits(), 64, true).drafting(64, None);
        bench.device.echoes = Some(3);
        bench.draft.as_mut().unwrap().echoes = Some(3);
        bench.submit(submission(request, &text, 40));
        bench.run();
        all += bench.scheduler.load().counters.draft_tokens;
        let counted = bench.counted();
        of_model = [0, 1].map(|at| of_model[at] + counted[at]);
    }
    let [offered, accepted] = of_model;
    assert!(
        offered == accepted && accepted > 0,
        "{accepted} of {offered}"
    );
    assert!(all > offered + 100, "{offered} of {all}");
}

/// Its cache has room for one of two sequences.
#[test]
fn a_sequence_without_room_in_the_model_goes_on_without_it() {
    let mut bench = Bench::new(limits(), 96, true).drafting(13, Some(9));
    bench.submit(plain(1, 40));
    bench.submit(with(plain(2, 40), |it| it.min_tokens = 1));
    bench.run();
    for request in [1, 2] {
        assert_eq!(
            bench.outcome(request),
            &without_drafts(&with(plain(request, 40), |it| {
                it.min_tokens = u32::from(request == 2);
            }))
        );
    }
    assert!(bench.counted()[1] > 20, "{:?}", bench.counted());
}

#[test]
fn a_sequence_beyond_the_reach_of_the_model_goes_on_without_it() {
    let limits_of_model = DraftModelLimits {
        max_sequence_tokens: 20,
        ..of_model()
    };
    for is_ahead in [false, true] {
        let bench = Bench::new(limits(), 64, true);
        let mut bench = bench.drafting_with(limits_of_model, 64, None, KvGroups::ONE);
        bench.is_ahead = is_ahead;
        bench.submit(plain(1, 40));
        bench.run();
        assert_eq!(bench.outcome(1), &without_drafts(&plain(1, 40)));
        let [offered, accepted] = bench.counted();
        assert!((1..=10).contains(&accepted), "{accepted} of {offered}");
    }
}

#[test]
fn tokens_outside_the_vocabulary_of_the_model_end_its_drafts() {
    let limits_of_model = DraftModelLimits {
        vocab_size: 49,
        ..of_model()
    };
    let mut seen = [0; 2];
    for request in 0..60 {
        let bench = Bench::new(limits(), 64, true);
        let mut bench = bench.drafting_with(limits_of_model, 64, None, KvGroups::ONE);
        // Never beyond its vocabulary, whatever the served model samples.
        bench.scheduler.limits.suppressed = Vec::new();
        let own = with(plain(request, 40), |it| {
            it.logit_bias = [(TokenId(3), 1.0), (TokenId(49), 1.0)].into();
            it.allowed_token_ids = (0..49).map(TokenId).collect();
        });
        let own = match request % 2 {
            0 => own,
            _ => with(own, |it| {
                it.allowed_token_ids = (0..50).map(TokenId).collect()
            }),
        };
        bench.draft.as_mut().unwrap().vocab = 49;
        bench.submit(own.clone());
        bench.run();
        assert_eq!(bench.outcome(request), &without_drafts(&own));
        let has_it = bench.outcome(request).tokens.contains(&TokenId(49));
        seen[usize::from(has_it)] += bench.counted()[1];
    }
    assert!(seen[0] > seen[1] && seen[1] > 0, "{seen:?}");
}

/// Groups of a model with windows.
fn with_windows() -> KvGroups {
    let sliding = SlidingGroups {
        count: 2,
        window: 6,
        ahead: 4,
        checkpoints: None,
    };
    KvGroups {
        full: 1,
        sliding: Some(sliding),
    }
}

/// Layers with windows: pages are released behind the positions that became tokens.
#[test]
fn windows_of_the_model_keep_what_a_rejected_draft_needs() {
    let groups = with_windows();
    let (mut offered, mut accepted) = (0, 0);
    for request in 0..20 {
        let bench = Bench::with_groups(limits(), 96, true, groups);
        let mut bench = bench.drafting_with(of_model(), 64, Some(4), groups);
        bench.submit(plain(request, 40));
        bench.run();
        let expected = alone_with_groups(&plain(request, 40), 96, groups);
        assert_eq!(bench.outcome(request), &expected);
        offered += bench.counted()[0];
        accepted += bench.counted()[1];
    }
    assert!(
        accepted > 200 && offered > accepted,
        "{accepted} of {offered}"
    );
}

/// Prompts that begin as an earlier one are in its cache.
#[test]
fn the_model_keeps_prefixes() {
    let prompt: Vec<u32> = (0..40).map(|it| it + 8).collect();
    let mut bench = Bench::new(limits(), 64, true).drafting(64, None);
    let mut rows = Vec::new();
    for request in 1..3 {
        let before = bench.draft_rows;
        bench.submit(submission(request, &prompt, 20));
        bench.run();
        rows.push(bench.draft_rows - before);
        let [offered, accepted] = bench.counted();
        assert_eq!(offered, accepted);
    }
    // The answers have about as many rows in both.
    assert!(rows[0] >= 40 && rows[1] <= rows[0] - 30, "{rows:?}");
    let accepted = bench.counted()[1];
    assert!(
        accepted > 25,
        "{accepted}: the second has no chunk to wait for"
    );
}

/// The pages of its windows hold a part of a chunk.
#[test]
fn a_model_with_windows_follows_in_smaller_chunks_where_pages_are_few() {
    let groups = with_windows();
    let prompt: Vec<u32> = (0..36).map(|it| it + 8).collect();
    let own = submission(1, &prompt, 24);
    let expected = alone_with_groups(&own, 96, groups);
    // All text in the full group, and six pages in the windows: those of a position and the 5 before it.
    for (pages, drafts) in [(15 + 6, true), (9 + 6 - 1, false)] {
        let bench = Bench::with_groups(limits(), 96, true, groups);
        let mut bench = bench.drafting_with(of_model(), pages, None, groups);
        bench.draft_chunk = 36;
        bench.submit(own.clone());
        bench.run();
        assert_eq!(bench.outcome(1), &expected);
        let [offered, accepted] = bench.counted();
        assert_eq!(offered, accepted);
        assert_eq!(accepted > 5, drafts, "{accepted} with {pages} pages");
    }
}

/// Its turn has begun, and sequences have some of its drafts.
#[test]
fn a_model_that_is_removed_in_its_turn_changes_no_token() {
    let requests = [plain(1, 40), with(plain(2, 40), |it| it.min_tokens = 3)];
    for turns in [1, 2, 4, 6] {
        let mut bench = Bench::new(limits(), 96, true).drafting(96, None);
        requests.iter().for_each(|it| bench.submit(it.clone()));
        for _ in 0..turns {
            bench.turn(5);
        }
        while !bench.scheduler.draft_turn().unwrap().begin(100) {
            assert!(bench.turn(5), "the requests have ended");
        }
        let mut turn = bench.scheduler.draft_turn().unwrap();
        let work = turn.work();
        let device = bench.draft.as_mut().unwrap();
        device.begin(&work);
        let draws: Vec<_> = work
            .iter()
            .flat_map(SequenceWork::samples)
            .map(Some)
            .collect();
        let drawn = device.draw(&draws);
        drop(work);
        turn.take(&drawn).unwrap();
        bench.scheduler.remove_draft_model();
        bench.draft = None;
        assert!(bench.scheduler.draft_turn().is_none());
        bench.run();
        for own in &requests {
            assert_eq!(bench.outcome(own.request.0), &without_drafts(own));
        }
    }
}

#[test]
fn a_grammar_ends_the_drafts_that_it_forbids() {
    let (mut offered, mut accepted) = (0, 0);
    for request in 0..40 {
        let own = constraint::constrained(request, &[1, 2, 3], 40);
        let mut bench = Bench::new(limits(), 64, true).drafting(64, None);
        bench.is_ahead = request % 2 == 0;
        bench.play.forces = request % 3 == 0;
        bench.play.drafted_at_once = 15;
        bench.submit(own.clone());
        bench.run();
        assert_eq!(bench.outcome(request), &alone(&own, 64));
        offered += bench.counted()[0];
        accepted += bench.counted()[1];
    }
    assert!(
        accepted > 0 && offered > accepted,
        "{accepted} of {offered}"
    );
}

#[test]
fn a_device_that_answers_for_another_request_is_found() {
    let mut bench = Bench::new(limits(), 64, true).drafting(64, None);
    bench.submit(plain(1, 40));
    while bench.outcomes.is_empty() {
        bench.turn(5);
    }
    while !bench.scheduler.draft_turn().unwrap().begin(100) {
        bench.turn(5);
    }
    let drawn = |request, token| Drawn {
        request: RequestId(request),
        index: 1,
        token: TokenId(token),
    };
    let take = |bench: &mut Bench, drawn: &[Drawn]| {
        let mut turn = bench.scheduler.draft_turn().unwrap();
        turn.take(drawn)
    };
    let missing = take(&mut bench, &[]);
    let expected = SchedulerError::DrawnCount {
        expected: 1,
        found: 0,
    };
    assert_eq!(missing, Err(expected));
    let other = take(&mut bench, &[drawn(2, 3)]);
    assert_eq!(other, Err(SchedulerError::NotToBeDrawn(RequestId(1))));
}
