//! How much of a beginning is of use: behind it, all must be there that its next positions see.

use crate::device::KvGeometry;

/// Blocks that are there one behind the other, from the first on.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    geometry: KvGeometry,
    blocks: usize,
    /// From here on near pages are there, too.
    near_from: usize,
    longest: usize,
}

impl Reach {
    /// The first `blocks` are of use, with near pages from `near_from` on.
    #[must_use]
    pub fn of(geometry: KvGeometry, blocks: usize, near_from: usize) -> Self {
        Self {
            geometry,
            blocks,
            near_from,
            longest: blocks,
        }
    }

    /// Another block is there, with its near pages or without.
    pub fn add(&mut self, has_near: bool) {
        self.blocks += 1;
        if !has_near {
            self.near_from = self.blocks;
        }
        if self.near_from <= self.seen_from(self.blocks) {
            self.longest = self.blocks;
        }
    }

    /// Blocks that can be gone on from.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Of those, the first whose near pages are seen from behind them.
    #[must_use]
    pub fn near_from(&self) -> usize {
        self.seen_from(self.longest)
    }

    fn seen_from(&self, blocks: usize) -> usize {
        let behind = blocks * self.geometry.page_tokens as usize;
        self.geometry.near_from(behind)
    }
}
