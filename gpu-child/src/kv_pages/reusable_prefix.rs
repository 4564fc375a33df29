//! Reusable length of a prefix: all pages that the next positions attend to must be present.

use crate::device::KvGeometry;

/// Consecutive present blocks, counted from the first.
#[derive(Debug, Clone, Copy)]
pub struct ReusablePrefix {
    geometry: KvGeometry,
    blocks: usize,
    /// First block from which all sliding-window pages are present.
    sliding_from: usize,
    longest: usize,
}

impl ReusablePrefix {
    /// Prefix of `blocks` usable blocks, with sliding-window pages from `sliding_from` on.
    #[must_use]
    pub fn of(geometry: KvGeometry, blocks: usize, sliding_from: usize) -> Self {
        Self {
            geometry,
            blocks,
            sliding_from,
            longest: blocks,
        }
    }

    /// Appends a block, with or without its sliding-window pages.
    pub fn add(&mut self, has_sliding: bool) {
        self.blocks += 1;
        if !has_sliding {
            self.sliding_from = self.blocks;
        }
        if self.sliding_from <= self.seen_from(self.blocks) {
            self.longest = self.blocks;
        }
    }

    /// Number of blocks after which a sequence can continue.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// First block with sliding-window pages that are visible from the end of [`Self::longest`].
    #[must_use]
    pub fn sliding_from(&self) -> usize {
        self.seen_from(self.longest)
    }

    fn seen_from(&self, blocks: usize) -> usize {
        let behind = blocks * self.geometry.page_tokens as usize;
        self.geometry.sliding_from(behind)
    }
}
