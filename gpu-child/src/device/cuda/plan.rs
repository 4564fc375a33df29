//! A batch laid out for the device: rows, page tables, attention tiles, and the rows that draw.
//!
//! Decided once a step, used by every layer.

use super::kernels::{Row, Tile};
use crate::device::{Batch, SequenceWork};
use crate::model::ModelConfig;

/// Positions of a page, which is what attention reads at a time (`kv.cuh`, `attention.cu`).
pub const PAGE_TOKENS: usize = 32;
/// Rows of a tensor-core step.
const TILE_ROWS: usize = 16;

#[derive(Debug)]
pub struct Plan<'a> {
    pub sequences: &'a [SequenceWork<'a>],
    pub rows: Vec<Row>,
    pub tables: Vec<i32>,
    pub tiles: Vec<Tile>,
    /// The last row of every sequence that draws, and the sequence.
    pub drawing: Vec<(usize, usize)>,
    /// Splits of the longest sequence: one a page.
    pub splits: usize,
}

impl<'a> Plan<'a> {
    /// # Panics
    /// When the batch breaks its contract: a page table too short, an empty sequence, a token
    /// outside the vocabulary.
    #[must_use]
    pub fn new(batch: &Batch<'a>, config: &ModelConfig) -> Self {
        let mut plan = Self {
            sequences: batch.sequences,
            rows: Vec::new(),
            tables: Vec::new(),
            tiles: Vec::new(),
            drawing: Vec::new(),
            splits: 1,
        };
        for (index, work) in batch.sequences.iter().enumerate() {
            plan.add(index, work, config);
        }
        plan
    }

    fn add(&mut self, index: usize, work: &SequenceWork<'_>, config: &ModelConfig) {
        let end = work.first_position as usize + work.tokens.len();
        let pages = end.div_ceil(PAGE_TOKENS);
        assert!(!work.tokens.is_empty(), "a sequence without tokens");
        assert!(work.pages.len() >= pages, "a page table too short");
        let (row0, table) = (self.rows.len() as i32, self.tables.len() as i32);
        self.tables
            .extend(work.pages[..pages].iter().map(|page| page.0 as i32));
        for (position, token) in (work.first_position..).zip(work.tokens) {
            assert!(
                token.index() < config.vocab_size,
                "a token outside the vocabulary"
            );
            self.rows.push(Row {
                token: token.index() as i32,
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
        self.splits = self.splits.max(pages);
        if work.sample.is_some() {
            self.drawing.push((self.rows.len() - 1, index));
        }
    }
}
