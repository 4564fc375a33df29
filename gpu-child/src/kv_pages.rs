//! Page allocator and prefix cache of the KV arena. Pure: it deals in page numbers and never touches the arena.
//!
//! ```text
//!            allocate             publish (full, tokens known)
//!   free ──────────────► private ───────────────────────────► shared
//!    ▲                      │                                  │   ▲
//!    │       release        │                 release of last  │   │ find
//!    ├──────────────────────┘                                  ▼   │
//!    └──────────────────────────────────────────────────────── kept
//!                         evict (least recently used)
//! ```
//!
//! A page is written only while it is private: one sequence uses it, and it is not full. The pages of a full block, one
//! for each group of layers ([`KvGeometry`]), may be published under their exact tokens and the preceding block. Other
//! sequences with the same prefix then share them, and they are never written again. Pages without users stay cached
//! until an allocation evicts them.
//!
//! Pages of sliding-window layers are released while their sequence runs, so they are evicted earlier than the others
//! of their block. A prefix is reusable up to a block from which all pages in the layers' windows are present
//! ([`ReusablePrefix`]).
//!
//! A standby reserves free pages for copies of pages that another child has sealed under the same numbers, until their
//! request arrives or cannot arrive any more.
//!
//! The cache compares tokens, not their hashes: two prefixes never share a page by collision.

mod chain;
mod reusable_prefix;

use crate::device::{KvGeometry, PageId};
use chain::{Block, BlockKey, Place};
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use worker_orcd_ipc::TokenId;

pub use chain::ChainId;
pub use reusable_prefix::ReusablePrefix;

/// Published blocks that match the beginning of a sequence of tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Page of block `b` and group `g` at `b * groups + g`. `None` for sliding-window pages before `sliding_from`.
    pub pages: Vec<Option<PageId>>,
    pub blocks: usize,
    /// First block with sliding-window pages.
    pub sliding_from: usize,
    pub chain: ChainId,
}

#[derive(Debug, Default)]
struct Page {
    /// Number of sequences that use the page.
    users: u32,
    /// Block and group under which the page is published.
    published: Option<(BlockKey, usize)>,
    /// Logical time at which the last user released the page.
    released: u64,
    /// Number of allocations so far.
    epoch: u64,
}

/// Published pages without users, by time of release.
#[derive(Debug, Default)]
struct Unreferenced {
    count: usize,
    /// Lazy: a page that has found a user since stays here until eviction reaches it.
    queue: VecDeque<(u64, PageId)>,
}

#[derive(Debug)]
pub struct KvPages {
    geometry: KvGeometry,
    shares_prefixes: bool,
    pages: Vec<Page>,
    free: Vec<PageId>,
    /// Pages reserved for copies of another child's sealed pages under the same numbers, with their checksums.
    ahead: BTreeMap<PageId, u128>,
    /// The hash is randomly seeded: clients choose the tokens and must not be able to force collisions.
    chains: HashMap<BlockKey, Block, RandomState>,
    kept: Unreferenced,
    clock: u64,
    next_chain: u64,
}

impl KvPages {
    #[must_use]
    pub fn new(geometry: KvGeometry, shares_prefixes: bool) -> Self {
        Self {
            geometry,
            shares_prefixes,
            pages: (0..geometry.pages).map(|_| Page::default()).collect(),
            // Popped from the back: low numbers first.
            free: (0..geometry.pages).rev().map(PageId).collect(),
            ahead: BTreeMap::new(),
            chains: HashMap::with_capacity_and_hasher(geometry.pages as usize, RandomState::new()),
            kept: Unreferenced::default(),
            clock: 0,
            next_chain: 1,
        }
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// Pages that can be allocated now, including cached pages without users.
    #[must_use]
    pub fn available_pages(&self) -> u32 {
        (self.free.len() + self.ahead.len() + self.kept.count) as u32
    }

    /// Pages in use by at least one sequence.
    #[must_use]
    pub fn used_pages(&self) -> u32 {
        self.geometry.pages - self.available_pages()
    }

    /// Longest reusable published prefix of `tokens`, in whole blocks. The caller becomes a user of its pages.
    pub fn find(&mut self, tokens: &[TokenId]) -> Prefix {
        let (geometry, mut chain) = (self.geometry, ChainId::ROOT);
        let whole = geometry.groups.full();
        let mut reach = ReusablePrefix::of(geometry, 0, 0);
        let mut found: Vec<&Block> = Vec::new();
        let blocks = tokens.chunks_exact(geometry.page_tokens as usize);
        for tokens in blocks.filter(|_| self.shares_prefixes) {
            let place = Place {
                parent: chain,
                tokens,
            };
            let Some(block) = self.chains.get(&place) else {
                break;
            };
            reach.add(block.pages[whole..].iter().all(Option::is_some));
            chain = block.chain;
            found.push(block);
        }
        found.truncate(reach.longest());
        let sliding_from = reach.sliding_from();
        let pages = found.iter().enumerate().flat_map(|(index, block)| {
            let pages = block.pages.iter().enumerate();
            pages.map(move |(group, page)| page.filter(|_| group < whole || index >= sliding_from))
        });
        let prefix = Prefix {
            pages: pages.collect(),
            blocks: found.len(),
            sliding_from,
            chain: found.last().map_or(ChainId::ROOT, |block| block.chain),
        };
        for page in prefix.pages.iter().flatten() {
            self.add_user(*page);
        }
        prefix
    }

    /// Allocates a private page. `None` if every page has a user.
    pub fn allocate(&mut self) -> Option<PageId> {
        let free = self.free.pop();
        // From the end: the first ones belong to the oldest request, which arrives next.
        let page = free.or_else(|| Some(self.ahead.pop_last()?.0));
        let page = page.or_else(|| self.evict())?;
        Some(self.hand_out(page))
    }

    /// Reserves a free page for a copy of another child's page of the same number. It has no owner until it is
    /// [kept](Self::keep_ahead). True also if it was reserved for this purpose before.
    pub fn take_ahead(&mut self, page: PageId) -> bool {
        let place = self.free.iter().rposition(|free| *free == page);
        if let Some(place) = place {
            self.free.remove(place);
        }
        self.ahead.remove(&page).is_some() || place.is_some()
    }

    /// Records the checksum of the contents of a [reserved](Self::take_ahead) page. `None` frees the page.
    pub fn keep_ahead(&mut self, page: PageId, checksum: Option<u128>) {
        match checksum {
            Some(checksum) => {
                self.ahead.insert(page, checksum);
            }
            None => self.free.push(page),
        }
    }

    /// Allocates the page to the caller if it was [kept](Self::keep_ahead) with this checksum.
    pub fn find_ahead(&mut self, page: PageId, checksum: u128) -> Option<PageId> {
        let is_it = self.ahead.get(&page) == Some(&checksum);
        is_it.then(|| {
            self.ahead.remove(&page);
            self.hand_out(page)
        })
    }

    /// Frees all pages reserved for copies: no request will arrive for them.
    pub fn forget_ahead(&mut self) {
        let pages = std::mem::take(&mut self.ahead);
        self.free.extend(pages.into_keys().rev());
    }

    /// Allocates `count` private pages, or none.
    pub fn allocate_all(&mut self, count: usize) -> Option<Vec<PageId>> {
        let is_there = count <= self.available_pages() as usize;
        is_there.then(|| (0..count).map_while(|_| self.allocate()).collect())
    }

    fn hand_out(&mut self, page: PageId) -> PageId {
        let allocated = &mut self.pages[page.0 as usize];
        allocated.users = 1;
        allocated.epoch += 1;
        page
    }

    /// Publishes the pages of a full block with `tokens` after the chain `parent`: one for each group, except released
    /// sliding-window pages. Returns the extended chain. Where the block already has a page in use, the caller's page
    /// stays private.
    pub fn publish(
        &mut self,
        parent: ChainId,
        tokens: &[TokenId],
        pages: &[Option<PageId>],
    ) -> ChainId {
        debug_assert_eq!(tokens.len(), self.geometry.page_tokens as usize);
        debug_assert_eq!(pages.len(), self.geometry.groups.count());
        if !self.shares_prefixes {
            return ChainId::ROOT;
        }
        let key = BlockKey {
            parent,
            tokens: tokens.into(),
        };
        let next_chain = &mut self.next_chain;
        let block = self.chains.entry(key.clone()).or_insert_with(|| {
            *next_chain += 1;
            Block {
                chain: ChainId(*next_chain - 1),
                pages: vec![None; pages.len()].into(),
            }
        });
        for (group, (known, own)) in block.pages.iter_mut().zip(pages).enumerate() {
            let Some(own) = *own else { continue };
            match *known {
                Some(other) if self.pages[other.0 as usize].users > 0 => continue,
                // The other page has no user. This one replaces it, so that a chain with a used end keeps its front.
                Some(other) => {
                    self.kept.count -= 1;
                    self.pages[other.0 as usize].published = None;
                    self.free.push(other);
                }
                None => {}
            }
            *known = Some(own);
            self.pages[own.0 as usize].published = Some((key.clone(), group));
        }
        block.chain
    }

    /// Releases the caller's use of these pages, listed in the order of positions.
    pub fn release(&mut self, pages: &[PageId]) {
        // From the end, so that the front of a chain is the youngest and evicted last: a block is unusable without the
        // blocks before it.
        for &id in pages.iter().rev() {
            let page = &mut self.pages[id.0 as usize];
            page.users = page
                .users
                .checked_sub(1)
                .expect("only a user releases a page");
            if page.users > 0 {
                continue;
            }
            if page.published.is_some() {
                self.clock += 1;
                page.released = self.clock;
                self.kept.count += 1;
                self.kept.queue.push_back((self.clock, id));
            } else {
                self.free.push(id);
            }
        }
        if self.kept.queue.len() > 2 * self.pages.len() {
            let Self { kept, pages, .. } = self;
            kept.queue
                .retain(|(released, id)| pages[id.0 as usize].is_kept_since(*released));
        }
    }

    /// Allocation count of a page: distinguishes its contents from those of earlier allocations.
    #[must_use]
    pub fn epoch(&self, page: PageId) -> u64 {
        self.pages[page.0 as usize].epoch
    }

    /// True for a writable page: one sequence uses it, and it is not published.
    #[must_use]
    pub fn is_private(&self, page: PageId) -> bool {
        let page = &self.pages[page.0 as usize];
        page.users == 1 && page.published.is_none()
    }

    fn add_user(&mut self, id: PageId) {
        let page = &mut self.pages[id.0 as usize];
        if page.users == 0 {
            self.kept.count -= 1;
        }
        page.users += 1;
    }

    /// Removes this group's page from the block. Without a page of a full-attention group, or without any page, the
    /// rest of the block is unusable and is freed.
    fn withdraw(&mut self, key: &BlockKey, group: usize) {
        let Some(block) = self.chains.get_mut(key) else {
            return;
        };
        block.pages[group] = None;
        let is_of_use =
            group >= self.geometry.groups.full() && block.pages.iter().any(Option::is_some);
        if is_of_use {
            return;
        }
        let rest = self.chains.remove(key).into_iter();
        for id in rest.flat_map(|block| block.pages).flatten() {
            let page = &mut self.pages[id.0 as usize];
            page.published = None;
            if page.users == 0 {
                self.kept.count -= 1;
                self.free.push(id);
            }
        }
    }

    fn evict(&mut self) -> Option<PageId> {
        loop {
            let (released, id) = self.kept.queue.pop_front()?;
            let page = &mut self.pages[id.0 as usize];
            if !page.is_kept_since(released) {
                continue;
            }
            self.kept.count -= 1;
            if let Some((key, group)) = page.published.take() {
                self.withdraw(&key, group);
            }
            return Some(id);
        }
    }
}

impl Page {
    fn is_kept_since(&self, released: u64) -> bool {
        self.users == 0 && self.published.is_some() && self.released == released
    }
}

#[cfg(test)]
mod tests;
