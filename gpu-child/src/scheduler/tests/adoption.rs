//! One child continues with the pages of another, even if these have changed since.

use super::*;
use crate::device::{PageCopy, PagePart};
use worker_orcd_ipc::{Generation, SealedPage, SealedPages};

/// Positions after which a page is sealed.
const EVERY: u32 = 2;

impl PagedDevice {
    /// Stands for the checksum of a page: other tokens have another.
    fn checksum(&self, part: PagePart) -> u128 {
        let tokens = &self.pages[part.page.0 as usize][..part.tokens as usize];
        let known = tokens
            .iter()
            .map(|token| token.map_or(0, |it| u128::from(it.0) + 1));
        known.fold(0, |sum, token| sum * 1000 + token)
    }

    pub fn adopt(&mut self, copy: &PageCopy, other: &Self) -> bool {
        let sealed = copy.tokens as usize;
        let place = &mut self.pages[copy.to.0 as usize];
        *place = [None; PAGE_TOKENS as usize];
        place[..sealed].copy_from_slice(&other.pages[copy.from as usize][..sealed]);
        let is_intact = self.checksum(PagePart {
            page: copy.to,
            group: copy.group,
            tokens: copy.tokens,
        }) == copy.checksum;
        if !is_intact {
            self.pages[copy.to.0 as usize] = [None; PAGE_TOKENS as usize];
        }
        is_intact
    }
}

impl Bench {
    /// Runs a turn of a child that seals, and updates the supervisor's list of each request's pages.
    pub fn turn_and_seal(&mut self, known: &mut BTreeMap<RequestId, Vec<SealedPage>>) -> bool {
        let goes_on = self.turn(5);
        let unsealed = self.scheduler.take_unsealed(EVERY);
        let device = &self.device;
        let checksums = unsealed.iter().map(|part| device.checksum(*part));
        self.scheduler.learn_seals(checksums.collect());
        for sealing in self.scheduler.take_sealed(EVERY) {
            let pages = known.entry(sealing.request).or_default();
            assert!(sealing.first as usize <= pages.len(), "no gap");
            pages.truncate(sealing.first as usize);
            pages.extend(sealing.pages);
            let groups = self.device.geometry.groups.count();
            let whole = &pages[..pages.len().saturating_sub(groups)];
            let is_whole = |page: &SealedPage| page.tokens == PAGE_TOKENS;
            let is_given_back = |page: &SealedPage| *page == SealedPage::GIVEN_BACK;
            assert!(
                whole
                    .iter()
                    .all(|page| is_whole(page) || is_given_back(page))
            );
        }
        goes_on
    }

    /// Takes a request over from another child. Returns the number of pages copied up to one that was not intact.
    pub fn take_over(&mut self, submission: Submission, other: &PagedDevice) -> usize {
        self.take_over_all(vec![submission], other)
    }

    /// Takes several requests over together.
    fn take_over_all(&mut self, submissions: Vec<Submission>, other: &PagedDevice) -> usize {
        let make_room = |it: &Submission| self.scheduler.make_room_for(it);
        let adoptions: Vec<_> = submissions.iter().map(make_room).collect();
        let copies = adoptions.iter().flat_map(Adoption::copies);
        let intact: Vec<_> = copies.map(|copy| self.device.adopt(&copy, other)).collect();
        let mut answers = intact.iter().copied();
        for (submission, adoption) in submissions.into_iter().zip(adoptions) {
            let submitted = self
                .scheduler
                .submit_with(submission, adoption, &mut answers);
            submitted.unwrap();
        }
        assert_eq!(answers.next(), None, "each answer is somebody's");
        intact.iter().take_while(|intact| **intact).count()
    }

    /// Copies whole pages of another child, before any request arrives.
    fn copy_ahead(&mut self, pages: &[SealedPage], other: &PagedDevice) {
        let whole = pages.split_last().map_or(&[][..], |(_, whole)| whole);
        for page in whole {
            let copy = self.scheduler.make_room_ahead(*page).expect("a free page");
            let is_intact = self.device.adopt(&copy, other);
            self.scheduler.keep_ahead(copy, is_intact);
        }
    }
}

/// The submission of a request to the next child.
pub fn rest(first: &Submission, bench: &Bench, pages: &[SealedPage]) -> Submission {
    let outcome = bench.outcomes.get(&first.request);
    Submission {
        generated: outcome.map_or_else(Vec::new, |it| it.tokens.clone()),
        sealed: Some(SealedPages {
            child: Generation(1),
            pages: pages.to_vec(),
        }),
        ..first.clone()
    }
}

pub fn has_ended(bench: &Bench, request: RequestId) -> bool {
    let outcome = bench.outcomes.get(&request);
    outcome.is_some_and(|outcome| !outcome.reasons.is_empty())
}

#[test]
fn what_was_sealed_is_adopted_and_not_computed_again() {
    let first = submission(1, &[1; 10], 30);
    let expected = alone(&first, 32);
    let mut dead = Bench::new(limits(), 32, true);
    let mut known = BTreeMap::new();
    dead.submit(first.clone());
    for _ in 0..10 {
        dead.turn_and_seal(&mut known);
    }
    let pages = &known[&first.request];
    let history = 10 + dead.outcome(1).tokens.len();
    let sealed = pages.iter().map(|page| page.tokens).sum::<u32>();
    assert_eq!(sealed, (history as u32 - 1) / EVERY * EVERY);
    assert!(
        !sealed.is_multiple_of(PAGE_TOKENS),
        "the last page is not full"
    );
    let mut successor = Bench::new(limits(), 32, true);
    let intact = successor.take_over(rest(&first, &dead, pages), &dead.device);
    assert_eq!(intact, pages.len());
    let load = successor.scheduler.load();
    assert_eq!(load.counters.adopted_tokens, u64::from(sealed));
    assert_eq!(load.counters.changed_pages, 0);
    let tail = u64::from(PAGE_TOKENS);
    assert_eq!(load.kv_used_tokens, tail, "its own, while it waits");
    successor.turn(100);
    assert_eq!(successor.outcome(1).tokens.len(), 1, "the rest is one step");
    successor.run();
    let tokens = [&dead.outcome(1).tokens[..], &successor.outcome(1).tokens].concat();
    assert_eq!(tokens, expected.tokens);
}

#[test]
fn a_page_that_has_changed_ends_the_adoption_there_and_is_counted() {
    let first = submission(1, &[1; 20], 30);
    let mut dead = Bench::new(limits(), 32, true);
    let mut known = BTreeMap::new();
    dead.submit(first.clone());
    for _ in 0..8 {
        dead.turn_and_seal(&mut known);
    }
    let pages = &known[&first.request];
    dead.device.pages[pages[2].page as usize][0] = Some(TokenId(49));
    let mut successor = Bench::new(limits(), 32, true);
    assert_eq!(
        successor.take_over(rest(&first, &dead, pages), &dead.device),
        2
    );
    let load = successor.scheduler.load();
    assert_eq!(
        (load.counters.adopted_tokens, load.counters.changed_pages),
        (8, 1)
    );
    successor.run();
    let tokens = [&dead.outcome(1).tokens[..], &successor.outcome(1).tokens].concat();
    assert_eq!(tokens, alone(&first, 32).tokens);
}

#[test]
fn a_page_that_was_copied_ahead_is_not_copied_again_and_may_change_at_its_origin() {
    let first = submission(1, &[1; 20], 30);
    let mut dead = Bench::new(limits(), 32, true);
    let mut successor = Bench::new(limits(), 32, true);
    let mut known = BTreeMap::new();
    dead.submit(first.clone());
    for _ in 0..8 {
        dead.turn_and_seal(&mut known);
    }
    let pages = &known[&first.request];
    // One of them has changed by then, and is copied in its turn.
    let origin = pages[2].page as usize;
    let contents = dead.device.pages[origin];
    dead.device.pages[origin] = [None; PAGE_TOKENS as usize];
    successor.copy_ahead(pages, &dead.device);
    dead.device.pages[origin] = contents;
    assert_eq!(
        successor.scheduler.load().kv_used_tokens,
        0,
        "they are nobody's"
    );
    for (at, page) in pages.split_last().expect("pages").1.iter().enumerate() {
        if at != 2 {
            dead.device.pages[page.page as usize] = [Some(TokenId(49)); PAGE_TOKENS as usize];
        }
    }
    let copied = successor.take_over(rest(&first, &dead, pages), &dead.device);
    assert_eq!(copied, 2, "that one, and the last");
    let sealed = pages.iter().map(|page| u64::from(page.tokens)).sum::<u64>();
    let load = successor.scheduler.load();
    assert_eq!(
        (load.counters.adopted_tokens, load.counters.changed_pages),
        (sealed, 0)
    );
    successor.scheduler.forget_ahead();
    successor.run();
    let tokens = [&dead.outcome(1).tokens[..], &successor.outcome(1).tokens].concat();
    assert_eq!(tokens, alone(&first, 32).tokens);
}

#[test]
fn what_is_no_whole_page_of_this_cache_is_not_copied_ahead() {
    let mut successor = Bench::new(limits(), 8, true);
    let mut room = |page, tokens| {
        successor.scheduler.make_room_ahead(SealedPage {
            page,
            tokens,
            checksum: 1,
        })
    };
    assert_eq!(room(8, PAGE_TOKENS), None);
    assert_eq!(room(7, PAGE_TOKENS - 1), None);
    assert!(room(7, PAGE_TOKENS).is_some());
}

/// Takes over this many requests of other children, each with a partial page.
fn take_over_with_tails(successor: &mut Bench, requests: u32, max_tokens: u32) {
    for n in 0..requests {
        let request = submission(u64::from(n), &[n + 1; 5], max_tokens);
        let mut dead = Bench::new(limits(), 16, true);
        let mut known = BTreeMap::new();
        dead.submit(request.clone());
        let has_tail = |known: &BTreeMap<_, Vec<SealedPage>>| {
            let last = known.values().find_map(|pages| pages.last());
            last.is_some_and(|page| page.tokens < PAGE_TOKENS)
        };
        while dead.outcomes.is_empty() || !has_tail(&known) {
            assert!(dead.turn_and_seal(&mut known));
        }
        let pages = &known[&request.request];
        successor.take_over(rest(&request, &dead, pages), &dead.device);
    }
    let tails = u64::from(requests * PAGE_TOKENS);
    assert_eq!(successor.scheduler.load().kv_used_tokens, tails);
}

fn one_at_a_time(pages: u32) -> Bench {
    let limits = Limits {
        max_running: 1,
        ..limits()
    };
    Bench::new(limits, pages, true)
}

fn assert_all_get_to_the_end(mut successor: Bench) {
    successor.run();
    for outcome in successor.outcomes.values() {
        assert_eq!(outcome.reasons, [FinishReason::MaxTokens]);
    }
}

#[test]
fn nobody_ends_for_want_of_a_page_that_another_waits_with() {
    let mut successor = one_at_a_time(8);
    take_over_with_tails(&mut successor, 4, 21);
    assert_all_get_to_the_end(successor);
}

#[test]
fn a_request_before_which_nobody_may_begin_gets_the_pages_that_others_wait_with() {
    let mut successor = one_at_a_time(16);
    successor.submit(submission(99, &[49; 61], 1));
    successor.scheduler.waiting[0].passed_by = Some(room::PATIENCE);
    take_over_with_tails(&mut successor, 12, 4);
    assert_all_get_to_the_end(successor);
}

#[test]
fn a_request_that_ends_while_it_waits_leaves_no_page_behind() {
    let first = submission(1, &[1; 10], 30);
    let mut dead = Bench::new(limits(), 32, true);
    let mut known = BTreeMap::new();
    dead.submit(first.clone());
    for _ in 0..10 {
        dead.turn_and_seal(&mut known);
    }
    let mut successor = Bench::new(limits(), 32, true);
    let mut refused = rest(&first, &dead, &known[&first.request]);
    Arc::make_mut(&mut refused.params).max_tokens = 1;
    successor.take_over(refused, &dead.device);
    successor.take_over(rest(&first, &dead, &known[&first.request]), &dead.device);
    successor.scheduler.cancel(first.request);
    successor.run();
}

#[test]
fn an_answer_that_comes_late_is_not_taken_for_that_to_a_newer_question() {
    let mut bench = Bench::new(limits(), 8, true);
    bench.submit(submission(1, &[1; 2], 9));
    let page = PageId(0);
    for tokens in [2, 4] {
        while bench.turn(100) {
            let asked = bench.scheduler.take_unsealed(EVERY);
            if !asked.is_empty() {
                assert_eq!(
                    asked,
                    [PagePart {
                        page,
                        group: 0,
                        tokens
                    }]
                );
                break;
            }
        }
    }
    bench.scheduler.learn_seals(vec![100]);
    assert_eq!(bench.scheduler.take_unsealed(EVERY), [], "it is asked once");
    assert_eq!(bench.scheduler.take_sealed(EVERY), []);
    bench.scheduler.learn_seals(vec![200]);
    let [sealing] = &bench.scheduler.take_sealed(EVERY)[..] else {
        panic!("one request");
    };
    let sealed = SealedPage {
        page: page.0,
        tokens: 4,
        checksum: 200,
    };
    assert_eq!(sealing.pages, [sealed]);
    assert_eq!(bench.scheduler.take_sealed(EVERY), [], "it is told once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_request_gets_what_it_would_get_alone_over_two_children(
        prompts in prop::collection::vec((prop::collection::vec(1_u32..3, 1..30), 1_u32..25), 1..8),
        pages in 8_u32..24,
        turns in 0_usize..40,
        changed in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        is_ahead in any::<bool>(),
        copies_ahead in any::<bool>(),
        at_once in any::<bool>(),
    ) {
        let requests: Vec<_> = (0..)
            .zip(&prompts)
            .map(|(request, (prompt, max_tokens))| submission(request, prompt, *max_tokens))
            .collect();
        let mut dead = Bench::new(limits(), pages, true);
        if is_ahead {
            dead = dead.ahead();
        }
        let mut known = BTreeMap::new();
        for request in &requests {
            dead.submit(request.clone());
        }
        let mut successor = Bench::new(limits(), pages, true);
        for _ in 0..turns {
            dead.turn_and_seal(&mut known);
            for pages in known.values().filter(|_| copies_ahead) {
                successor.copy_ahead(pages, &dead.device);
            }
        }
        for index in &changed {
            let page = index.index(pages as usize);
            dead.device.pages[page] = [Some(TokenId(49)); PAGE_TOKENS as usize];
        }
        let left = requests.iter().filter(|it| !has_ended(&dead, it.request));
        let left: Vec<_> = left
            .map(|it| {
                let pages = known.get(&it.request).cloned().unwrap_or_default();
                rest(it, &dead, &pages)
            })
            .collect();
        for part in left.chunks(if at_once { usize::MAX } else { 1 }) {
            successor.take_over_all(part.to_vec(), &dead.device);
        }
        if changed.is_empty() {
            prop_assert_eq!(successor.scheduler.load().counters.changed_pages, 0, "nobody changed one");
        }
        successor.run();
        for request in &requests {
            let of = |bench: &Bench| bench.outcomes.get(&request.request).cloned().unwrap_or_default();
            let (before, after) = (of(&dead), of(&successor));
            let expected = alone(request, pages);
            let tokens = [&before.tokens[..], &after.tokens].concat();
            prop_assert_eq!(tokens, expected.tokens);
            let reasons = [before.reasons, after.reasons].concat();
            prop_assert_eq!(reasons, expected.reasons);
        }
    }
}
