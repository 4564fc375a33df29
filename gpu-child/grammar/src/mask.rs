//! A set of tokens.

use worker_orcd_ipc::TokenId;

/// Allowed next tokens: bit `i % 32` of word `i / 32` is token `i`, and there are exactly `vocabulary.div_ceil(32)`
/// words. At least one bit is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask(Vec<u32>);

impl Mask {
    /// Mask of these words. `words` may be longer; bits outside the vocabulary are dropped.
    pub(crate) fn new(mut words: Vec<u32>, vocabulary: usize) -> Self {
        words.resize(vocabulary.div_ceil(32), 0);
        if let Some(last) = words.last_mut()
            && !vocabulary.is_multiple_of(32)
        {
            *last &= (1 << (vocabulary % 32)) - 1;
        }
        Self(words)
    }

    /// Mask of these tokens; those outside the vocabulary are dropped.
    pub fn of(tokens: impl IntoIterator<Item = TokenId>, vocabulary: usize) -> Self {
        let mut words = vec![0; vocabulary.div_ceil(32)];
        for token in tokens {
            if let Some(word) = words.get_mut(token.index() / 32) {
                *word |= 1 << (token.index() % 32);
            }
        }
        Self::new(words, vocabulary)
    }

    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.0.get(token.index() / 32);
        word.is_some_and(|word| word & 1 << (token.index() % 32) != 0)
    }

    /// The allowed token, if there is exactly one.
    #[must_use]
    pub fn only(&self) -> Option<TokenId> {
        let mut words = (0..).zip(&self.0).filter(|(_, word)| **word != 0);
        match (words.next(), words.next()) {
            (Some((at, word)), None) if word.is_power_of_two() => {
                Some(TokenId(at * 32 + word.trailing_zeros()))
            }
            _ => None,
        }
    }

    /// Allowed tokens, in the order of their ids.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> {
        let all = 0..self.0.len() as u32 * 32;
        all.map(TokenId).filter(|token| self.allows(*token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_the_vocabulary_and_holds_nothing_outside() {
        let mask = Mask::new(vec![u32::MAX; 4], 40);
        assert_eq!(mask.words(), [u32::MAX, 0xff]);
        assert_eq!(mask.tokens().count(), 40);
        assert!(mask.allows(TokenId(39)) && !mask.allows(TokenId(40)));
        assert_eq!(Mask::new(vec![5], 64).words(), [5, 0]);
        let tokens = [0, 33, 64, 39].map(TokenId);
        assert_eq!(Mask::of(tokens, 40).words(), [1, 2 | 1 << 7]);
        assert_eq!(Mask::of(tokens, 40).only(), None);
        assert_eq!(Mask::of([TokenId(3), TokenId(5)], 40).only(), None);
        for token in [0, 31, 32, 39].map(TokenId) {
            assert_eq!(Mask::of([token], 40).only(), Some(token));
        }
        assert_eq!(Mask::new(vec![u32::MAX, 1], 32).words(), [u32::MAX]);
    }
}
