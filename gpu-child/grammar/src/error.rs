//! Error of a grammar: at its compilation or later.

use crate::limits::MAX_MESSAGE_BYTES;
use std::fmt::Display;
use thiserror::Error;

/// Message for the client that sent the grammar: the parser's own sentence, of bounded length.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct GrammarError {
    message: String,
}

impl GrammarError {
    /// The first sentence of a message, cut to a bounded length.
    #[must_use]
    pub fn new(why: impl Display) -> Self {
        let why = why.to_string();
        // llguidance appends a backtrace to a panic's message, and a mark to any shortened error.
        let sentence = why.split("\n<backtrace>").next().unwrap_or_default();
        let sentence = sentence.replace("\n<non-verbose/>", "");
        let mut message = sentence.trim().to_owned();
        if message.len() > MAX_MESSAGE_BYTES {
            let mut end = MAX_MESSAGE_BYTES - '…'.len_utf8();
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push('…');
        }
        Self { message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_sentence_of_bounded_length() {
        let words = |why: &str| GrammarError::new(why).to_string();
        assert_eq!(words("no rule\n<non-verbose/>"), "no rule");
        assert_eq!(words("panic: x\n<backtrace>\n1: main"), "panic: x");
        let long = words(&"é".repeat(MAX_MESSAGE_BYTES));
        assert!(long.len() <= MAX_MESSAGE_BYTES && long.ends_with("é…"));
    }
}
