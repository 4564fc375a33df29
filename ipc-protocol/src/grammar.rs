//! Grammars that constrain an answer.

use serde::{Deserialize, Serialize};

/// Set of texts. Each token is sampled from those that continue some text of the set, and the answer may end where it is a
/// text of the set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON texts that are valid under this JSON Schema.
    JsonSchema(String),
    /// Texts that this regular expression matches as a whole, in the syntax of Rust's `regex`.
    Regex(String),
    /// Exactly these texts.
    Choice(Vec<String>),
    /// Context-free grammar in llguidance's variant of Lark.
    Lark(String),
    /// Context-free grammar in llama.cpp's GBNF.
    Gbnf(String),
}

impl Grammar {
    /// Total size of its texts in bytes.
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
