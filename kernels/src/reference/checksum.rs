//! A checksum of memory that must not change: the wrapping sum over its 64-bit words, each mixed with its index.
//!
//! It detects accidents, not attacks: the mix of a word is a bijection, so one changed word always changes the sum;
//! several changed words go undetected once in 2^64.

/// Checksum of whole 64-bit little-endian words. `first`: index of the first one, so that checksums of pieces can be
/// added.
///
/// # Panics
/// If `bytes` is not a whole number of words.
#[must_use]
pub fn checksum(bytes: &[u8], first: u64) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "whole words");
    words
        .iter()
        .zip(first..)
        .map(|(word, place)| mixed(u64::from_le_bytes(*word), place))
        .fold(0, u64::wrapping_add)
}

fn mixed(word: u64, place: u64) -> u64 {
    let x = word ^ place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_bytes(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i * i * 31 + i * 7) as u8).collect()
    }

    #[test]
    fn any_flipped_bit_and_any_two_words_that_swap_are_seen() {
        let bytes = some_bytes(512);
        let whole = checksum(&bytes, 0);
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&other, 0), whole, "bit {bit}");
        }
        for at in (0..bytes.len() - 8).step_by(8) {
            let mut other = bytes.clone();
            other[at..at + 16].rotate_left(8);
            assert_ne!(checksum(&other, 0), whole, "word at {at}");
        }
    }

    #[test]
    fn pieces_add_up() {
        let bytes = some_bytes(256);
        let (one, other) = bytes.split_at(96);
        let sum = checksum(one, 0).wrapping_add(checksum(other, 12));
        assert_eq!(sum, checksum(&bytes, 0));
    }

    #[test]
    fn zeros_are_not_nothing() {
        assert_ne!(checksum(&[0; 16], 0), checksum(&[0; 8], 0));
    }
}
