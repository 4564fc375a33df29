//! Division of a step's attention: page tables, and tiles of rows.
//!
//! Computed once per step, used by every layer.

use super::Tile;
use crate::device::common::batch::blocks_of;
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::cuda::headers::constant;
use crate::device::cuda::kv::PageGroups;
use crate::device::{Batch, SequenceWork};
use crate::model::Heads;

/// (token, query head) rows of a tensor-core step.
const TILE_ROWS: usize = 16;
/// The same for a block of `attention_wgmma.cu`.
const WIDE_ROWS: usize = constant!("attention_wgmma.cu", WIDE_ROWS);
/// Minimum rows of a sequence for such a block.
const ENOUGH_ROWS: usize = WIDE_ROWS / 2;
/// Multiprocessors per block that a step must have. With fewer blocks, small tiles are faster
/// (`bench/results/cuda.md`).
const MULTIPROCESSORS_A_BLOCK: usize = 5;
/// Positions of a split, and its number of pages.
pub const SPLIT: usize = constant!("attention.cuh", SPLIT);
pub const SPLIT_PAGES: usize = SPLIT / PAGE_TOKENS;

/// A step with drafts advances by several positions, so the number of splits soon changes. A number above the first of
/// these is rounded up to a multiple of the second, so that a graph serves hundreds of positions. Blocks of splits that
/// no row has end at once.
const EXACT_SPLITS: usize = 2;
const SPLITS_STEP: usize = 4;

#[derive(Debug)]
pub struct AttentionPlan {
    /// Page tables of all sequences, concatenated, by group of layers with attention.
    pub tables: Vec<Vec<i32>>,
    /// Start of each sequence in the tables.
    pub starts: Vec<i32>,
    /// Tiles for each kind of heads.
    pub heads: Vec<TilePlan>,
}

/// Heads of a kind of layers.
#[derive(Debug, Clone, Copy)]
pub struct HeadKind {
    pub heads: Heads,
    /// Number of multiprocessors, if the heads have a kernel with wide tiles.
    pub wide_on: Option<usize>,
}

/// Division of the rows of a step, for heads of one kind.
#[derive(Debug, Default)]
pub struct TilePlan {
    /// Tiles of few rows, then wide ones: those of the sequences with many rows, ordered by splits, the most last.
    pub tiles: Vec<Tile>,
    /// Number of tiles of few rows.
    pub narrow_tiles: usize,
    /// Sequences of these tiles.
    pub narrow: Narrow,
    /// Splits of the longest of these sequences.
    pub splits: usize,
}

/// Sequences with attention in tiles of few rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Narrow {
    pub sequences: usize,
    pub rows: usize,
    /// End of their last row in the batch.
    pub end: usize,
}

impl Narrow {
    /// Each sequence has one token.
    #[must_use]
    pub fn decode(&self) -> bool {
        self.sequences == self.rows
    }

    /// These sequences precede all others.
    #[must_use]
    pub fn come_first(&self) -> bool {
        self.rows == self.end
    }
}

impl AttentionPlan {
    /// # Panics
    /// If the batch violates its contract: a page table too short, or an empty sequence.
    #[must_use]
    pub fn new(
        batch: &Batch<'_>,
        kinds: impl IntoIterator<Item = HeadKind>,
        groups: PageGroups,
    ) -> Self {
        let mut plan = Self {
            tables: vec![Vec::new(); groups.attention],
            starts: Vec::new(),
            heads: Vec::new(),
        };
        for work in batch.sequences {
            plan.add_table(work, groups);
        }
        let tiles = kinds
            .into_iter()
            .map(|kind| TilePlan::new(batch, kind, &plan.starts, groups));
        plan.heads = tiles.collect();
        plan
    }

    /// Rounds the number of splits up, for a step with drafts.
    pub fn round_splits(&mut self) {
        for tiles in &mut self.heads {
            tiles.splits = rounded(tiles.splits);
        }
    }

    /// A kind of heads has tiles of many rows.
    #[must_use]
    pub fn has_wide_tiles(&self) -> bool {
        self.heads.iter().any(|it| !it.wide_tiles().is_empty())
    }

    /// Adds the page table of a sequence.
    fn add_table(&mut self, work: &SequenceWork<'_>, groups: PageGroups) {
        let groups = groups.all();
        self.starts.push(self.tables[0].len() as i32);
        let pages = &work.pages[..blocks_of(work, groups) * groups];
        for (group, table) in self.tables.iter_mut().enumerate() {
            let pages = pages.iter().skip(group).step_by(groups);
            table.extend(pages.map(|page| page.0 as i32));
        }
    }
}

impl TilePlan {
    /// `starts`: of each sequence in the tables.
    fn new(batch: &Batch<'_>, kind: HeadKind, starts: &[i32], groups: PageGroups) -> Self {
        let HeadKind { heads, wide_on } = kind;
        let mut plan = Self {
            splits: 1,
            ..Self::default()
        };
        let has_wide = wide_on.is_some_and(|multiprocessors| {
            let tiles = |work| rows_of(work, heads).div_ceil(WIDE_ROWS);
            let wide = batch.sequences.iter().filter(|it| is_wide(it, heads));
            let blocks = wide.map(tiles).sum::<usize>() * heads.kv_count;
            blocks * MULTIPROCESSORS_A_BLOCK >= multiprocessors
        });
        let mut wide_tiles = Vec::new();
        let mut row0 = 0;
        for (work, table) in batch.sequences.iter().zip(starts) {
            let tiles = Tiles {
                row0,
                rows: rows_of(work, heads),
                position0: work.first_position as usize,
                table: *table,
            };
            row0 += work.tokens.len();
            if has_wide && is_wide(work, heads) {
                wide_tiles.extend(tiles.of(WIDE_ROWS));
                continue;
            }
            plan.tiles.extend(tiles.of(TILE_ROWS));
            plan.narrow.sequences += 1;
            plan.narrow.rows += work.tokens.len();
            plan.narrow.end = row0;
            let blocks = blocks_of(work, groups.all());
            plan.splits = plan.splits.max(blocks.div_ceil(SPLIT_PAGES));
        }
        let group = heads.group() as i32;
        wide_tiles
            .sort_by_key(|tile: &Tile| tile.position0 + (tile.first + tile.count - 1) / group);
        plan.narrow_tiles = plan.tiles.len();
        plan.tiles.extend(wide_tiles);
        plan
    }

    #[must_use]
    pub fn wide_tiles(&self) -> &[Tile] {
        &self.tiles[self.narrow_tiles..]
    }
}

fn rounded(splits: usize) -> usize {
    match splits {
        0..=EXACT_SPLITS => splits,
        _ => splits.next_multiple_of(SPLITS_STEP),
    }
}

/// (token, query head) rows per sequence and key-value head.
fn rows_of(work: &SequenceWork<'_>, heads: Heads) -> usize {
    work.tokens.len() * heads.group()
}

/// The sequence uses wide tiles. A decoding sequence never does, however large its groups of heads.
fn is_wide(work: &SequenceWork<'_>, heads: Heads) -> bool {
    work.tokens.len() > 1 && rows_of(work, heads) >= ENOUGH_ROWS
}

/// Rows of a sequence to cut into tiles.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    row0: usize,
    rows: usize,
    position0: usize,
    table: i32,
}

impl Tiles {
    fn of(self, rows: usize) -> impl Iterator<Item = Tile> {
        (0..self.rows).step_by(rows).map(move |first| Tile {
            row0: self.row0 as i32,
            first: first as i32,
            count: (self.rows - first).min(rows) as i32,
            position0: self.position0 as i32,
            table: self.table,
        })
    }
}

#[cfg(test)]
mod tests;
