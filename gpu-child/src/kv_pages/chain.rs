//! Chains of published blocks: lookup keys of a block, and its pages.

use crate::device::PageId;
use hashbrown::Equivalent;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use worker_orcd_ipc::TokenId;

/// Identifier of the end of a chain of published blocks. Never reused, so that a block that replaces an evicted one
/// cannot be mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainId(pub(super) u64);

impl ChainId {
    /// The empty chain.
    pub const ROOT: Self = Self(0);
}

/// A published block.
#[derive(Debug)]
pub(super) struct Block {
    pub chain: ChainId,
    /// Pages by group of layers. Pages of sliding-window groups may be missing.
    pub pages: Box<[Option<PageId>]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockKey {
    pub parent: ChainId,
    pub tokens: Arc<[TokenId]>,
}

impl Hash for BlockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { parent, tokens } = self;
        let parent = *parent;
        Place { parent, tokens }.hash(state);
    }
}

/// Borrowed form of a key, for lookups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub parent: ChainId,
    pub tokens: &'a [TokenId],
}

/// Hashes two tokens at a time: after a failover, a long prompt is looked up block by block.
impl Hash for Place<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parent.0);
        for pair in self.tokens.chunks(2) {
            let [first, second] = [pair.first(), pair.get(1)].map(|it| it.map_or(0, |it| it.0));
            state.write_u64(u64::from(first) << 32 | u64::from(second));
        }
    }
}

impl Equivalent<BlockKey> for Place<'_> {
    fn equivalent(&self, key: &BlockKey) -> bool {
        self.parent == key.parent && *self.tokens == *key.tokens
    }
}
