//! Text processing of the supervisor: tokenizer, detokenizer, chat templates, stop strings, and parsers of reasoning
//! and tool calls.
//!
//! ```text
//! messages ── template ──┐      (in a process of its own)
//! prompt ────────────────┴─ tokenizer ─→ ids ─→ (child) ─→ ids
//! client ←── stop ←── utf8 ←── vocabulary (bytes of a token) ←──┘
//! ```
//!
//! The crate is built from the [`TokenizerFacts`] that the child reports, so only the child opens the model file, which
//! is untrusted. The state of a stream is in the supervisor, so an incomplete character or stop string survives the
//! death of the child.
//!
//! [`printable`], [`calendar`] and [`hex`] format text, times and bytes for terminals, log lines and reports.
//!
//! Deliberately absent: requests, sockets, processes, sampling, and any state shared between requests.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod byte_level;
pub mod calendar;
mod character_level;
mod conversation;
pub mod date;
mod generation_tags;
pub mod hex;
pub mod json_texts;
mod merges;
mod pieces;
mod pre_tokenizer;
pub mod printable;
pub mod provenance;
mod python_json;
mod python_number;
mod python_repr;
mod sentence_piece;
mod special;
pub mod stop;
pub mod structure;
pub mod template;
pub mod tokenizer;
pub mod tools;
pub mod utf8;

pub use conversation::{ChatMessage, Conversation, ToolCall};
pub use pieces::Undivided;
pub use provenance::Marked;
pub use stop::StopMatcher;
pub use structure::Structure;
pub use template::{Rendering, TemplateError, TemplateSource};
pub use tokenizer::Tokenizer;
pub use utf8::Detokenizer;
pub use worker_orcd_ipc::Vocabulary;

use thiserror::Error;
use worker_orcd_ipc::vocabulary::MalformedVocabulary;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

/// Reason for which a model's tokenizer cannot be used. Every variant is permanent and caused by the model file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TextError {
    #[error("the pre-tokenizer {0:?} is not known: its ids would be wrong")]
    UnknownPreTokenizer(String),
    #[error("the model's tokenizer is malformed: {0}")]
    Malformed(String),
}

impl From<MalformedVocabulary> for TextError {
    fn from(MalformedVocabulary(why): MalformedVocabulary) -> Self {
        Self::Malformed(why)
    }
}

/// Tokenizer and vocabulary of one model. Immutable, and shared by all requests.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
}

impl Text {
    /// # Errors
    /// If the facts contradict themselves, or name a pre-tokenizer that cannot be reproduced exactly.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        // First, because it checks the lengths that the tokenizer relies on.
        let vocabulary = Vocabulary::from_facts(facts)?;
        Ok(Self {
            tokenizer: Tokenizer::from_facts(facts)?,
            vocabulary,
        })
    }

    /// Ids of a raw prompt. Texts of special tokens become those tokens. The model's begin- and end-of-sequence tokens
    /// are added as in llama-server.
    ///
    /// # Errors
    /// If the text holds a word that cannot be split into pieces.
    pub fn encode(&self, prompt: &str) -> Result<Vec<TokenId>, Undivided> {
        self.tokenizer.encode(prompt)
    }

    /// Ids of a prompt that the chat template rendered. A begin-of-sequence token that the template wrote is not added
    /// again. A control token's text with a true entry in `clients_own` stays text; see [`provenance`].
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_rendered(
        &self,
        rendered: &str,
        clients_own: &[bool],
    ) -> Result<Vec<TokenId>, Undivided> {
        self.tokenizer.encode_rendered(rendered, clients_own)
    }

    /// Bytes that a token decodes to. Empty for control tokens and for ids outside the vocabulary.
    #[must_use]
    pub fn bytes(&self, token: TokenId) -> &[u8] {
        self.vocabulary.bytes(token)
    }

    /// Bytes of a token as [`Self::bytes`], except that a special token in `shown` decodes to its own text.
    #[must_use]
    pub fn bytes_shown(&self, token: TokenId, shown: &[TokenId]) -> &[u8] {
        let text = shown
            .contains(&token)
            .then(|| self.tokenizer.special_text(token));
        match text.flatten() {
            Some(text) => text.as_bytes(),
            None => self.bytes(token),
        }
    }

    /// Bytes of a token as [`Self::bytes`], except that every special token decodes to its own text.
    #[must_use]
    pub fn bytes_written(&self, token: TokenId) -> &[u8] {
        match self.tokenizer.special_text(token) {
            Some(text) => text.as_bytes(),
            None => self.bytes(token),
        }
    }

    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Text that these tokens decode to, as a client receives it.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let mut out = String::new();
        let mut detokenizer = Detokenizer::default();
        for &token in tokens {
            detokenizer.push(self.bytes(token), &mut out);
        }
        detokenizer.finish(&mut out);
        out
    }
}
