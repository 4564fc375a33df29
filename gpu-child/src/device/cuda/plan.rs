//! Layout of a batch for the device: rows, page tables, attention tiles, and the rows that draw.
//!
//! Computed once per step, used by every layer.

use super::headers::constant;
use super::kernels::{Row, Tile};
use super::states::{PageGroups, StatePlan};
use crate::device::common::batch::{DrawingRow, blocks_of, drawing_rows, index_of};
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::{Batch, SequenceWork, TO_BE_DRAWN};
use crate::model::ModelConfig;
use worker_orcd_ipc::RequestId;

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

#[derive(Debug)]
pub struct Plan<'a> {
    pub sequences: &'a [SequenceWork<'a>],
    /// Tokens of the batch. A token that is not drawn yet is the complement of its index among
    /// the draws of the previous step.
    pub rows: Vec<Row>,
    /// Page tables of all sequences, concatenated, by group of layers with attention.
    pub tables: Vec<Vec<i32>>,
    /// Pages of recurrent states.
    pub states: StatePlan,
    pub tiles: Vec<Tile>,
    /// Tiles of the sequences with many rows, ordered by splits, the most last.
    pub wide_tiles: Vec<Tile>,
    pub drawing: Vec<DrawingRow>,
    /// Sequences of `tiles`.
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

impl<'a> Plan<'a> {
    /// `before` has the requests that the previous step draws for, in order. On a device with wide tiles,
    /// `wide_on` is the number of multiprocessors.
    ///
    /// # Panics
    /// If the batch violates its contract: a page table too short, an empty sequence, a token
    /// outside the vocabulary, or one that the previous step does not draw.
    #[must_use]
    pub fn new(
        batch: &Batch<'a>,
        config: &ModelConfig,
        groups: PageGroups,
        before: &[RequestId],
        wide_on: Option<usize>,
    ) -> Self {
        let mut plan = Self {
            sequences: batch.sequences,
            rows: Vec::new(),
            tables: vec![Vec::new(); groups.attention],
            states: StatePlan::default(),
            tiles: Vec::new(),
            wide_tiles: Vec::new(),
            narrow: Narrow::default(),
            drawing: drawing_rows(batch.sequences),
            splits: 1,
        };
        // Batches keep their order, so the next one is usually the match.
        let mut order = (0..).zip(before).cycle();
        let mut place = |request: RequestId| {
            let found = order
                .by_ref()
                .take(before.len())
                .find(|(_, other)| **other == request);
            found.expect("a token that the step before draws").0
        };
        let has_wide = wide_on.is_some_and(|multiprocessors| {
            let tiles = |work| rows_of(work, config).div_ceil(WIDE_ROWS);
            let wide = batch.sequences.iter().filter(|it| is_wide(it, config));
            let blocks = wide.map(tiles).sum::<usize>() * config.n_kv_heads;
            blocks * MULTIPROCESSORS_A_BLOCK >= multiprocessors
        });
        for work in batch.sequences {
            let row0 = plan.rows.len();
            let table = plan.add_rows(work, config, groups, &mut place);
            plan.states.add(work, groups);
            let tiles = Tiles {
                row0,
                rows: rows_of(work, config),
                position0: work.first_position as usize,
                table,
            };
            if has_wide && is_wide(work, config) {
                plan.wide_tiles.extend(tiles.of(WIDE_ROWS));
                continue;
            }
            plan.tiles.extend(tiles.of(TILE_ROWS));
            plan.narrow.sequences += 1;
            plan.narrow.rows += work.tokens.len();
            plan.narrow.end = plan.rows.len();
            let blocks = blocks_of(work, groups.all());
            plan.splits = plan.splits.max(blocks.div_ceil(SPLIT_PAGES));
        }
        let group = (config.n_heads / config.n_kv_heads) as i32;
        plan.wide_tiles
            .sort_by_key(|tile| tile.position0 + (tile.first + tile.count - 1) / group);
        plan
    }

    /// Adds rows and page table of a sequence; returns the start of the table.
    fn add_rows(
        &mut self,
        work: &SequenceWork<'_>,
        config: &ModelConfig,
        groups: PageGroups,
        place: &mut dyn FnMut(RequestId) -> i32,
    ) -> usize {
        let groups = groups.all();
        let table = self.tables[0].len();
        let pages = &work.pages[..blocks_of(work, groups) * groups];
        for (group, tables) in self.tables.iter_mut().enumerate() {
            let pages = pages.iter().skip(group).step_by(groups);
            tables.extend(pages.map(|page| page.0 as i32));
        }
        for (position, token) in (work.first_position..).zip(work.tokens) {
            let token = if *token == TO_BE_DRAWN {
                !place(work.request)
            } else {
                index_of(*token, config.vocab_size) as i32
            };
            self.rows.push(Row {
                token,
                position: position as i32,
                table: table as i32,
                unused: 0,
            });
        }
        table
    }
}

/// (token, query head) rows per sequence and key-value head.
fn rows_of(work: &SequenceWork<'_>, config: &ModelConfig) -> usize {
    work.tokens.len() * (config.n_heads / config.n_kv_heads)
}

/// The sequence uses wide tiles. A decoding sequence never does, however large its groups of heads.
fn is_wide(work: &SequenceWork<'_>, config: &ModelConfig) -> bool {
    work.tokens.len() > 1 && rows_of(work, config) >= ENOUGH_ROWS
}

/// Rows of a sequence to cut into tiles.
#[derive(Debug, Clone, Copy)]
struct Tiles {
    row0: usize,
    rows: usize,
    position0: usize,
    table: usize,
}

impl Tiles {
    fn of(self, rows: usize) -> impl Iterator<Item = Tile> {
        (0..self.rows).step_by(rows).map(move |first| Tile {
            row0: self.row0 as i32,
            first: first as i32,
            count: (self.rows - first).min(rows) as i32,
            position0: self.position0 as i32,
            table: self.table as i32,
        })
    }
}

#[cfg(test)]
mod tests;
