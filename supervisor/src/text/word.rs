//! How long one word of a text may be.
//!
//! Tokenizers keep many times a word in book-keeping, and look at all of it for each token of it.

use thiserror::Error;

/// As long as the longest prompt of `/execute` may be in characters of four bytes.
pub(super) const LONGEST_WORD_BYTES: usize = 128 << 10;

/// Nothing that people or programs write is one word of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "holds more than {LONGEST_WORD_BYTES} bytes in a row that the model's tokenizer takes for one word"
)]
pub struct Undivided;
