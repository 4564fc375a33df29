//! Estimate of a child's prefix cache.
//!
//! A history is divided into blocks. The hash of a block covers the block and everything before it, so one lookup shows
//! whether a child has had the same prefix. The hash is keyed per supervisor, so a client cannot search for collisions.
//! A wrong estimate costs time but changes no bits, because the child compares tokens, not hashes.

use lru::LruCache;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroUsize;
use worker_orcd_ipc::TokenId;

/// Tokens of a block: two pages of a child's KV cache, which keeps whole pages.
pub(crate) const BLOCK_TOKENS: usize = 64;

/// Maximum number of remembered blocks per child: two million tokens.
const MOST_BLOCKS: usize = 1 << 15;

/// Key of all hashes of this supervisor.
#[derive(Debug, Default)]
pub(crate) struct Key(RandomState);

/// Hashes of the complete blocks of one history.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(Vec<u64>);

/// Prefixes that one child was given, in least-recently-used order like the child's own cache.
#[derive(Debug)]
pub(crate) struct Prefixes(LruCache<u64, ()>);

impl Key {
    pub(crate) fn chain(&self, prompt: &[TokenId]) -> Chain {
        let mut chain = Chain::default();
        self.lengthen(&mut chain, prompt, &[]);
        chain
    }

    /// Adds the blocks of a longer history that begins with the blocks of `chain`.
    pub(crate) fn lengthen(&self, chain: &mut Chain, prompt: &[TokenId], generated: &[TokenId]) {
        let known = chain.0.len() * BLOCK_TOKENS;
        let mut left = prompt.iter().chain(generated).skip(known);
        let mut blocks = (prompt.len() + generated.len()).saturating_sub(known) / BLOCK_TOKENS;
        while blocks > 0 {
            let mut hasher = self.0.build_hasher();
            hasher.write_u64(chain.0.last().copied().unwrap_or(0));
            for token in left.by_ref().take(BLOCK_TOKENS) {
                hasher.write_u32(token.0);
            }
            chain.0.push(hasher.finish());
            blocks -= 1;
        }
    }
}

impl Prefixes {
    /// Creates the estimate for a KV cache of `kv_tokens` tokens.
    pub(crate) fn new(kv_tokens: u64) -> Self {
        let blocks = usize::try_from(kv_tokens).unwrap_or(usize::MAX) / BLOCK_TOKENS;
        let most = NonZeroUsize::new(blocks.min(MOST_BLOCKS)).unwrap_or(NonZeroUsize::MIN);
        Self(LruCache::sparse(most))
    }

    /// Notes a history that the child computes or has computed.
    pub(crate) fn note(&mut self, chain: &Chain) {
        // The order from the end evicts a block never before the blocks that follow it.
        for block in chain.0.iter().rev() {
            self.0.put(*block, ());
        }
    }

    /// Number of tokens at the beginning of this history that the child probably has in its cache.
    pub(crate) fn cached_tokens(&self, chain: &Chain) -> usize {
        let known = chain.0.partition_point(|block| self.0.contains(block));
        known * BLOCK_TOKENS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(numbers: std::ops::Range<u32>) -> Vec<TokenId> {
        numbers.map(TokenId).collect()
    }

    #[test]
    fn a_beginning_is_known_in_whole_blocks_up_to_where_histories_part() {
        let (key, mut prefixes) = (Key::default(), Prefixes::new(4096));
        prefixes.note(&key.chain(&tokens(0..200)));
        let mut other = tokens(0..300);
        assert_eq!(prefixes.cached_tokens(&key.chain(&other)), 192);
        other[130] = TokenId(7);
        assert_eq!(prefixes.cached_tokens(&key.chain(&other)), 128);
        other[0] = TokenId(7);
        assert_eq!(prefixes.cached_tokens(&key.chain(&other)), 0);
        assert_eq!(prefixes.cached_tokens(&key.chain(&other[..63])), 0);
    }

    #[test]
    fn a_chain_grows_by_an_answer_as_if_it_had_been_the_prompt() {
        let key = Key::default();
        let mut grown = key.chain(&tokens(0..100));
        key.lengthen(&mut grown, &tokens(0..100), &tokens(100..260));
        assert_eq!(grown.0, key.chain(&tokens(0..260)).0);
    }

    #[test]
    fn another_supervisor_has_other_hashes() {
        let prompt = tokens(0..64);
        assert_ne!(
            Key::default().chain(&prompt).0,
            Key::default().chain(&prompt).0
        );
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_end_goes_first() {
        let key = Key::default();
        let old = key.chain(&tokens(0..256));
        let mut prefixes = Prefixes::new(8 * BLOCK_TOKENS as u64);
        prefixes.note(&old);
        prefixes.note(&key.chain(&tokens(1000..1384)));
        assert_eq!(
            prefixes.cached_tokens(&old),
            128,
            "two of its four blocks are left"
        );
        let mut prefixes = Prefixes::new(u64::MAX);
        for first in 0..2 * MOST_BLOCKS as u32 {
            prefixes.note(&key.chain(&tokens(first..first + 64)));
        }
        assert_eq!(prefixes.0.len(), MOST_BLOCKS);
    }
}
