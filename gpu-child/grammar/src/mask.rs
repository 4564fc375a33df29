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

    /// Mask of all tokens.
    #[must_use]
    pub fn all(vocabulary: usize) -> Self {
        Self::new(vec![u32::MAX; vocabulary.div_ceil(32)], vocabulary)
    }

    /// Tokens that both allow; `None` if there are none. Both have the same vocabulary.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        self.with(other, |word, other| word & other)
    }

    /// Tokens that `other` does not allow; `None` if there are none. Both have the same vocabulary.
    #[must_use]
    pub fn without(&self, other: &Self) -> Option<Self> {
        self.with(other, |word, other| word & !other)
    }

    fn with(&self, other: &Self, word: impl Fn(u32, u32) -> u32) -> Option<Self> {
        let pairs = self.0.iter().zip(&other.0);
        let words: Vec<u32> = pairs.map(|(one, other)| word(*one, *other)).collect();
        words.iter().any(|word| *word != 0).then_some(Self(words))
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

    #[test]
    fn two_masks_have_their_tokens_in_common_or_not() {
        let of = |tokens: &[u32]| Mask::of(tokens.iter().copied().map(TokenId), 40);
        let (one, other) = (of(&[1, 33, 39]), of(&[2, 33]));
        assert_eq!(one.and(&other), Some(of(&[33])));
        assert_eq!(one.without(&other), Some(of(&[1, 39])));
        assert_eq!(other.and(&of(&[1])), None);
        assert_eq!(other.without(&Mask::all(40)), None);
        assert_eq!(Mask::all(40).and(&one), Some(one));
        assert_eq!(Mask::all(40).tokens().count(), 40);
    }
}
