//! A batch laid out as rows, and its attention cut into items: computed once a step, used by every layer with the same
//! window.

use super::attention::{Partials, Split};
use crate::device::common::batch::{blocks_of, index_of};
use crate::device::{Batch, PageId, SequenceWork};
use crate::model::{Heads, ModelConfig};
use std::ops::Range;
use worker_orcd_kernels::cpu::attention::MAX_ROWS;
use worker_orcd_kernels::cpu::{SPAN_TOKENS, TILE_TOKENS};

/// A token of the batch.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub sequence: usize,
    pub position: u32,
    pub token: usize,
}

/// Attention of consecutive rows of one sequence, for one key-value head.
#[derive(Debug, Clone)]
pub struct Item {
    pub rows: Range<usize>,
    pub kv_head: usize,
    /// Spans of positions to walk, in order.
    pub spans: Range<usize>,
}

#[derive(Debug)]
pub struct Plan<'a> {
    pub sequences: &'a [SequenceWork<'a>],
    pub rows: Vec<Row>,
    /// Columns of page tables: groups of layers.
    groups: usize,
    /// One for the layers of each window.
    walks: Vec<Walk>,
}

/// The attention of layers with the same window.
#[derive(Debug)]
pub struct Walk {
    pub items: Vec<Item>,
    pub split: Split,
    window: Option<usize>,
    /// Heads of these layers.
    heads: Heads,
}

impl<'a> Plan<'a> {
    /// Plan of a batch.
    ///
    /// # Panics
    /// If the batch violates its contract: a page table too short, an empty sequence.
    #[must_use]
    pub fn new(
        batch: &Batch<'a>,
        config: &ModelConfig,
        groups: usize,
        threads: usize,
        partials: &Partials,
    ) -> Self {
        let mut rows = Vec::new();
        let mut walks: Vec<Walk> = Vec::new();
        for layer in 0..config.n_layers {
            let window = config.positions.window_of(layer);
            if walks.iter().all(|walk| walk.window != window) {
                walks.push(Walk::new(window, config.heads_of(layer)));
            }
        }
        for (index, work) in batch.sequences.iter().enumerate() {
            let start = rows.len();
            // Checks its page table.
            let _ = blocks_of(work, groups);
            for (position, token) in (work.first_position..).zip(work.tokens) {
                rows.push(Row {
                    sequence: index,
                    position,
                    token: index_of(*token, config.vocab_size),
                });
            }
            for walk in &mut walks {
                walk.add_items(start..rows.len(), work.first_position as usize);
            }
        }
        for walk in &mut walks {
            walk.share(threads, partials);
        }
        Self {
            sequences: batch.sequences,
            rows,
            groups,
            walks,
        }
    }

    /// Walk of the layers with this window.
    ///
    /// # Panics
    /// If no layer has it.
    #[must_use]
    pub fn walk(&self, window: Option<usize>) -> &Walk {
        let found = self.walks.iter().find(|walk| walk.window == window);
        found.expect("the window of a layer")
    }

    /// Page and slot of a row's own position, for layers of a group.
    #[must_use]
    pub fn place(&self, row: &Row, group: usize) -> (PageId, usize) {
        let position = row.position as usize;
        let page = self.page(row.sequence, position / TILE_TOKENS, group);
        (page, position % TILE_TOKENS)
    }

    /// A sequence's page of a block, for layers of a group.
    #[must_use]
    pub fn page(&self, sequence: usize, block: usize, group: usize) -> PageId {
        self.sequences[sequence].pages[block * self.groups + group]
    }
}

impl Walk {
    fn new(window: Option<usize>, heads: Heads) -> Self {
        Self {
            items: Vec::new(),
            split: Split::Whole,
            window,
            heads,
        }
    }

    /// Adds one item for each key-value head and as many rows as one call of the kernel takes.
    fn add_items(&mut self, rows: Range<usize>, first_position: usize) {
        let tile = (MAX_ROWS / self.heads.group()).max(1);
        for start in rows.clone().step_by(tile) {
            let tile = start..rows.end.min(start + tile);
            let first = first_position + (tile.start - rows.start);
            let last = first_position + (tile.end - 1 - rows.start);
            let spans = self.first_seen(first) / SPAN_TOKENS..last / SPAN_TOKENS + 1;
            for kv_head in 0..self.heads.kv_count {
                self.items.push(Item {
                    rows: tile.clone(),
                    kv_head,
                    spans: spans.clone(),
                });
            }
        }
    }

    /// Makes each span an item of its own if there are too few items for the threads. Only the thread that computes a
    /// span changes: spans are merged in order either way.
    fn share(&mut self, threads: usize, partials: &Partials) {
        let spans: usize = self.items.iter().map(|item| item.spans.len()).sum();
        let rows_in_item = |item: &Item| item.rows.len() * self.heads.group();
        let widest = self.items.iter().map(rows_in_item).max().unwrap_or(0);
        let few = self.items.len() < 4 * threads && spans > self.items.len();
        if threads > 1 && few && spans * widest <= partials.capacity() {
            self.split = Split::BySpan {
                rows_in_slot: widest,
            };
        }
    }

    /// The first position that a query at `position` sees.
    #[must_use]
    pub fn first_seen(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
