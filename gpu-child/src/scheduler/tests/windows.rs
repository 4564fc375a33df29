//! Sliding-window layers: pages outside the window are released, and no answer changes.

use super::adoption::{has_ended, rest};
use super::*;
use crate::device::SlidingGroups;
use worker_orcd_ipc::SealedPage;

pub fn groups() -> impl Strategy<Value = KvGroups> {
    let checkpoints = proptest::option::of(1_u32..6);
    let sliding = (1_u32..3, 1_u32..20, 1_u32..12, checkpoints);
    let sliding = sliding.prop_map(|(count, window, ahead, checkpoints)| SlidingGroups {
        count,
        window,
        ahead,
        checkpoints,
    });
    let some = (0_u32..3, sliding).prop_map(|(full, sliding)| KvGroups {
        full,
        sliding: Some(sliding),
    });
    prop_oneof![Just(KvGroups::ONE), some]
}

const WINDOW: u32 = 6;

/// One full-attention group, and two with a window of six positions.
const GROUPS: KvGroups = KvGroups {
    full: 1,
    sliding: Some(SlidingGroups {
        count: 2,
        window: WINDOW,
        ahead: 8,
        checkpoints: None,
    }),
};

fn bench(pages: u32) -> Bench {
    Bench::with_groups(limits(), pages, true, GROUPS)
}

#[test]
fn pages_behind_the_window_are_given_back_while_a_sequence_goes_on() {
    let mut bench = bench(64);
    bench.submit(submission(1, &[1; 10], 50));
    let mut most = 0;
    while bench.turn(5) {
        let tokens = 10
            + bench
                .outcomes
                .get(&RequestId(1))
                .map_or(0, |it| it.tokens.len());
        let used = bench.scheduler.kv_used_bytes() / 100;
        // One page for each block of the first group; of the others the window, and a chunk.
        let sliding = 2 * (1 + (WINDOW as usize + 8).div_ceil(4));
        let wanted = tokens.div_ceil(4) + 1 + sliding;
        assert!(used as usize <= wanted, "{used} pages for {tokens} tokens");
        most = most.max(used);
    }
    assert_eq!(bench.outcome(1).tokens.len(), 50);
    assert!(most < 3 * 60 / 4, "{most} pages");
}

#[test]
fn a_sequence_fits_where_its_windows_do() {
    // 60 tokens have 15 blocks; a window of six lies in three of them at most.
    let least = 15 + 2 * 3;
    for (pages, tokens) in [(least, 50), (least - 1, 47)] {
        let mut bench = bench(pages);
        bench.submit(submission(1, &[1; 10], 50));
        bench.run();
        assert_eq!(bench.outcome(1).tokens.len(), tokens, "{pages} pages");
    }
    // As a prompt it fits, too.
    let mut bench = bench(least);
    bench.submit(submission(2, &[1; 58], 2));
    bench.run();
    assert_eq!(bench.outcome(2).tokens.len(), 2);
}

#[test]
fn a_beginning_is_shared_as_far_as_its_last_window_is_there() {
    let mut bench = bench(64);
    bench.submit(submission(1, &[3; 30], 8));
    bench.run();
    bench.submit(submission(2, &[3; 30], 2));
    bench.run();
    // Seven blocks of 4 before the last token.
    assert_eq!(bench.scheduler.load().counters.prefix_hit_tokens, 28);
    let expected = alone_with_groups(&submission(2, &[3; 30], 2), 64, GROUPS);
    assert_eq!(bench.outcome(2), &expected);
}

/// Like a recurrent state: a position reads its block and the one before, and few blocks are kept.
fn groups_of_states(every: u32) -> KvGroups {
    let sliding = SlidingGroups {
        count: 2,
        window: PAGE_TOKENS + 1,
        ahead: 8,
        checkpoints: Some(every),
    };
    KvGroups {
        full: 1,
        sliding: Some(sliding),
    }
}

fn bench_of_states(every: u32) -> Bench {
    Bench::with_groups(limits(), 64, true, groups_of_states(every))
}

/// The next turn has the prompt and the answer of this one; another answer to the same prompt has the prompt alone.
#[test]
fn the_states_at_the_ends_of_a_prompt_and_of_an_answer_are_found_by_the_next_turn() {
    let mut bench = bench_of_states(100);
    bench.submit(submission(1, &[3; 30], 8));
    bench.run();
    let mut next: Vec<u32> = vec![3; 30];
    next.extend(bench.outcome(1).tokens.iter().map(|token| token.0));
    next.extend([4; 3]);
    let saved = |bench: &Bench| bench.scheduler.load().counters.prefix_hit_tokens;
    bench.submit(submission(2, &next, 2));
    bench.run();
    // 37 of the 38 tokens of the first turn are computed, in 9 whole blocks.
    assert_eq!(saved(&bench), 36);
    let mut other = vec![3; 30];
    other.extend([5; 9]);
    bench.submit(submission(3, &other, 2));
    bench.run();
    assert_eq!(saved(&bench), 36 + 28, "the last full block of the prompt");
    let mut other = vec![3; 25];
    other.extend([6; 9]);
    bench.submit(submission(4, &other, 2));
    bench.run();
    assert_eq!(saved(&bench), 36 + 28 + 24, "the block before");
    let mut other = vec![3; 16];
    other.extend([7; 9]);
    bench.submit(submission(5, &other, 2));
    bench.run();
    assert_eq!(saved(&bench), 36 + 28 + 24, "no state is kept there");
}

#[test]
fn states_are_kept_at_regular_blocks_on_the_way() {
    let mut bench = bench_of_states(3);
    bench.submit(submission(1, &[3; 60], 2));
    bench.run();
    let mut other = vec![3; 30];
    other.extend([7; 9]);
    bench.submit(submission(2, &other, 2));
    bench.run();
    // The sixth block of 4.
    assert_eq!(bench.scheduler.load().counters.prefix_hit_tokens, 24);
    let expected = alone_with_groups(&submission(2, &other, 2), 64, groups_of_states(3));
    assert_eq!(bench.outcome(2), &expected);
}

/// A dying child has released the pages outside its windows, and other sequences have written there.
#[test]
fn what_windows_see_is_adopted_and_nothing_else_is_needed() {
    let first = submission(1, &[1; 30], 30);
    let expected = alone_with_groups(&first, 64, GROUPS);
    for turns in 2..34 {
        let mut dead = bench(64);
        let mut known = BTreeMap::new();
        dead.submit(first.clone());
        for _ in 0..turns {
            dead.turn_and_seal(&mut known);
        }
        while let Some(page) = dead.scheduler.cache.allocate() {
            dead.device.pages[page.0 as usize] = [Some(TokenId(49)); PAGE_TOKENS as usize];
        }
        let pages = &known[&first.request];
        let told: u32 = pages.iter().step_by(3).map(|page| page.tokens).sum();
        let mut successor = bench(64);
        successor.take_over(rest(&first, &dead, pages), &dead.device);
        let load = successor.scheduler.load();
        assert_eq!(
            (load.counters.adopted_tokens, load.counters.changed_pages),
            (u64::from(told), 0)
        );
        successor.run();
        let before = dead.outcomes.get(&first.request);
        let before = before.map_or(&[][..], |outcome| &outcome.tokens);
        let tokens = [before, &successor.outcome(1).tokens].concat();
        assert_eq!(tokens, expected.tokens, "{turns} turns");
    }
}

/// Pages that are not full, or were released, are not copied before their request arrives.
#[test]
fn whole_pages_alone_are_copied_ahead() {
    let first = submission(1, &[1; 30], 30);
    let mut dead = bench(64);
    let mut known = BTreeMap::new();
    dead.submit(first.clone());
    while dead.turn_and_seal(&mut known) {
        let pages = &known[&first.request];
        let mut successor = bench(64);
        let mut given_back = 0;
        for page in pages {
            let copy = successor.scheduler.make_room_ahead(*page);
            assert_eq!(copy.is_some(), page.tokens == PAGE_TOKENS, "{page:?}");
            given_back += u32::from(*page == SealedPage::GIVEN_BACK);
            if let Some(copy) = copy {
                let is_intact = successor.device.adopt(&copy, &dead.device);
                successor.scheduler.keep_ahead(copy, is_intact);
            }
        }
        let tokens: u32 = pages.iter().step_by(3).map(|page| page.tokens).sum();
        assert!(given_back < tokens, "the first group gives nothing back");
        if has_ended(&dead, first.request) {
            break;
        }
        successor.take_over(rest(&first, &dead, pages), &dead.device);
        assert_eq!(
            successor.scheduler.load().counters.adopted_tokens,
            u64::from(tokens)
        );
    }
}

/// Unanswered seals hold back no page that another sequence needs.
#[test]
fn who_has_no_other_pages_does_not_wait_for_seals() {
    let mut bench = bench(15 + 2 * 3);
    bench.submit(submission(1, &[1; 10], 50));
    while bench.turn(5) {
        bench.scheduler.take_unsealed(2);
    }
    assert_eq!(bench.outcome(1).tokens.len(), 50);
}

/// Others would get a share of each step, and be parked again before they finish.
#[test]
fn where_pages_are_short_the_prompt_that_runs_for_longest_goes_first() {
    for (are_short, expected) in [(false, [2, 3]), (true, [5, 0])] {
        let mut bench = bench(64);
        bench.submit(submission(1, &[1; 40], 1));
        bench.turn(5);
        let short = Submission {
            client: ClientId(1),
            ..submission(2, &[2; 20], 1)
        };
        bench.submit(short);
        bench.turn(5);
        assert_eq!(bench.scheduler.running.len(), 2);
        bench.scheduler.planned = vec![0; 2];
        bench.scheduler.share_out(5, are_short);
        assert_eq!(bench.scheduler.planned, expected);
    }
}
