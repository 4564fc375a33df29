//! Shape of the KV cache: contents of a page, and pages of a sequence.
//!
//! ```text
//!            block 0   block 1   block 2   block 3          a block: `page_tokens` positions of a sequence
//!  group 0     page      page      page      page           whole: layers with full attention
//!  group 1      ·         ·        page      page           near: sliding-window layers, or states of recurrent
//!  group 2      ·         ·        page      page           ones; pages outside the window are released
//! ```
//!
//! Layers are in groups, and a page holds some positions of one group. All groups have the same number of layers, so
//! that all pages have the same size and any page can belong to any group. A model without windows has one group.
//! (vLLM's hybrid KV cache manager has such groups.)

/// Index of a KV page in the device's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Fixed when the model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGeometry {
    /// Positions per page.
    pub page_tokens: u32,
    pub pages: u32,
    /// Bytes of the keys and values of one page, over the layers of its group.
    pub page_bytes: u64,
    pub groups: KvGroups,
}

/// Groups of layers: first those with full attention, then those with a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroups {
    pub full: u32,
    pub sliding: Option<SlidingGroups>,
}

/// Sliding-window groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingGroups {
    /// Never zero.
    pub count: u32,
    /// Positions that a query sees, including its own. Never zero.
    pub window: u32,
    /// Positions of a prompt with pages ahead of the computed ones. Never zero.
    pub ahead: u32,
    /// Blocks from one to the next of which the pages are kept for other sequences: those of a recurrent state, which
    /// take much memory. `None`: pages of every block are kept. Never zero.
    pub checkpoints: Option<u32>,
}

impl KvGroups {
    /// All layers have full attention.
    pub const ONE: Self = Self {
        full: 1,
        sliding: None,
    };

    #[must_use]
    pub fn count(&self) -> usize {
        (self.full + self.sliding.map_or(0, |sliding| sliding.count)) as usize
    }

    #[must_use]
    pub fn full(&self) -> usize {
        self.full as usize
    }

    #[must_use]
    pub fn sliding(&self) -> usize {
        self.count() - self.full()
    }
}

impl KvGeometry {
    /// Tokens with keys and values in this many pages, in all layers. For a sequence longer than its windows, the pages
    /// hold more.
    #[must_use]
    pub fn tokens_in(&self, pages: u32) -> u64 {
        let tokens = u64::from(pages) * u64::from(self.page_tokens);
        match self.groups.sliding {
            Some(SlidingGroups {
                count,
                checkpoints: Some(every),
                ..
            }) => {
                // Of so many blocks.
                let pages = u64::from(self.groups.full * every + count);
                tokens * u64::from(every) / pages
            }
            _ => tokens / self.groups.count() as u64,
        }
    }

    /// True if the sliding-window pages of each block are kept for other sequences.
    #[must_use]
    pub fn keeps_all(&self) -> bool {
        self.groups
            .sliding
            .is_none_or(|sliding| sliding.checkpoints.is_none())
    }

    /// True if the sliding-window pages of this block are kept for other sequences, wherever a sequence ends.
    #[must_use]
    pub fn is_checkpoint(&self, block: usize) -> bool {
        let every = self.groups.sliding.and_then(|sliding| sliding.checkpoints);
        every.is_none_or(|every| (block + 1).is_multiple_of(every as usize))
    }

    /// Blocks of positions `0 .. tokens`.
    #[must_use]
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens as usize)
    }

    /// Entries of the page table of a sequence of this length.
    #[must_use]
    pub fn table_entries(&self, tokens: usize) -> usize {
        self.blocks(tokens) * self.groups.count()
    }

    /// The first block with sliding-window pages in the window of `position` or a later one.
    #[must_use]
    pub fn sliding_from(&self, position: usize) -> usize {
        let sees = |sliding: SlidingGroups| (position + 1).saturating_sub(sliding.window as usize);
        self.groups.sliding.map_or(0, sees) / self.page_tokens as usize
    }

    /// End of the blocks that need sliding-window pages, in a sequence of `tokens` with `computed` positions done and
    /// the next `ahead` to compute.
    #[must_use]
    pub fn sliding_to(&self, computed: usize, ahead: usize, tokens: usize) -> usize {
        match self.groups.sliding {
            Some(_) => self.blocks(tokens.min(computed + ahead)),
            None => 0,
        }
    }

    /// Positions of a prompt with sliding-window pages ahead of the computed ones, if there are enough pages.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.groups
            .sliding
            .map_or(1, |sliding| sliding.ahead as usize)
    }

    /// Maximum number of pages that a sequence of this length holds at a time.
    #[must_use]
    pub fn sequence_pages(&self, tokens: usize) -> usize {
        self.pages_with(tokens, self.ahead())
    }

    /// Minimum number of pages to compute a sequence of this length.
    #[must_use]
    pub fn least_pages(&self, tokens: usize) -> usize {
        self.pages_with(tokens, 1)
    }

    fn pages_with(&self, tokens: usize, ahead: usize) -> usize {
        let blocks = self.blocks(tokens);
        // The window, and the positions to write, begin anywhere in a block.
        let sliding =
            |sliding: SlidingGroups| 1 + self.blocks(sliding.window as usize - 1 + ahead - 1);
        let sliding = self.groups.sliding.map_or(0, sliding);
        self.groups.full() * blocks + self.groups.sliding() * sliding.min(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The needed blocks are those that a query sees, and never exceed the computed maximum.
        #[test]
        fn sliding_pages_are_those_that_are_seen_or_to_be_written(
            window in 1_u32..40,
            ahead in 1_u32..20,
            tokens in 1_usize..200,
            at in 0.0..1.0,
        ) {
            let sliding = SlidingGroups { count: 3, window, ahead, checkpoints: None };
            let geometry = KvGeometry {
                page_tokens: 4,
                pages: 1000,
                page_bytes: 1,
                groups: KvGroups { full: 2, sliding: Some(sliding) },
            };
            let computed = (tokens as f64 * at) as usize;
            let seen_from = (computed + 1).saturating_sub(window as usize);
            for ahead in [ahead as usize, 1] {
                let wanted = geometry.sliding_from(computed)..geometry.sliding_to(computed, ahead, tokens);
                for position in 0..tokens.min(computed + ahead) {
                    prop_assert_eq!(wanted.contains(&(position / 4)), position / 4 >= seen_from / 4);
                }
                let pages = 2 * geometry.blocks(tokens) + 3 * wanted.len();
                prop_assert!(pages <= geometry.pages_with(tokens, ahead));
            }
        }
    }

    #[test]
    fn without_windows_a_sequence_has_a_page_for_each_block() {
        let geometry = KvGeometry {
            page_tokens: 4,
            pages: 10,
            page_bytes: 1,
            groups: KvGroups::ONE,
        };
        assert_eq!(geometry.sequence_pages(9), 3);
        assert_eq!(
            (geometry.sliding_from(9), geometry.sliding_to(5, 1, 9)),
            (0, 0)
        );
        assert_eq!((geometry.groups.count(), geometry.groups.sliding()), (1, 0));
        assert_eq!(geometry.tokens_in(10), 40);
        let sliding = SlidingGroups {
            count: 3,
            window: 8,
            ahead: 4,
            checkpoints: None,
        };
        let groups = KvGroups {
            full: 1,
            sliding: Some(sliding),
        };
        let grouped = KvGeometry { groups, ..geometry };
        assert_eq!(grouped.tokens_in(10), 10, "a token is in a page of each");
    }
}
