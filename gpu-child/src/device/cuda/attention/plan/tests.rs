//! Assignment of sequences to tiles.

use super::*;
use crate::device::PageId;
use worker_orcd_ipc::{RequestId, TokenId};

const H200: Option<usize> = Some(132);
const HEADS: usize = 28;
const KV_HEADS: usize = 4;
const GROUP: usize = HEADS / KV_HEADS;

/// Parts of a plan that the tests inspect.
struct Seen {
    tiles: Vec<Tile>,
    wide_tiles: Vec<Tile>,
    narrow: Narrow,
    splits: usize,
}

/// Plan of sequences with these numbers of tokens after these numbers of positions.
fn plan(sequences: &[(usize, u32)], wide_on: Option<usize>) -> Seen {
    let tokens = vec![TokenId(1); 9000];
    let pages = vec![PageId(0); 1000];
    let work = |(index, &(count, first_position)): (usize, &(usize, u32))| SequenceWork {
        request: RequestId(index as u64),
        tokens: &tokens[..count],
        first_position,
        pages: &pages,
        sample: None,
        drafts: 0,
    };
    let sequences: Vec<_> = sequences.iter().enumerate().map(work).collect();
    let batch = Batch {
        step: 0,
        sequences: &sequences,
    };
    let groups = PageGroups {
        attention: 1,
        states: 0,
    };
    let heads = Heads {
        count: HEADS,
        kv_count: KV_HEADS,
        dim: 128,
    };
    let plan = AttentionPlan::new(&batch, [HeadKind { heads, wide_on }], groups);
    let plan = &plan.heads[0];
    Seen {
        tiles: plan.tiles[..plan.narrow_tiles].to_vec(),
        wide_tiles: plan.wide_tiles().to_vec(),
        narrow: plan.narrow,
        splits: plan.splits,
    }
}

/// Asserts that the tiles have every row of these sequences once, within the maximum of a tile.
fn assert_covered(tiles: &[Tile], sequences: &[(usize, usize)], most: i32) {
    for &(row0, tokens) in sequences {
        let mut mine: Vec<_> = tiles.iter().filter(|it| it.row0 == row0 as i32).collect();
        mine.sort_by_key(|tile| tile.first);
        let mut next = 0;
        for tile in mine {
            assert_eq!(tile.first, next);
            assert!((1..=most).contains(&tile.count));
            next += tile.count;
        }
        assert_eq!(next as usize, tokens * GROUP);
    }
}

#[test]
fn a_long_prompt_comes_into_wide_tiles() {
    let seen = plan(&[(1000, 500)], H200);
    assert!(seen.tiles.is_empty());
    assert_covered(&seen.wide_tiles, &[(0, 1000)], 128);
    assert_eq!(seen.wide_tiles.len(), 7000_usize.div_ceil(128));
    assert_eq!(seen.narrow, Narrow::default());
}

#[test]
fn a_device_without_wide_tiles_gets_none() {
    let seen = plan(&[(1000, 500)], None);
    assert!(seen.wide_tiles.is_empty());
    assert_covered(&seen.tiles, &[(0, 1000)], 16);
    assert_eq!(seen.splits, 12);
}

#[test]
fn what_would_leave_most_of_the_device_idle_stays_in_small_tiles() {
    let few = |tokens| plan(&[(tokens, 0)], H200).wide_tiles.is_empty();
    assert!(few(20) && few(109));
    assert!(!few(110));
}

#[test]
fn prompts_and_decoding_sequences_of_a_step_get_tiles_of_their_own() {
    let seen = plan(&[(1, 4000), (1, 70), (300, 600), (200, 0), (5, 90)], H200);
    assert_covered(&seen.tiles, &[(0, 1), (1, 1), (502, 5)], 16);
    assert_covered(&seen.wide_tiles, &[(2, 300), (302, 200)], 128);
    // Splits of the longest sequence in small tiles.
    assert_eq!(seen.splits, 32);
    let narrow = Narrow {
        sequences: 3,
        rows: 7,
        end: 507,
    };
    assert_eq!(seen.narrow, narrow);
    assert!(!narrow.decode() && !narrow.come_first());

    let seen = plan(&[(1, 4000), (1, 70), (500, 600)], H200);
    assert!(seen.narrow.decode() && seen.narrow.come_first());
}

#[test]
fn the_longest_rows_come_last() {
    let wide = plan(&[(300, 6000), (300, 0), (300, 2000)], H200).wide_tiles;
    let last = |tile: &Tile| tile.position0 + (tile.first + tile.count - 1) / GROUP as i32;
    assert!(wide.is_sorted_by_key(last));
}

#[test]
fn a_sequence_that_decodes_is_in_no_wide_tile() {
    let many = vec![(1, 100); 256];
    let seen = plan(&many, H200);
    assert!(seen.wide_tiles.is_empty());
    assert_eq!(seen.tiles.len(), 256);
    assert!(seen.narrow.decode() && seen.narrow.come_first());
}

#[test]
fn a_step_with_drafts_has_a_few_numbers_of_splits() {
    assert_eq!([1, 2, 3, 4, 5, 8, 9].map(rounded), [1, 2, 4, 4, 8, 8, 12]);
}
