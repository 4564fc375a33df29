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
//! A page is written only while it is private: it belongs to one sequence and is not full. A page
//! that is full may be published under the exact tokens it holds and the page before it; other
//! sequences with the same beginning then share it, and it is never written again. Pages that
//! nobody uses are kept until their room is needed.
//!
//! A child that stands by keeps free pages aside that hold what another child has sealed at the same
//! place, until their request comes, or nobody will.
//!
//! Tokens are compared, not hashes of them: two prefixes never share a page by accident.

use crate::device::{KvGeometry, PageId};
use hashbrown::hash_map::Entry;
use hashbrown::{Equivalent, HashMap};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher, RandomState};
use std::sync::Arc;
use worker_orcd_ipc::TokenId;

/// Names the end of a chain of published pages. Never reused, so that a page which takes the
/// place of an evicted one cannot be mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainId(u64);

impl ChainId {
    /// The empty chain.
    pub const ROOT: Self = Self(0);
}

/// The published pages with which a sequence of tokens begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefix {
    pub pages: Vec<PageId>,
    pub chain: ChainId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PageKey {
    parent: ChainId,
    tokens: Arc<[TokenId]>,
}

impl Hash for PageKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { parent, tokens } = self;
        let parent = *parent;
        Place { parent, tokens }.hash(state);
    }
}

/// A key that is looked up.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    parent: ChainId,
    tokens: &'a [TokenId],
}

/// Two tokens at a time: a long prompt is looked up page by page when it goes on in another child.
impl Hash for Place<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parent.0);
        for pair in self.tokens.chunks(2) {
            let [first, second] = [pair.first(), pair.get(1)].map(|it| it.map_or(0, |it| it.0));
            state.write_u64(u64::from(first) << 32 | u64::from(second));
        }
    }
}

impl Equivalent<PageKey> for Place<'_> {
    fn equivalent(&self, key: &PageKey) -> bool {
        self.parent == key.parent && *self.tokens == *key.tokens
    }
}

#[derive(Debug, Default)]
struct Page {
    /// Sequences that use it.
    users: u32,
    published: Option<PageKey>,
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
    chains: HashMap<PageKey, (ChainId, PageId), RandomState>,
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

    /// Pages that hold positions `0 .. tokens`.
    #[must_use]
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.geometry.page_tokens as usize)
    }

    /// The longest published beginning of `tokens`, in whole pages. The caller becomes a user of
    /// these pages.
    pub fn find(&mut self, tokens: &[TokenId]) -> Prefix {
        let mut prefix = Prefix {
            pages: Vec::new(),
            chain: ChainId::ROOT,
        };
        if self.shares_prefixes {
            for page_tokens in tokens.chunks_exact(self.geometry.page_tokens as usize) {
                let place = Place {
                    parent: prefix.chain,
                    tokens: page_tokens,
                };
                let Some(&(chain, page)) = self.chains.get(&place) else {
                    break;
                };
                self.add_user(page);
                prefix.pages.push(page);
                prefix.chain = chain;
            }
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

    fn hand_out(&mut self, page: PageId) -> PageId {
        let allocated = &mut self.pages[page.0 as usize];
        allocated.users = 1;
        allocated.epoch += 1;
        page
    }

    /// Offers a full page, which holds `tokens` behind the chain `parent`, to others. Gives the
    /// longer chain's name. When a page that is in use already has this place, the caller's stays
    /// private.
    pub fn publish(&mut self, parent: ChainId, tokens: &[TokenId], page: PageId) -> ChainId {
        debug_assert_eq!(tokens.len(), self.geometry.page_tokens as usize);
        if !self.shares_prefixes {
            return ChainId::ROOT;
        }
        let key = PageKey {
            parent,
            tokens: tokens.into(),
        };
        match self.chains.entry(key) {
            Entry::Occupied(mut entry) => {
                let key = entry.key().clone();
                let (chain, known) = entry.get_mut();
                if self.pages[known.0 as usize].users == 0 {
                    // The other one has no user: this one takes its place, so that a chain whose end
                    // is in use does not lose its front.
                    let unused = std::mem::replace(known, page);
                    self.kept.count -= 1;
                    self.pages[unused.0 as usize].published = None;
                    self.pages[page.0 as usize].published = Some(key);
                    self.free.push(unused);
                }
                *chain
            }
            Entry::Vacant(entry) => {
                let chain = ChainId(self.next_chain);
                self.next_chain += 1;
                self.pages[page.0 as usize].published = Some(entry.key().clone());
                entry.insert((chain, page));
                chain
            }
        }
    }

    /// The caller stops using these pages, given in the order of positions.
    pub fn release(&mut self, pages: &[PageId]) {
        // From the end, so that the front of a chain is the youngest and evicted last: a page is
        // of no use to anybody without the pages before it.
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

    fn evict(&mut self) -> Option<PageId> {
        loop {
            let (released, id) = self.kept.queue.pop_front()?;
            let page = &mut self.pages[id.0 as usize];
            if !page.is_kept_since(released) {
                continue;
            }
            self.kept.count -= 1;
            if let Some(key) = page.published.take() {
                self.chains.remove(&key);
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
mod tests {
    use super::*;

    fn cache(pages: u32) -> KvPages {
        KvPages::new(
            KvGeometry {
                page_tokens: 2,
                pages,
                page_bytes: 64,
            },
            true,
        )
    }

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    /// Allocates and publishes pages for all of `ids`.
    fn fill(cache: &mut KvPages, ids: &[u32]) -> Vec<PageId> {
        let mut chain = ChainId::ROOT;
        let mut pages = Vec::new();
        for page_tokens in tokens(ids).chunks_exact(2) {
            let page = cache.allocate().unwrap();
            chain = cache.publish(chain, page_tokens, page);
            pages.push(page);
        }
        pages
    }

    #[test]
    fn a_published_prefix_is_found_and_shared() {
        let mut cache = cache(8);
        let pages = fill(&mut cache, &[1, 2, 3, 4]);
        assert_eq!(cache.find(&tokens(&[1, 2, 3, 4, 5])).pages, pages);
        assert_eq!(cache.find(&tokens(&[1, 2, 9, 9])).pages, pages[..1]);
        assert!(
            cache.find(&tokens(&[3, 4])).pages.is_empty(),
            "not at the beginning"
        );
        assert!(!cache.is_private(pages[0]));
        assert_eq!(cache.used_pages(), 2);
    }

    #[test]
    fn equal_tokens_behind_different_beginnings_are_different_pages() {
        let mut cache = cache(8);
        let a = fill(&mut cache, &[1, 1, 7, 7]);
        let b = fill(&mut cache, &[2, 2, 7, 7]);
        assert_eq!(cache.find(&tokens(&[1, 1, 7, 7])).pages, a);
        assert_eq!(cache.find(&tokens(&[2, 2, 7, 7])).pages, b);
    }

    #[test]
    fn the_first_of_two_equal_pages_is_the_shared_one() {
        let mut cache = cache(8);
        let a = fill(&mut cache, &[1, 1, 2, 2]);
        let b = fill(&mut cache, &[1, 1, 2, 2]);
        assert_eq!(cache.find(&tokens(&[1, 1, 2, 2])).pages, a);
        assert!(cache.is_private(b[0]) && cache.is_private(b[1]));
    }

    #[test]
    fn pages_without_users_are_kept_until_room_is_needed() {
        let mut cache = cache(3);
        let a = fill(&mut cache, &[1, 1, 2, 2]);
        cache.release(&a);
        assert_eq!((cache.available_pages(), cache.used_pages()), (3, 0));
        assert_eq!(cache.find(&tokens(&[1, 1, 2, 2])).pages, a);
        cache.release(&a);
        // One is free, then the end of the chain goes before its front.
        cache.allocate().unwrap();
        cache.allocate().unwrap();
        assert_eq!(cache.find(&tokens(&[1, 1, 2, 2])).pages, a[..1]);
        assert_eq!(cache.allocate(), None, "the last page has a user");
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = cache(2);
        let a = fill(&mut cache, &[1, 1]);
        let b = fill(&mut cache, &[2, 2]);
        cache.release(&a);
        cache.release(&b);
        let again = cache.find(&tokens(&[1, 1]));
        cache.release(&again.pages);
        cache.allocate().unwrap();
        assert!(cache.find(&tokens(&[2, 2])).pages.is_empty());
        assert_eq!(cache.find(&tokens(&[1, 1])).pages, a);
    }

    #[test]
    fn a_page_that_finds_users_again_and_again_is_noted_once_or_twice() {
        let mut cache = cache(3);
        let a = fill(&mut cache, &[1, 1]);
        for _ in 0..100 {
            cache.release(&a);
            assert_eq!(cache.find(&tokens(&[1, 1])).pages, a);
        }
        assert!(cache.kept.queue.len() <= 2 * cache.pages.len());
        cache.release(&a);
        assert_eq!(cache.available_pages(), 3);
        assert_eq!(cache.find(&tokens(&[1, 1])).pages, a, "it is still noted");
    }

    #[test]
    fn an_evicted_page_is_not_found_through_its_old_chain() {
        let mut cache = cache(2);
        let a = fill(&mut cache, &[1, 1, 2, 2]);
        cache.release(&a);
        // Takes both pages, one after the other, and publishes the old front anew.
        let b = fill(&mut cache, &[1, 1, 3, 3]);
        assert_eq!(cache.find(&tokens(&[1, 1, 2, 2])).pages, b[..1]);
    }

    #[test]
    fn pages_kept_ahead_are_found_by_their_checksum_and_given_to_others_last() {
        let mut cache = cache(4);
        let used = cache.allocate().unwrap();
        assert!(!cache.take_ahead(used) && !cache.take_ahead(PageId(4)));
        for (page, checksum) in [(1, Some(10)), (2, Some(20)), (3, None)] {
            assert!(cache.take_ahead(PageId(page)));
            cache.keep_ahead(PageId(page), checksum);
        }
        assert_eq!((cache.available_pages(), cache.used_pages()), (3, 1));
        assert_eq!(cache.find_ahead(PageId(1), 20), None);
        assert_eq!(cache.find_ahead(PageId(1), 10), Some(PageId(1)));
        assert_eq!(cache.find_ahead(PageId(1), 10), None, "it has a user");
        assert!(cache.is_private(PageId(1)));
        assert_eq!(cache.allocate(), Some(PageId(3)), "the one that is free");
        assert_eq!(cache.allocate(), Some(PageId(2)));
        assert_eq!(cache.find_ahead(PageId(2), 20), None);
        assert_eq!(cache.allocate(), None);
    }

    #[test]
    fn a_page_kept_ahead_may_be_taken_for_something_newer_or_be_forgotten() {
        let mut cache = cache(2);
        for checksum in [10, 11] {
            assert!(cache.take_ahead(PageId(0)));
            assert_eq!(cache.find_ahead(PageId(0), 10), None, "it is being written");
            cache.keep_ahead(PageId(0), Some(checksum));
        }
        cache.forget_ahead();
        assert_eq!(cache.available_pages(), 2);
        assert_eq!(cache.find_ahead(PageId(0), 11), None);
        assert!(cache.allocate().is_some() && cache.allocate().is_some());
    }

    #[test]
    fn without_sharing_nothing_is_found_or_kept() {
        let mut cache = KvPages::new(
            KvGeometry {
                page_tokens: 2,
                pages: 4,
                page_bytes: 1,
            },
            false,
        );
        let pages = fill(&mut cache, &[1, 1, 2, 2]);
        assert!(cache.find(&tokens(&[1, 1, 2, 2])).pages.is_empty());
        assert!(cache.is_private(pages[0]));
        cache.release(&pages);
        assert_eq!(cache.free.len(), 4);
    }
}
