//! The pages of the KV arena: what each holds, and for whom. Pure: it hands out page numbers and
//! never touches the arena.
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
//! A page is written only while it is private: it belongs to one sequence and is not full. The pages of
//! a block that is full, one for each group of layers ([`KvGeometry`]), may be published under the exact tokens
//! that they hold and the block before it; other sequences with the same beginning then share them, and they are
//! never written again. Pages that nobody uses are kept until their room is needed.
//!
//! Pages whose layers see a window are given back while their sequence goes on, so they are evicted earlier than others of their
//! block. A beginning is of use up to any block for which all is there that is seen from behind it ([`Reach`]).
//!
//! A child that stands by keeps free pages aside that hold what another child has sealed at the same
//! place, until their request comes, or nobody will.
//!
//! Tokens are compared, not hashes of them: two prefixes never share a page by accident.

mod chain;
mod reach;

use crate::device::{KvGeometry, PageId};
use chain::{Block, BlockKey, Place};
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::hash::RandomState;
use worker_orcd_ipc::TokenId;

pub use chain::ChainId;
pub use reach::Reach;

/// The published blocks with which a sequence of tokens begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Of block `b` and group `g` at `b * groups + g`; `None` for near pages before `near_from`.
    pub pages: Vec<Option<PageId>>,
    pub blocks: usize,
    /// The first block with near pages.
    pub near_from: usize,
    pub chain: ChainId,
}

#[derive(Debug, Default)]
struct Page {
    /// Sequences that use it.
    users: u32,
    /// The block and its group that it is found under.
    published: Option<(BlockKey, usize)>,
    /// Time at which its last user let go of it.
    released: u64,
    /// Times that it was allocated.
    epoch: u64,
}

/// Published pages without users, by time of release.
#[derive(Debug, Default)]
struct Kept {
    count: usize,
    /// A page that has found a user since then stays here until its turn comes.
    queue: VecDeque<(u64, PageId)>,
}

#[derive(Debug)]
pub struct KvPages {
    geometry: KvGeometry,
    shares_prefixes: bool,
    pages: Vec<Page>,
    free: Vec<PageId>,
    /// Pages without users that hold what another child has sealed at the same place, with its checksum.
    ahead: BTreeMap<PageId, u128>,
    /// With a hash that strangers, whose tokens these are, cannot guess.
    chains: HashMap<BlockKey, Block, RandomState>,
    kept: Kept,
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
            kept: Kept::default(),
            clock: 0,
            next_chain: 1,
        }
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// Pages that can be allocated now, kept ones given up.
    #[must_use]
    pub fn available_pages(&self) -> u32 {
        (self.free.len() + self.ahead.len() + self.kept.count) as u32
    }

    /// Pages that some sequence uses.
    #[must_use]
    pub fn used_pages(&self) -> u32 {
        self.geometry.pages - self.available_pages()
    }

    /// The longest published beginning of `tokens` that can be gone on from, in whole blocks. The caller becomes a user of
    /// its pages.
    pub fn find(&mut self, tokens: &[TokenId]) -> Prefix {
        let (geometry, mut chain) = (self.geometry, ChainId::ROOT);
        let whole = geometry.groups.whole();
        let mut reach = Reach::of(geometry, 0, 0);
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
        let near_from = reach.near_from();
        let pages = found.iter().enumerate().flat_map(|(index, block)| {
            let pages = block.pages.iter().enumerate();
            pages.map(move |(group, page)| page.filter(|_| group < whole || index >= near_from))
        });
        let prefix = Prefix {
            pages: pages.collect(),
            blocks: found.len(),
            near_from,
            chain: found.last().map_or(ChainId::ROOT, |block| block.chain),
        };
        for page in prefix.pages.iter().flatten() {
            self.add_user(*page);
        }
        prefix
    }

    /// A page that only the caller uses; `None` when every page has a user.
    pub fn allocate(&mut self) -> Option<PageId> {
        let free = self.free.pop();
        // From the end: the first ones belong to the oldest request, which is the next to come.
        let page = free.or_else(|| Some(self.ahead.pop_last()?.0));
        let page = page.or_else(|| self.evict())?;
        Some(self.hand_out(page))
    }

    /// Takes a free page for what another child has at the same place. It is nobody's before it is
    /// [kept](Self::keep_ahead), and may have been taken for that before.
    pub fn take_ahead(&mut self, page: PageId) -> bool {
        let place = self.free.iter().rposition(|free| *free == page);
        if let Some(place) = place {
            self.free.remove(place);
        }
        self.ahead.remove(&page).is_some() || place.is_some()
    }

    /// The page that was [taken](Self::take_ahead) holds what has this checksum; without one it is free again.
    pub fn keep_ahead(&mut self, page: PageId, checksum: Option<u128>) {
        match checksum {
            Some(checksum) => {
                self.ahead.insert(page, checksum);
            }
            None => self.free.push(page),
        }
    }

    /// The page, for the caller alone, if it was [kept](Self::keep_ahead) and has this checksum.
    pub fn find_ahead(&mut self, page: PageId, checksum: u128) -> Option<PageId> {
        let is_it = self.ahead.get(&page) == Some(&checksum);
        is_it.then(|| {
            self.ahead.remove(&page);
            self.hand_out(page)
        })
    }

    /// Nobody will come for what was kept ahead.
    pub fn forget_ahead(&mut self) {
        let pages = std::mem::take(&mut self.ahead);
        self.free.extend(pages.into_keys().rev());
    }

    /// So many pages that only the caller uses, or none.
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

    /// Offers the pages of a full block, which holds `tokens` behind the chain `parent`, to others: one for each group, but for
    /// near pages that were given back. Gives the longer chain's name. Where a page that is in use already has a place,
    /// the caller's stays private.
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
                // The other one has no user: this one takes its place, so that a chain whose end
                // is in use does not lose its front.
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

    /// The caller stops using these pages, given in the order of positions.
    pub fn release(&mut self, pages: &[PageId]) {
        // From the end, so that the front of a chain is the youngest and evicted last: a block is
        // of no use to anybody without the blocks before it.
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

    /// Tells a page from what it was before it was allocated the last time.
    #[must_use]
    pub fn epoch(&self, page: PageId) -> u64 {
        self.pages[page.0 as usize].epoch
    }

    /// A page that may be written: one sequence uses it and no other can find it.
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

    /// A page of this group is the block's no more. Without a page of layers that see all, or without any, nobody can use the
    /// rest.
    fn withdraw(&mut self, key: &BlockKey, group: usize) {
        let Some(block) = self.chains.get_mut(key) else {
            return;
        };
        block.pages[group] = None;
        let is_of_use =
            group >= self.geometry.groups.whole() && block.pages.iter().any(Option::is_some);
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
