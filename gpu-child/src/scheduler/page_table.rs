//! The page table of a sequence: which pages it has, and which of them it gives back while it goes on.
//!
//! It has a page of each group whose layers see all for every block of its tokens. Of groups whose layers see a window
//! ([`KvGeometry`]) it has the pages of what its next positions see, and of some positions ahead of them.

use crate::device::{KvGeometry, PageId};
use crate::kv_pages::{KvPages, Prefix};
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct PageTable {
    /// Of block `b` and group `g` at `b * groups + g`. In place of a near page that it has not: another page of that block, which
    /// attention may read and does not count.
    pages: Vec<PageId>,
    /// Blocks whose near pages it has.
    near: Range<usize>,
}

/// What a sequence is to have pages for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub tokens: usize,
    /// Positions that are computed, and those to be computed next.
    pub computed: usize,
    pub ahead: usize,
}

impl Wanted {
    fn near_to(&self, geometry: KvGeometry) -> usize {
        geometry.near_to(self.computed, self.ahead, self.tokens)
    }
}

impl PageTable {
    /// That of a sequence that begins alike.
    pub(super) fn of(prefix: Prefix, geometry: KvGeometry) -> Self {
        let groups = geometry.groups.count();
        let blocks = prefix.pages.chunks_exact(groups);
        let near_end = match geometry.groups.near {
            Some(_) => prefix.blocks,
            None => 0,
        };
        Self {
            pages: blocks.flat_map(filled).collect(),
            near: prefix.near_from..near_end,
        }
    }

    pub(super) fn pages(&self) -> &[PageId] {
        &self.pages
    }

    fn blocks(&self, geometry: KvGeometry) -> usize {
        self.pages.len() / geometry.groups.count()
    }

    /// Pages that it has.
    pub(super) fn count(&self, geometry: KvGeometry) -> usize {
        geometry.groups.whole() * self.blocks(geometry) + geometry.groups.near() * self.near.len()
    }

    /// Pages that it lacks for what it wants.
    pub(super) fn missing(&self, geometry: KvGeometry, wanted: Wanted) -> usize {
        let blocks = geometry.blocks(wanted.tokens);
        let blocks = blocks.saturating_sub(self.blocks(geometry));
        let near_to = wanted.near_to(geometry);
        let near = near_to.saturating_sub(self.near.end);
        geometry.groups.whole() * blocks + geometry.groups.near() * near
    }

    /// Takes the pages that it lacks, all of them or none. True where nothing is missing then.
    pub(super) fn fill(&mut self, cache: &mut KvPages, wanted: Wanted) -> bool {
        let geometry = cache.geometry();
        let missing = self.missing(geometry, wanted);
        if missing == 0 {
            return true;
        }
        let Some(pages) = cache.allocate_all(missing) else {
            return false;
        };
        let (whole, groups) = (geometry.groups.whole(), geometry.groups.count());
        let mut pages = pages.into_iter();
        for _ in self.blocks(geometry)..geometry.blocks(wanted.tokens) {
            let own: Vec<_> = pages.by_ref().take(whole).collect();
            let own = own.into_iter().map(Some);
            let block: Vec<_> = own.chain(std::iter::repeat(None)).take(groups).collect();
            self.pages.extend(filled(&block));
        }
        let near_to = wanted.near_to(geometry).max(self.near.end);
        for block in self.near.end..near_to {
            let places = &mut self.pages[block * groups + whole..(block + 1) * groups];
            places
                .iter_mut()
                .zip(pages.by_ref())
                .for_each(|(place, page)| *place = page);
        }
        self.near.end = near_to;
        true
    }

    /// Another block, whose pages were taken elsewhere.
    pub(super) fn push_block(&mut self, pages: &[PageId], geometry: KvGeometry) {
        self.pages.extend(pages);
        if geometry.groups.near.is_some() {
            self.near.end = self.blocks(geometry);
        }
    }

    /// Gives back the near pages that no position from this one on sees.
    pub(super) fn slide(&mut self, cache: &mut KvPages, position: usize) {
        let from = cache
            .geometry()
            .near_from(position)
            .clamp(self.near.start, self.near.end.max(self.near.start));
        for block in self.near.start..from {
            self.give_back_near(cache, block);
        }
        self.near.start = from;
    }

    /// Gives back the near pages of blocks that are not wanted yet. Nothing was written there.
    pub(super) fn give_up_ahead(&mut self, cache: &mut KvPages, wanted: Wanted) {
        let geometry = cache.geometry();
        let end = wanted.near_to(geometry).max(self.near.start);
        for block in end..self.near.end {
            self.give_back_near(cache, block);
        }
        self.near.end = self.near.end.min(end);
    }

    /// Gives back the near pages of a block, which has another page in their place.
    fn give_back_near(&mut self, cache: &mut KvPages, block: usize) {
        let groups = cache.geometry().groups;
        let (whole, count) = (groups.whole(), groups.count());
        let pages = &mut self.pages[block * count..(block + 1) * count];
        cache.release(&pages[whole..]);
        if let (own, near) = pages.split_at_mut(whole)
            && let Some(first) = own.first()
        {
            near.fill(*first);
        }
    }

    /// Gives all of them back.
    pub(super) fn release(&mut self, cache: &mut KvPages) {
        let geometry = cache.geometry();
        let pages: Vec<_> = (0..self.blocks(geometry))
            .flat_map(|block| self.of_block(block, geometry))
            .flatten()
            .collect();
        cache.release(&pages);
        *self = Self::default();
    }

    /// The pages of a block, by group; `None` for those that it has not.
    pub(super) fn of_block(
        &self,
        block: usize,
        geometry: KvGeometry,
    ) -> impl Iterator<Item = Option<PageId>> {
        let (whole, groups) = (geometry.groups.whole(), geometry.groups.count());
        let has_near = self.near.contains(&block);
        let pages = self.pages[block * groups..(block + 1) * groups].iter();
        pages
            .enumerate()
            .map(move |(group, page)| (has_near || group < whole).then_some(*page))
    }

    /// Positions for which there are near pages; all where there are no such groups.
    pub(super) fn room(&self, geometry: KvGeometry) -> usize {
        match geometry.groups.near {
            Some(_) => self.near.end * geometry.page_tokens as usize,
            None => usize::MAX,
        }
    }
}

/// A block of a page table: in place of pages that are not there another page of it, or any where there is none.
fn filled(block: &[Option<PageId>]) -> impl Iterator<Item = PageId> {
    let other = block.iter().flatten().next().copied();
    let other = other.unwrap_or(PageId(0));
    block.iter().map(move |page| page.unwrap_or(other))
}
