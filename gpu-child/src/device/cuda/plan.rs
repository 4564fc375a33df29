//! A batch laid out for the device: rows, page tables, attention tiles, and the rows that draw.
//!
//! Decided once a step, used by every layer.

use super::headers::constant;
use super::kernels::{Row, Tile};
use crate::device::common::batch::{DrawingRow, drawing_rows, index_of, pages_of};
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::{Batch, SequenceWork, TO_BE_DRAWN};
use crate::model::ModelConfig;
use worker_orcd_ipc::RequestId;

/// Rows of a tensor-core step.
const TILE_ROWS: usize = 16;
/// Positions of a split, and its pages.
pub const SPLIT: usize = constant!("attention.cuh", SPLIT);
pub const SPLIT_PAGES: usize = SPLIT / PAGE_TOKENS;

#[derive(Debug)]
pub struct Plan<'a> {
    pub sequences: &'a [SequenceWork<'a>],
    /// Tokens of the batch. A token that is still to be drawn is the complement of its place among
    /// the draws of the step before.
    pub rows: Vec<Row>,
    pub tables: Vec<i32>,
    pub tiles: Vec<Tile>,
    pub drawing: Vec<DrawingRow>,
    /// Splits of the longest sequence.
    pub splits: usize,
}

impl<'a> Plan<'a> {
    /// `before` are the requests that the step before draws for, in order.
    ///
    /// # Panics
    /// When the batch breaks its contract: a page table too short, an empty sequence, a token
    /// outside the vocabulary, or one that the step before does not draw.
    #[must_use]
    pub fn new(batch: &Batch<'a>, config: &ModelConfig, before: &[RequestId]) -> Self {
        let mut plan = Self {
            sequences: batch.sequences,
            rows: Vec::new(),
            tables: Vec::new(),
            tiles: Vec::new(),
            drawing: drawing_rows(batch.sequences),
            splits: 1,
        };
        // Batches keep their order, so the one behind is mostly the one looked for.
        let mut order = (0..).zip(before).cycle();
        let mut place = |request: RequestId| {
            let found = order
                .by_ref()
                .take(before.len())
                .find(|(_, other)| **other == request);
            found.expect("a token that the step before draws").0
        };
        for work in batch.sequences {
            plan.add(work, config, &mut place);
        }
        plan
    }

    fn add(
        &mut self,
        work: &SequenceWork<'_>,
        config: &ModelConfig,
        place: &mut dyn FnMut(RequestId) -> i32,
    ) {
        let pages = pages_of(work);
        let (row0, table) = (self.rows.len() as i32, self.tables.len() as i32);
        self.tables
            .extend(work.pages[..pages].iter().map(|page| page.0 as i32));
        for (position, token) in (work.first_position..).zip(work.tokens) {
            let token = if *token == TO_BE_DRAWN {
                !place(work.request)
            } else {
                index_of(*token, config.vocab_size) as i32
            };
            self.rows.push(Row {
                token,
                position: position as i32,
                table,
                unused: 0,
            });
        }
        let in_tiles = work.tokens.len() * (config.n_heads / config.n_kv_heads);
        for first in (0..in_tiles).step_by(TILE_ROWS) {
            self.tiles.push(Tile {
                row0,
                first: first as i32,
                count: (in_tiles - first).min(TILE_ROWS) as i32,
                position0: work.first_position as i32,
                table,
            });
        }
        self.splits = self.splits.max(pages.div_ceil(SPLIT_PAGES));
    }
}
