//! Pages that pass from child to child.
//!
//! Sealing: checksums of pages are requested from the device, received, and reported to the supervisor. Adoption: pages
//! that another child has computed enter the prefix cache before their request is submitted, which then finds them like
//! any cached prefix. Pages of a partial block go to their request alone.

use super::sequence::{Sequence, Tail};
use super::{Scheduler, SchedulerError};
use crate::device::{KvGeometry, PageCopy, PageId, PagePart};
use crate::kv_pages::{KvPages, Prefix, ReusablePrefix};
use std::collections::VecDeque;
use worker_orcd_ipc::{SealedPage, Sealing, Submission, TokenId};

/// Contents of a page since its last allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    pub part: PagePart,
    pub epoch: u64,
}

#[derive(Debug, Default)]
pub(super) struct Seals {
    /// Last requested contents by page; without a checksum until the device has answered.
    last: Vec<Option<(Contents, Option<u128>)>>,
    /// Outstanding requests, in the order of the device's answers.
    asked: VecDeque<Contents>,
    /// The supervisor receives reports of sealed pages.
    are_sent: bool,
}

impl Seals {
    pub(super) fn are_sent(&self) -> bool {
        self.are_sent
    }

    fn of(&self, contents: Contents) -> Option<u128> {
        let (last, checksum) = self.last(contents.part.page)?;
        checksum.filter(|_| last == contents)
    }

    fn is_last(&self, contents: Contents) -> bool {
        let last = self.last(contents.part.page);
        last.is_some_and(|(last, _)| last == contents)
    }

    fn last(&self, page: PageId) -> Option<(Contents, Option<u128>)> {
        *self.last.get(page.0 as usize)?
    }

    fn set_last(&mut self, contents: Contents, checksum: Option<u128>) {
        let page = contents.part.page.0 as usize;
        if self.last.len() <= page {
            self.last.resize(page + 1, None);
        }
        self.last[page] = Some((contents, checksum));
    }

    /// Registers a request. True if the device has not received it yet.
    fn ask(&mut self, contents: Contents) -> bool {
        let is_new = !self.is_last(contents);
        if is_new {
            self.set_last(contents, None);
            self.asked.push_back(contents);
        }
        is_new
    }

    pub(super) fn learn(&mut self, contents: Contents, checksum: u128) {
        self.set_last(contents, Some(checksum));
    }

    /// Records the device's answers, in the order of the requests.
    fn answer(&mut self, checksums: Vec<u128>) {
        for checksum in checksums {
            let asked = self.asked.pop_front();
            // The page may hold more by now, or be reallocated.
            if let Some(contents) = asked.filter(|contents| self.is_last(*contents)) {
                self.learn(contents, checksum);
            }
        }
    }
}

/// Pages reserved for another child's pages; the device fills them.
#[derive(Debug)]
pub struct Adoption {
    /// Consecutive blocks.
    blocks: Vec<AdoptedBlock>,
    /// Preceding blocks, already in the cache.
    prefix: Prefix,
    tokens: Vec<TokenId>,
}

#[derive(Debug)]
struct AdoptedBlock {
    /// Pages by group; `None` where there is nothing to adopt.
    pages: Vec<Option<Adopted>>,
    tokens: u32,
}

#[derive(Debug)]
struct Adopted {
    copy: PageCopy,
    /// The copy is complete and intact.
    is_here: bool,
}

impl Adoption {
    /// Pages still to be copied.
    pub fn copies(&self) -> impl Iterator<Item = PageCopy> {
        let pages = self.blocks.iter().flat_map(|block| &block.pages).flatten();
        let missing = pages.filter(|page| !page.is_here);
        missing.map(|page| page.copy)
    }

    fn pages_mut(&mut self) -> impl Iterator<Item = &mut Adopted> {
        let blocks = self.blocks.iter_mut();
        blocks.flat_map(|block| &mut block.pages).flatten()
    }
}

impl AdoptedBlock {
    /// True if all pages of these groups are present.
    fn has(&self, groups: impl Iterator<Item = usize>) -> bool {
        let mut pages = groups.map(|group| &self.pages[group]);
        pages.all(|page| page.as_ref().is_some_and(|page| page.is_here))
    }

    fn places(&self) -> impl Iterator<Item = PageId> {
        self.pages.iter().flatten().map(|page| page.copy.to)
    }
}

/// Number of positions of a block that another child has sealed, equal in all its pages. Released pages do not count.
fn sealed_tokens(block: &[SealedPage]) -> Option<u32> {
    let tokens = block.iter().map(|page| page.tokens).max()?;
    let is_it = |page: &SealedPage| page.tokens == tokens || page.tokens == 0;
    block.iter().all(is_it).then_some(tokens)
}

/// Adoptable blocks after a prefix, each with its number of positions: full blocks, then at most one partial block.
fn possible_blocks<'a>(
    sealed: &'a [SealedPage],
    prefix: &Prefix,
    geometry: KvGeometry,
    tokens: usize,
) -> Vec<(&'a [SealedPage], u32)> {
    let page_tokens = geometry.page_tokens;
    let mut left = tokens - prefix.blocks * page_tokens as usize;
    let mut has_ended = false;
    let blocks = sealed.chunks_exact(geometry.groups.count());
    let blocks = blocks.skip(prefix.blocks).map_while(|block| {
        let tokens = sealed_tokens(block).filter(|tokens| (1..=page_tokens).contains(tokens))?;
        left = left.checked_sub(tokens as usize)?;
        let is_behind = std::mem::replace(&mut has_ended, tokens < page_tokens);
        (!is_behind).then_some((block, tokens))
    });
    blocks.collect()
}

impl Scheduler {
    // === sealing ===

    /// Page contents to checksum, a multiple of `every` positions. Each is returned once.
    pub fn take_unsealed(&mut self, every: u32) -> Vec<PagePart> {
        let Self {
            running,
            cache,
            seals,
            ..
        } = self;
        seals.are_sent = true;
        let unsent = running.iter().flat_map(|it| it.unsent(cache, every));
        let unsent = unsent.flatten();
        let unsealed = unsent.filter(|contents| seals.ask(*contents));
        unsealed.map(|contents| contents.part).collect()
    }

    /// Records the device's answers to [`Self::take_unsealed`], in the same order.
    pub fn learn_seals(&mut self, checksums: Vec<u128>) {
        self.seals.answer(checksums);
    }

    /// Sealed pages not reported yet, and an empty list for a request that has released reported pages.
    pub fn take_sealed(&mut self, every: u32) -> Vec<Sealing> {
        let Self {
            running,
            waiting,
            cache,
            seals,
            ..
        } = self;
        let all = running.iter_mut().chain(waiting);
        let sealed = all.filter_map(|sequence| {
            let is_sent_too_much = sequence.take_sent_too_much();
            let sealing = sealing(sequence, cache, seals, every);
            (is_sent_too_much || !sealing.pages.is_empty()).then_some(sealing)
        });
        sealed.collect()
    }

    // === adoption ===

    /// Reserves the page with the same number as a page that another child has sealed. The caller passes the copy to
    /// [`Self::keep_ahead`], whether it succeeded or not.
    pub fn make_room_ahead(&mut self, sealed: SealedPage) -> Option<PageCopy> {
        let to = PageId(sealed.page);
        let is_whole = sealed.tokens == self.cache.geometry().page_tokens;
        (is_whole && self.cache.take_ahead(to)).then_some(PageCopy {
            from: sealed.page,
            to,
            group: 0,
            tokens: sealed.tokens,
            checksum: sealed.checksum,
        })
    }

    /// Keeps a copy for the request that will name its page.
    pub fn keep_ahead(&mut self, copy: PageCopy, is_intact: bool) {
        let checksum = is_intact.then_some(copy.checksum);
        self.cache.keep_ahead(copy.to, checksum);
    }

    /// Frees the kept copies: no request will name further pages of the other child.
    pub fn forget_ahead(&mut self) {
        self.cache.forget_ahead();
    }

    /// Allocates pages for those that another child has sealed for a request.
    pub fn make_room_for(&mut self, submission: &Submission) -> Adoption {
        let sealed = submission.sealed.as_ref();
        let sealed = sealed.map_or(&[][..], |it| &it.pages);
        let page_tokens = self.cache.geometry().page_tokens;
        let mut tokens = submission.prompt.clone();
        tokens.extend(&submission.generated);
        // The last token is computed in any case, and so is the part of the prompt with missing log probabilities.
        tokens.pop();
        if let Some(order) = submission.prompt_logprobs
            && order.reported as usize + 1 < submission.prompt.len()
        {
            tokens.truncate(order.reported as usize);
        }
        let prefix = self.cache.find(&tokens);
        let geometry = self.cache.geometry();
        let possible = possible_blocks(sealed, &prefix, geometry, tokens.len());
        let full = possible.iter().filter(|(_, tokens)| *tokens == page_tokens);
        let sliding_from =
            ReusablePrefix::of(geometry, prefix.blocks + full.count(), 0).sliding_from();
        let mut blocks = Vec::new();
        let mut is_full = false;
        for (index, (sealed, tokens)) in (prefix.blocks..).zip(possible) {
            let is_sliding = |group| group >= geometry.groups.full();
            let wanted = sealed.iter().enumerate().map(|(group, page)| {
                let is_wanted = index >= sliding_from || !is_sliding(group);
                let adopted = (is_wanted && page.tokens > 0 && !is_full)
                    .then(|| self.place(page, group as u32));
                is_full |= matches!(adopted, Some(None));
                adopted.flatten()
            });
            let pages = wanted.collect();
            blocks.push(AdoptedBlock { pages, tokens });
            if is_full {
                break;
            }
        }
        Adoption {
            blocks,
            prefix,
            tokens,
        }
    }

    /// Allocates a page for a sealed page, with or without an existing copy of it.
    fn place(&mut self, sealed: &SealedPage, group: u32) -> Option<Adopted> {
        let ahead = self.cache.find_ahead(PageId(sealed.page), sealed.checksum);
        let to = ahead.or_else(|| self.cache.allocate())?;
        Some(Adopted {
            copy: PageCopy {
                from: sealed.page,
                to,
                group,
                tokens: sealed.tokens,
                checksum: sealed.checksum,
            },
            is_here: ahead.is_some(),
        })
    }

    /// Submits the request after the reusable blocks with intact pages. `intact` has one entry for each of the
    /// [`copies`](Adoption::copies).
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_with(
        &mut self,
        submission: Submission,
        mut adoption: Adoption,
        intact: &mut impl Iterator<Item = bool>,
    ) -> Result<(), SchedulerError> {
        let geometry = self.cache.geometry();
        let page_tokens = geometry.page_tokens as usize;
        for page in adoption.pages_mut().filter(|page| !page.is_here) {
            page.is_here = intact.next() == Some(true);
            self.counters.changed_pages += u64::from(!page.is_here);
        }
        let Adoption {
            mut blocks,
            prefix,
            tokens,
        } = adoption;
        let (whole, groups) = (geometry.groups.full(), geometry.groups.count());
        let mut reach = ReusablePrefix::of(geometry, prefix.blocks, prefix.sliding_from);
        let here = blocks.iter().take_while(|block| block.has(0..whole));
        let full = here.filter(|block| block.tokens as usize == page_tokens);
        full.for_each(|block| reach.add(block.has(whole..groups)));
        let count = reach.longest() - prefix.blocks;
        let mut rest = blocks.split_off(count);
        let is_tail =
            |block: &AdoptedBlock| (block.tokens as usize) < page_tokens && block.has(0..groups);
        let tail = match rest.first().is_some_and(is_tail) {
            true => Some(rest.remove(0)),
            false => None,
        };
        let refused: Vec<_> = rest.iter().flat_map(AdoptedBlock::places).collect();
        self.cache.release(&refused);
        for block in blocks.iter().chain(&tail) {
            self.learn_seals_of(block);
        }
        let mut end = prefix.chain;
        for (index, block) in (prefix.blocks..).zip(&blocks) {
            let contents = &tokens[index * page_tokens..][..page_tokens];
            let here = |page: &Option<Adopted>| page.as_ref().map(|page| page.copy.to);
            let pages: Vec<_> = block.pages.iter().map(here).collect();
            end = self.cache.publish(end, contents, &pages);
        }
        let tail = tail.map(|block| Tail {
            pages: block.places().collect(),
            start: reach.longest() * page_tokens,
            tokens: block.tokens as usize,
        });
        // The submission below finds them by their tokens.
        let mut used: Vec<_> = prefix.pages.into_iter().flatten().collect();
        used.extend(blocks.iter().flat_map(AdoptedBlock::places));
        self.cache.release(&used);
        self.submit_behind(submission, tail)
    }

    /// Registers the checksums of an adopted block.
    fn learn_seals_of(&mut self, block: &AdoptedBlock) {
        for copy in block.pages.iter().flatten().map(|page| page.copy) {
            let part = PagePart {
                page: copy.to,
                group: copy.group,
                tokens: copy.tokens,
            };
            let epoch = self.cache.epoch(copy.to);
            self.seals.learn(Contents { part, epoch }, copy.checksum);
        }
        self.counters.adopted_tokens += u64::from(block.tokens);
    }

    /// Releases the adopted partial blocks of waiting requests, to make room. True if there were any.
    pub(super) fn give_up_tails(&mut self) -> bool {
        let Self { waiting, cache, .. } = self;
        let before = cache.available_pages();
        for sequence in waiting {
            sequence.give_up_tail(cache);
        }
        cache.available_pages() > before
    }
}

/// The next sealed pages of a sequence, up to the first block with an outstanding checksum.
fn sealing(sequence: &mut Sequence, cache: &KvPages, seals: &Seals, every: u32) -> Sealing {
    let sealed = |contents: Option<Contents>| {
        let Some(contents) = contents else {
            return Some(SealedPage::GIVEN_BACK);
        };
        let PagePart { page, tokens, .. } = contents.part;
        Some(SealedPage {
            page: page.0,
            tokens,
            checksum: seals.of(contents)?,
        })
    };
    let mut pages: Vec<_> = sequence.unsent(cache, every).map_while(sealed).collect();
    let groups = cache.geometry().groups.count();
    let blocks = pages.len() / groups;
    pages.truncate(blocks * groups);
    let first = groups * sequence.mark_reported(cache, blocks, every);
    Sealing {
        request: sequence.request,
        first: first as u32,
        pages,
    }
}
