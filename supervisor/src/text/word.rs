//! How long one word of a text may be.
//!
//! Tokenizers keep many times a word in book-keeping, and look at all of it for each token of it.

use thiserror::Error;

/// A word of this length is never refused.
pub(super) const LONGEST_WORD_BYTES: usize = 64 << 10;

/// What a tokenizer is given at once at most: two such words and the beginning of a third, by which
/// the first is known to be whole. The longest prompt of `/execute` fits, in characters of four bytes.
pub(super) const MOST_BYTES_AT_ONCE: usize = 2 * LONGEST_WORD_BYTES + (4 << 10);
const _: () = assert!(MOST_BYTES_AT_ONCE >= 4 * 32_768);

/// Nothing that people or programs write is one word of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "holds more than {LONGEST_WORD_BYTES} bytes in a row that the model's tokenizer takes for one word"
)]
pub struct Undivided;
