//! Lookup, sharing, caching and eviction of pages.

use super::*;
use crate::device::{KvGroups, SlidingGroups};
use std::collections::BTreeSet;

fn geometry(pages: u32, groups: KvGroups) -> KvGeometry {
    KvGeometry {
        page_tokens: 2,
        pages,
        page_bytes: 64,
        groups,
    }
}

fn cache(pages: u32) -> KvPages {
    KvPages::new(geometry(pages, KvGroups::ONE), true)
}

/// Two full-attention groups, and one with a window of three positions.
fn cache_with_sliding(pages: u32) -> KvPages {
    let sliding = SlidingGroups {
        count: 1,
        window: 3,
        ahead: 4,
        checkpoints: None,
    };
    let groups = KvGroups {
        full: 2,
        sliding: Some(sliding),
    };
    KvPages::new(geometry(pages, groups), true)
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

/// The pages of the cached prefix.
fn find(cache: &mut KvPages, ids: &[u32]) -> Vec<PageId> {
    let prefix = cache.find(&tokens(ids));
    prefix.pages.into_iter().flatten().collect()
}

/// Allocates and publishes pages for all of `ids`.
fn fill(cache: &mut KvPages, ids: &[u32]) -> Vec<PageId> {
    let mut chain = ChainId::ROOT;
    let mut pages = Vec::new();
    for page_tokens in tokens(ids).chunks_exact(2) {
        let page = cache.allocate().unwrap();
        chain = cache.publish(chain, page_tokens, &[Some(page)]);
        pages.push(page);
    }
    pages
}

#[test]
fn a_published_prefix_is_found_and_shared() {
    let mut cache = cache(8);
    let pages = fill(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(find(&mut cache, &[1, 2, 3, 4, 5]), pages);
    assert_eq!(find(&mut cache, &[1, 2, 9, 9]), pages[..1]);
    assert!(find(&mut cache, &[3, 4]).is_empty(), "not at the beginning");
    assert!(!cache.is_private(pages[0]));
    assert_eq!(cache.used_pages(), 2);
}

#[test]
fn equal_tokens_behind_different_beginnings_are_different_pages() {
    let mut cache = cache(8);
    let a = fill(&mut cache, &[1, 1, 7, 7]);
    let b = fill(&mut cache, &[2, 2, 7, 7]);
    assert_eq!(find(&mut cache, &[1, 1, 7, 7]), a);
    assert_eq!(find(&mut cache, &[2, 2, 7, 7]), b);
}

#[test]
fn the_first_of_two_equal_pages_is_the_shared_one() {
    let mut cache = cache(8);
    let a = fill(&mut cache, &[1, 1, 2, 2]);
    let b = fill(&mut cache, &[1, 1, 2, 2]);
    assert_eq!(find(&mut cache, &[1, 1, 2, 2]), a);
    assert!(cache.is_private(b[0]) && cache.is_private(b[1]));
}

#[test]
fn pages_without_users_are_kept_until_room_is_needed() {
    let mut cache = cache(3);
    let a = fill(&mut cache, &[1, 1, 2, 2]);
    cache.release(&a);
    assert_eq!((cache.available_pages(), cache.used_pages()), (3, 0));
    assert_eq!(find(&mut cache, &[1, 1, 2, 2]), a);
    cache.release(&a);
    // One is free, then the end of the chain goes before its front.
    cache.allocate().unwrap();
    cache.allocate().unwrap();
    assert_eq!(find(&mut cache, &[1, 1, 2, 2]), a[..1]);
    assert_eq!(cache.allocate(), None, "the last page has a user");
}

#[test]
fn the_least_recently_used_goes_first() {
    let mut cache = cache(2);
    let a = fill(&mut cache, &[1, 1]);
    let b = fill(&mut cache, &[2, 2]);
    cache.release(&a);
    cache.release(&b);
    let again = find(&mut cache, &[1, 1]);
    cache.release(&again);
    cache.allocate().unwrap();
    assert!(find(&mut cache, &[2, 2]).is_empty());
    assert_eq!(find(&mut cache, &[1, 1]), a);
}

#[test]
fn a_page_that_finds_users_again_and_again_is_noted_once_or_twice() {
    let mut cache = cache(3);
    let a = fill(&mut cache, &[1, 1]);
    for _ in 0..100 {
        cache.release(&a);
        assert_eq!(find(&mut cache, &[1, 1]), a);
    }
    assert!(cache.kept.queue.len() <= 2 * cache.pages.len());
    cache.release(&a);
    assert_eq!(cache.available_pages(), 3);
    assert_eq!(find(&mut cache, &[1, 1]), a, "it is still noted");
}

#[test]
fn an_evicted_page_is_not_found_through_its_old_chain() {
    let mut cache = cache(2);
    let a = fill(&mut cache, &[1, 1, 2, 2]);
    cache.release(&a);
    // Takes both pages, one after the other, and publishes the old front anew.
    let b = fill(&mut cache, &[1, 1, 3, 3]);
    assert_eq!(find(&mut cache, &[1, 1, 2, 2]), b[..1]);
}

#[test]
fn pages_kept_ahead_are_found_by_their_checksum_and_given_to_others_last() {
    let mut cache = cache(4);
    let used = cache.allocate().unwrap();
    assert!(!cache.take_ahead(used) && !cache.take_ahead(PageId(4)));
    for (page, checksum) in [(1, Some(10)), (2, Some(20)), (3, None)] {
        assert!(cache.take_ahead(PageId(page)));
        cache.keep_ahead(PageId(page), checksum);
    }
    assert_eq!((cache.available_pages(), cache.used_pages()), (3, 1));
    assert_eq!(cache.find_ahead(PageId(1), 20), None);
    assert_eq!(cache.find_ahead(PageId(1), 10), Some(PageId(1)));
    assert_eq!(cache.find_ahead(PageId(1), 10), None, "it has a user");
    assert!(cache.is_private(PageId(1)));
    assert_eq!(cache.allocate(), Some(PageId(3)), "the one that is free");
    assert_eq!(cache.allocate(), Some(PageId(2)));
    assert_eq!(cache.find_ahead(PageId(2), 20), None);
    assert_eq!(cache.allocate(), None);
}

#[test]
fn a_page_kept_ahead_may_be_taken_for_something_newer_or_be_forgotten() {
    let mut cache = cache(2);
    for checksum in [10, 11] {
        assert!(cache.take_ahead(PageId(0)));
        assert_eq!(cache.find_ahead(PageId(0), 10), None, "it is being written");
        cache.keep_ahead(PageId(0), Some(checksum));
    }
    cache.forget_ahead();
    assert_eq!(cache.available_pages(), 2);
    assert_eq!(cache.find_ahead(PageId(0), 11), None);
    assert!(cache.allocate().is_some() && cache.allocate().is_some());
}

#[test]
fn without_sharing_nothing_is_found_or_kept() {
    let mut cache = KvPages::new(geometry(4, KvGroups::ONE), false);
    let pages = fill(&mut cache, &[1, 1, 2, 2]);
    assert!(find(&mut cache, &[1, 1, 2, 2]).is_empty());
    assert!(cache.is_private(pages[0]));
    cache.release(&pages);
    assert_eq!(cache.free.len(), 4);
}

/// Allocates and publishes blocks for all of `ids`: full-attention pages, and sliding-window pages from `sliding_from` on.
fn fill_blocks(cache: &mut KvPages, ids: &[u32], sliding_from: usize) -> Vec<[Option<PageId>; 3]> {
    let mut chain = ChainId::ROOT;
    let blocks = tokens(ids);
    let blocks = blocks.chunks_exact(2).enumerate().map(|(index, tokens)| {
        let mut pages = [None; 3];
        let wanted = if index < sliding_from { 2 } else { 3 };
        pages[..wanted].fill_with(|| cache.allocate());
        chain = cache.publish(chain, tokens, &pages);
        pages
    });
    blocks.collect()
}

#[test]
fn a_beginning_is_of_use_where_all_is_there_that_is_seen_from_behind_it() {
    let ids = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut cache = cache_with_sliding(20);
    let blocks = fill_blocks(&mut cache, &ids, 2);
    // After eight positions a window of three sees the last block; after six it sees the third.
    let prefix = cache.find(&tokens(&ids));
    assert_eq!((prefix.blocks, prefix.sliding_from), (4, 3));
    let mut expected = blocks.concat();
    expected[2 * 3 + 2] = None;
    assert_eq!(
        prefix.pages, expected,
        "sliding pages that nobody sees are not taken"
    );
    let shorter = cache.find(&tokens(&ids[..6]));
    assert_eq!((shorter.blocks, shorter.sliding_from), (3, 2));
    // The second block has no sliding-window pages.
    assert_eq!(cache.find(&tokens(&ids[..4])).blocks, 0);
}

#[test]
fn sliding_pages_that_were_given_back_are_evicted_before_their_block() {
    let mut cache = cache_with_sliding(6);
    let blocks = fill_blocks(&mut cache, &[1, 2, 3, 4], 0);
    let (sliding, full) = (blocks[0][2].unwrap(), [blocks[0][0], blocks[0][1]]);
    cache.release(&[sliding]);
    assert_eq!(cache.allocate(), Some(sliding));
    let prefix = cache.find(&tokens(&[1, 2, 3, 4]));
    assert_eq!((prefix.blocks, prefix.sliding_from), (2, 1));
    assert_eq!(prefix.pages[..3], [full[0], full[1], None]);
    assert_eq!(cache.find(&tokens(&[1, 2])).blocks, 0);
}

#[test]
fn without_a_page_of_layers_that_see_all_the_rest_of_a_block_is_free() {
    let mut cache = cache_with_sliding(3);
    let [pages] = fill_blocks(&mut cache, &[1, 2], 0)[..] else {
        panic!("a block")
    };
    let pages = pages.map(Option::unwrap);
    // A full-attention page is the first to be evicted.
    cache.release(&pages[..1]);
    cache.release(&pages[1..]);
    assert_eq!(cache.available_pages(), 3);
    let taken = cache.allocate_all(3).unwrap();
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(cache.find(&tokens(&[1, 2])).blocks, 0);
    assert_eq!((cache.available_pages(), cache.allocate_all(1)), (0, None));
}

#[test]
fn a_sliding_page_that_is_missing_is_filled_in_by_who_computes_it_again() {
    let mut cache = cache_with_sliding(12);
    let first = fill_blocks(&mut cache, &[1, 2], 1);
    let again = fill_blocks(&mut cache, &[1, 2], 0);
    let found = cache.find(&tokens(&[1, 2])).pages;
    assert_eq!(found, [first[0][0], first[0][1], again[0][2]]);
    assert!(
        cache.is_private(again[0][0].unwrap()),
        "the first one's is shared"
    );
}
