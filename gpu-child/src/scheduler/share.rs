//! A sequence's share of a step in flight.

use std::ops::Range;
use worker_orcd_ipc::RequestId;

#[derive(Debug)]
pub(super) struct Share {
    pub serial: u64,
    pub request: RequestId,
    /// Rows of the device that may be sampled.
    pub rows: usize,
    /// The first of them, which are not sampled, because the tokens behind them are known.
    pub known: usize,
    pub drafts: usize,
    /// The drafts are those of the draft model.
    pub of_model: bool,
    /// Indices of the tokens sampled from the next rows; empty if none is sampled.
    pub draws: Range<u32>,
}

impl Share {
    /// Records the indices that are sampled after all. Some of the drafts may be forced tokens now.
    pub(super) fn settle(&mut self, draws: Range<u32>) {
        if self.draws.is_empty() || draws.is_empty() || draws.start < self.draws.start {
            self.draws = 0..0;
            return;
        }
        let forced = (draws.start - self.draws.start) as usize;
        self.known += forced;
        self.drafts -= forced;
        self.draws = draws;
    }

    /// Index of the token that is sampled from this row, if one is.
    pub(super) fn index_at(&self, row: usize) -> Option<u32> {
        let index = self.draws.start + row.checked_sub(self.known)? as u32;
        self.draws.contains(&index).then_some(index)
    }
}
