//! Pages of a sequence: allocation, reuse of cached prefixes, publication and sealing.

use super::super::adoption::Contents;
use super::super::page_table::{PageDemand, PageTable};
use super::Sequence;
use crate::device::PagePart;
use crate::kv_pages::{ChainId, KvPages};

impl Sequence {
    /// Minimum number of pages to compute the sequence from its beginning.
    pub(in crate::scheduler) fn least_pages(&self, cache: &KvPages) -> usize {
        cache.geometry().least_pages(self.tokens.len())
    }

    /// True if the sequence needs more pages than the arena has.
    pub(in crate::scheduler) fn outgrows(&self, cache: &KvPages) -> bool {
        self.least_pages(cache) > cache.geometry().pages as usize
    }

    pub(in crate::scheduler) fn page_count(&self, cache: &KvPages) -> usize {
        self.table.count(cache.geometry())
    }

    /// Demand for all its tokens, including the one before the next sample, and `ahead` next positions.
    fn wanted(&self, ahead: usize) -> PageDemand {
        PageDemand {
            tokens: self.tokens.len(),
            computed: self.computed,
            ahead,
        }
    }

    /// Pages missing for the next position.
    pub(in crate::scheduler) fn missing_pages(&self, cache: &KvPages) -> usize {
        self.table.missing(cache.geometry(), self.wanted(1))
    }

    /// Pages missing now or later, until all its tokens are computed.
    pub(in crate::scheduler) fn pages_to_come(&self, cache: &KvPages) -> usize {
        let most = cache.geometry().sequence_pages(self.tokens.len());
        most.saturating_sub(self.page_count(cache))
    }

    /// True if the sequence cannot continue.
    pub(in crate::scheduler) fn lacks_pages(&self, cache: &KvPages) -> bool {
        self.missing_pages(cache) > 0 || self.outgrows(cache)
    }

    /// Allocates the missing pages, for a whole chunk or else for the next position only. False if there are too few;
    /// then it allocates none.
    pub(in crate::scheduler) fn take_pages(&mut self, cache: &mut KvPages) -> bool {
        let [chunk, least] = [cache.geometry().ahead(), 1].map(|ahead| self.wanted(ahead));
        !self.outgrows(cache) && (self.table.fill(cache, chunk) || self.table.fill(cache, least))
    }

    /// Number of drafts with pages, after an attempt to allocate them for all. No other sequence gives up a page for a
    /// draft.
    pub(in crate::scheduler) fn room_for_drafts(&mut self, cache: &mut KvPages) -> usize {
        let geometry = cache.geometry();
        if !self.outgrows(cache) {
            self.table.fill(cache, self.wanted(1 + self.drafts));
        }
        let positions = self
            .table
            .positions(geometry)
            .min(self.table.room(geometry));
        positions.saturating_sub(self.computed + 1)
    }

    /// Releases pages beyond the next position.
    pub(in crate::scheduler) fn give_up_ahead(&mut self, cache: &mut KvPages) {
        self.table.give_up_ahead(cache, self.wanted(1));
    }

    /// Releases pages outside all windows of the remaining positions. A successor adopts the pages reported so far as a
    /// whole: with `waits_for_seals`, pages visible from their end stay.
    pub(in crate::scheduler) fn slide(&mut self, cache: &mut KvPages, waits_for_seals: bool) {
        let page_tokens = cache.geometry().page_tokens as usize;
        let sent = self.sent - self.sent % page_tokens;
        let settled = self.settled();
        let position = if waits_for_seals {
            sent.min(settled)
        } else {
            settled
        };
        self.table.slide(cache, position);
    }

    /// Reuses the cached prefix, except for rows with required outputs. Returns the number of tokens saved.
    pub(in crate::scheduler) fn adopt_prefix(&mut self, cache: &mut KvPages) -> usize {
        if self.pool.as_ref().is_some_and(|it| !it.may_reuse_prefix()) {
            self.give_up_tail(cache);
            return 0;
        }
        let geometry = cache.geometry();
        let reusable = self.reusable();
        let prefix = cache.find(&self.tokens[..reusable]);
        self.published = prefix.blocks;
        self.computed = prefix.blocks * geometry.page_tokens as usize;
        self.chain = prefix.chain;
        self.table = PageTable::of(prefix, geometry);
        if let Some(tail) = self.tail.take() {
            let end = tail.start + tail.tokens;
            if tail.start == self.computed && end <= reusable {
                self.table.push_block(&tail.pages, geometry);
                self.computed = end;
            } else {
                cache.release(&tail.pages);
            }
        }
        self.computed
    }

    pub(in crate::scheduler) fn give_up_tail(&mut self, cache: &mut KvPages) {
        if let Some(tail) = self.tail.take() {
            cache.release(&tail.pages);
        }
    }

    /// Releases all pages; the tokens stay.
    pub(in crate::scheduler) fn give_up_pages(&mut self, cache: &mut KvPages) {
        self.give_up_tail(cache);
        self.table.release(cache);
        self.computed = 0;
        if let Some(pool) = &mut self.pool {
            pool.restart();
        }
        self.decodes = false;
        self.is_open = false;
        self.published = 0;
        self.is_sent_too_much |= self.sent > 0;
        self.sent = 0;
        self.chain = ChainId::ROOT;
        self.parent = None;
    }

    /// Number of sealable positions, a multiple of `every`.
    fn sealable(&self, every: u32) -> usize {
        let known = self.settled();
        known - known % every as usize
    }

    /// Computed and unreported contents, a multiple of `every` positions, from the first block that is not fully
    /// reported: the contents of each block's pages, by group, `None` for released pages.
    pub(in crate::scheduler) fn unsent(
        &self,
        cache: &KvPages,
        every: u32,
    ) -> impl Iterator<Item = Option<Contents>> {
        let geometry = cache.geometry();
        let page_tokens = geometry.page_tokens as usize;
        let sealable = self.sealable(every);
        let first = self.sent / page_tokens;
        let blocks = match sealable > self.sent {
            true => first..geometry.blocks(sealable),
            false => first..first,
        };
        blocks.flat_map(move |block| {
            let tokens = page_tokens.min(sealable - block * page_tokens) as u32;
            let pages = self.table.of_block(block, geometry);
            pages.enumerate().map(move |(group, page)| {
                let part = PagePart {
                    page: page?,
                    group: group as u32,
                    tokens,
                };
                let epoch = cache.epoch(part.page);
                Some(Contents { part, epoch })
            })
        })
    }

    /// True, once, if the supervisor must forget the pages reported to it.
    pub(in crate::scheduler) fn take_sent_too_much(&mut self) -> bool {
        std::mem::take(&mut self.is_sent_too_much)
    }

    /// Marks this many blocks as reported, beginning with the first of [`unsent`](Self::unsent). Returns the index of
    /// that block.
    pub(in crate::scheduler) fn mark_reported(
        &mut self,
        cache: &KvPages,
        blocks: usize,
        every: u32,
    ) -> usize {
        let page_tokens = cache.geometry().page_tokens as usize;
        let first = self.sent / page_tokens;
        if blocks > 0 {
            self.sent = self.sealable(every).min((first + blocks) * page_tokens);
        }
        first
    }

    /// Publishes the blocks with known tokens. Writes of a step in flight complete before any later step reads them.
    pub(in crate::scheduler) fn publish(&mut self, cache: &mut KvPages) {
        let geometry = cache.geometry();
        let page_tokens = geometry.page_tokens as usize;
        let full = self.settled() / page_tokens;
        while self.published < full {
            let start = self.published * page_tokens;
            let tokens = &self.tokens[start..start + page_tokens];
            let (block, whole) = (self.published, geometry.groups.full());
            let keeps_sliding =
                geometry.is_checkpoint(block) || self.is_before_end_of_prompt(block, page_tokens);
            let pages = self.table.of_block(block, geometry).enumerate();
            let pages = pages.map(|(group, page)| page.filter(|_| group < whole || keeps_sliding));
            let pages: Vec<_> = pages.collect();
            self.parent = Some(self.chain);
            self.chain = cache.publish(self.chain, tokens, &pages);
            self.published += 1;
        }
    }

    /// True for the last two whole blocks of the prompt. The next turn of a conversation has this prompt, but perhaps
    /// not its last tokens, which begin the answer.
    fn is_before_end_of_prompt(&self, block: usize, page_tokens: usize) -> bool {
        let whole = self.prompt_len / page_tokens;
        (block..block + 2).contains(&(whole.saturating_sub(1)))
    }

    /// Publishes the sliding-window pages of the last whole block, from which another turn of the conversation
    /// continues.
    pub(in crate::scheduler) fn publish_end(&self, cache: &mut KvPages) {
        let geometry = cache.geometry();
        let Some(parent) = self.parent.filter(|_| !geometry.keeps_all()) else {
            return;
        };
        let (block, page_tokens) = (self.published - 1, geometry.page_tokens as usize);
        let tokens = &self.tokens[block * page_tokens..][..page_tokens];
        let pages: Vec<_> = self.table.of_block(block, geometry).collect();
        cache.publish(parent, tokens, &pages);
    }
}
