//! Unique prompts of an exact length.

use worker_orcd_ipc::TokenId;

/// One token each, with its space, in every English vocabulary.
const WORDS: [&str; 24] = [
    "the", "of", "and", "to", "in", "is", "for", "on", "that", "by", "with", "as", "it", "at",
    "from", "was", "are", "this", "be", "or", "an", "not", "but", "have",
];

/// Longest token in characters, with its space.
pub const TOKEN_CHARS: usize = 5;

/// What a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Alphabet {
    /// Capital letters, apart: also in the vocabulary that `bench/gpu/vocabulary.py` makes up.
    Letters,
    /// Common English words.
    Words,
}

/// SplitMix64's step (Steele, Lea, Flood, 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Random ids of the vocabulary.
pub fn token_ids(seed: u64, length: usize, vocabulary: u32) -> Vec<TokenId> {
    let mut state = seed;
    (0..length)
        .map(|_| TokenId((next(&mut state) % u64::from(vocabulary)) as u32))
        .collect()
}

/// Text of `length` tokens.
pub fn text(seed: u64, length: usize, alphabet: Alphabet) -> String {
    let mut state = seed;
    let words: Vec<_> = (0..length)
        .map(|_| match alphabet {
            Alphabet::Letters => char::from(b'A' + (next(&mut state) % 26) as u8).to_string(),
            Alphabet::Words => WORDS[(next(&mut state) % WORDS.len() as u64) as usize].to_owned(),
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_their_length_and_differ() {
        for alphabet in [Alphabet::Letters, Alphabet::Words] {
            let texts: Vec<_> = (0..64).map(|seed| text(seed, 128, alphabet)).collect();
            assert!(texts.iter().all(|text| text.split(' ').count() == 128));
            assert!(texts.iter().all(|text| text.len() < 128 * TOKEN_CHARS));
            let different: std::collections::HashSet<_> = texts.iter().collect();
            assert_eq!(different.len(), texts.len());
        }
        let ids = token_ids(1, 1000, 300);
        assert!(ids.iter().all(|id| id.0 < 300));
        assert_ne!(ids, token_ids(2, 1000, 300));
    }
}
