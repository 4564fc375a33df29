//! Page table of a sequence: allocation, and release of pages outside the windows.
//!
//! For each block of its tokens, a sequence has a page of each full-attention group. Of sliding-window groups
//! ([`KvGeometry`]) it has the pages in the windows of its next positions, and those of some positions ahead.

use crate::device::{KvGeometry, PageId};
use crate::kv_pages::{KvPages, Prefix};
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct PageTable {
    /// Page of block `b` and group `g` at `b * groups + g`. A missing sliding-window page is replaced by another page
    /// of that block, which attention may read but masks out.
    pages: Vec<PageId>,
    /// Blocks with sliding-window pages.
    sliding: Range<usize>,
}

/// Positions for which a sequence needs pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageDemand {
    pub tokens: usize,
    /// Computed positions, and those to compute next.
    pub computed: usize,
    pub ahead: usize,
}

impl PageDemand {
    fn sliding_to(&self, geometry: KvGeometry) -> usize {
        geometry.sliding_to(self.computed, self.ahead, self.tokens)
    }
}

impl PageTable {
    /// Page table of a sequence with this cached prefix.
    pub(super) fn of(prefix: Prefix, geometry: KvGeometry) -> Self {
        let groups = geometry.groups.count();
        let blocks = prefix.pages.chunks_exact(groups);
        let sliding_end = match geometry.groups.sliding {
            Some(_) => prefix.blocks,
            None => 0,
        };
        Self {
            pages: blocks.flat_map(filled).collect(),
            sliding: prefix.sliding_from..sliding_end,
        }
    }

    pub(super) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    fn blocks(&self, geometry: KvGeometry) -> usize {
        self.pages.len() / geometry.groups.count()
    }

    /// Number of pages held.
    pub(super) fn count(&self, geometry: KvGeometry) -> usize {
        geometry.groups.full() * self.blocks(geometry)
            + geometry.groups.sliding() * self.sliding.len()
    }

    /// Number of missing pages.
    pub(super) fn missing(&self, geometry: KvGeometry, wanted: PageDemand) -> usize {
        let blocks = geometry.blocks(wanted.tokens);
        let blocks = blocks.saturating_sub(self.blocks(geometry));
        let sliding_to = wanted.sliding_to(geometry);
        let sliding = sliding_to.saturating_sub(self.sliding.end);
        geometry.groups.full() * blocks + geometry.groups.sliding() * sliding
    }

    /// Allocates the missing pages, all or none. True if none is missing afterwards.
    pub(super) fn fill(&mut self, cache: &mut KvPages, wanted: PageDemand) -> bool {
        let geometry = cache.geometry();
        let missing = self.missing(geometry, wanted);
        if missing == 0 {
            return true;
        }
        let Some(pages) = cache.allocate_all(missing) else {
            return false;
        };
        let (whole, groups) = (geometry.groups.full(), geometry.groups.count());
        let mut pages = pages.into_iter();
        for _ in self.blocks(geometry)..geometry.blocks(wanted.tokens) {
            let own: Vec<_> = pages.by_ref().take(whole).collect();
            let own = own.into_iter().map(Some);
            let block: Vec<_> = own.chain(std::iter::repeat(None)).take(groups).collect();
            self.pages.extend(filled(&block));
        }
        let sliding_to = wanted.sliding_to(geometry).max(self.sliding.end);
        for block in self.sliding.end..sliding_to {
            let places = &mut self.pages[block * groups + whole..(block + 1) * groups];
            places
                .iter_mut()
                .zip(pages.by_ref())
                .for_each(|(place, page)| *place = page);
        }
        self.sliding.end = sliding_to;
        true
    }

    /// Appends a block of pages allocated elsewhere.
    pub(super) fn push_block(&mut self, pages: &[PageId], geometry: KvGeometry) {
        self.pages.extend(pages);
        if geometry.groups.sliding.is_some() {
            self.sliding.end = self.blocks(geometry);
        }
    }

    /// Releases the sliding-window pages outside the windows of all positions from this one on.
    pub(super) fn slide(&mut self, cache: &mut KvPages, position: usize) {
        let from = cache
            .geometry()
            .sliding_from(position)
            .clamp(self.sliding.start, self.sliding.end.max(self.sliding.start));
        for block in self.sliding.start..from {
            self.give_back_sliding(cache, block);
        }
        self.sliding.start = from;
    }

    /// Releases the sliding-window pages of blocks that are not needed yet. They are unwritten.
    pub(super) fn give_up_ahead(&mut self, cache: &mut KvPages, wanted: PageDemand) {
        let geometry = cache.geometry();
        let end = wanted.sliding_to(geometry).max(self.sliding.start);
        for block in end..self.sliding.end {
            self.give_back_sliding(cache, block);
        }
        self.sliding.end = self.sliding.end.min(end);
    }

    /// Releases the sliding-window pages of a block; another page of the block replaces them in the table.
    fn give_back_sliding(&mut self, cache: &mut KvPages, block: usize) {
        let groups = cache.geometry().groups;
        let (whole, count) = (groups.full(), groups.count());
        let pages = &mut self.pages[block * count..(block + 1) * count];
        cache.release(&pages[whole..]);
        if let (own, sliding) = pages.split_at_mut(whole)
            && let Some(first) = own.first()
        {
            sliding.fill(*first);
        }
    }

    /// Releases all pages.
    pub(super) fn release(&mut self, cache: &mut KvPages) {
        let geometry = cache.geometry();
        let pages: Vec<_> = (0..self.blocks(geometry))
            .flat_map(|block| self.of_block(block, geometry))
            .flatten()
            .collect();
        cache.release(&pages);
        *self = Self::default();
    }

    /// Pages of a block, by group; `None` for missing ones.
    pub(super) fn of_block(
        &self,
        block: usize,
        geometry: KvGeometry,
    ) -> impl Iterator<Item = Option<PageId>> {
        let (whole, groups) = (geometry.groups.full(), geometry.groups.count());
        let has_sliding = self.sliding.contains(&block);
        let pages = self.pages[block * groups..(block + 1) * groups].iter();
        pages
            .enumerate()
            .map(move |(group, page)| (has_sliding || group < whole).then_some(*page))
    }

    /// Positions with pages of full-attention groups.
    pub(super) fn positions(&self, geometry: KvGeometry) -> usize {
        self.blocks(geometry) * geometry.page_tokens as usize
    }

    /// Positions with sliding-window pages; unlimited without such groups.
    pub(super) fn room(&self, geometry: KvGeometry) -> usize {
        match geometry.groups.sliding {
            Some(_) => self.sliding.end * geometry.page_tokens as usize,
            None => usize::MAX,
        }
    }
}

/// Table entries of a block: another page of the block, or page 0 if it has none, replaces a missing one.
fn filled(block: &[Option<PageId>]) -> impl Iterator<Item = PageId> {
    let other = block.iter().flatten().next().copied();
    let other = other.unwrap_or(PageId(0));
    block.iter().map(move |page| page.unwrap_or(other))
}
