//! Layout of a batch for the device: its rows, the rows that draw, and what its mixers prepare.
//!
//! Computed once per step, used by every layer.

use super::kernels::Row;
use super::mixers::MixerPlan;
use super::rank::Rank;
use crate::device::common::batch::{DrawingRow, drawing_rows, index_of};
use crate::device::{Batch, SequenceWork, TO_BE_DRAWN};
use worker_orcd_ipc::RequestId;

#[derive(Debug)]
pub struct Plan<'a> {
    pub sequences: &'a [SequenceWork<'a>],
    /// Tokens of the batch. A token that is not drawn yet is the complement of its index among
    /// the draws of the previous step.
    pub rows: Vec<Row>,
    pub drawing: Vec<DrawingRow>,
    pub mixers: MixerPlan,
}

impl<'a> Plan<'a> {
    /// `before` has the requests that the previous step draws for, in order.
    ///
    /// # Panics
    /// If the batch violates its contract: a page table too short, an empty sequence, a token
    /// outside the vocabulary, or one that the previous step does not draw.
    #[must_use]
    pub fn new(batch: &Batch<'a>, rank: &Rank, before: &[RequestId]) -> Self {
        let mut mixers = rank.mixers.plan(rank, batch);
        // Batches keep their order, so the next one is usually the match.
        let mut order = (0..).zip(before).cycle();
        let mut place = |request: RequestId| {
            let found = order
                .by_ref()
                .take(before.len())
                .find(|(_, other)| **other == request);
            found.expect("a token that the step before draws").0
        };
        let mut rows = Vec::new();
        for (work, table) in batch.sequences.iter().zip(mixers.tables()) {
            for (position, token) in (work.first_position..).zip(work.tokens) {
                let token = if *token == TO_BE_DRAWN {
                    !place(work.request)
                } else {
                    index_of(*token, rank.config.vocab_size) as i32
                };
                rows.push(Row {
                    token,
                    position: position as i32,
                    table,
                    unused: 0,
                });
            }
        }
        let drawing = drawing_rows(batch.sequences);
        if drawing.len() > batch.sequences.len() {
            mixers.expect_drafts();
        }
        Self {
            sequences: batch.sequences,
            rows,
            drawing,
            mixers,
        }
    }
}
