//! What an answer may be held to.

use serde::{Deserialize, Serialize};

/// A set of texts. Each next token is drawn from those that some text of the set goes on with, and the
/// answer may end where it is a text of the set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// The JSON texts that are valid under a JSON Schema, which is JSON itself.
    JsonSchema(String),
    /// The texts that a regular expression matches from beginning to end, in the syntax of Rust's `regex`.
    Regex(String),
    /// These texts and no others.
    Choice(Vec<String>),
    /// A context-free grammar in llguidance's variant of Lark.
    Lark(String),
    /// A context-free grammar in GBNF, as llama.cpp has it.
    Gbnf(String),
}

impl Grammar {
    /// Bytes of its text, over all parts of it.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => {
                text.len()
            }
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }
}
