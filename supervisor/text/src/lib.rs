//! Text on one side, token ids on the other: everything the supervisor knows about language.
//!
//! ```text
//! messages ── template ──┐      (in a process of its own)
//! prompt ────────────────┴─ tokenizer ─→ ids ─→ (child) ─→ ids
//! client ←── stop ←── utf8 ←── vocabulary (bytes of a token) ←──┘
//! ```
//!
//! All of it is built from the [`TokenizerFacts`] that the child reports, so that the model
//! file, which is untrusted, is opened by the child alone; and all of it lives here, so that
//! half a character or half a stop string survives the child.
//!
//! Deliberately absent: requests, sockets, processes, sampling, and any state shared between requests.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod byte_level;
mod conversation;
pub mod date;
mod generation_tags;
pub mod json_texts;
mod pieces;
mod pre_tokenizer;
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

/// Why a model's tokenizer cannot be used. Every variant is the model's fault, and permanent.
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

/// The tokenizer and vocabulary of one model. Immutable, and shared by all requests.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
}

impl Text {
    /// # Errors
    /// When the facts contradict themselves, or name a pre-tokenizer that cannot be reproduced
    /// exactly.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        // First, for it checks the lengths that all others rely on.
        let vocabulary = Vocabulary::from_facts(facts)?;
        Ok(Self {
            tokenizer: Tokenizer::from_facts(facts)?,
            vocabulary,
        })
    }

    /// The ids of a raw prompt. Texts of special tokens become those tokens, and the model's
    /// own begin-of-sequence rule is followed, as llama-server does.
    ///
    /// # Errors
    /// When the text holds a word too long to be taken apart.
    pub fn encode(&self, prompt: &str) -> Result<Vec<TokenId>, Undivided> {
        self.tokenizer.encode(prompt)
    }

    /// The ids of a prompt that came out of the chat template. Some templates write the
    /// begin-of-sequence token themselves; it is not added a second time. Of the texts of control
    /// tokens, those that `clients_own` names are text; see [`provenance`].
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

    /// The bytes that a token stands for; empty for control tokens and for ids outside the
    /// vocabulary.
    #[must_use]
    pub fn bytes(&self, token: TokenId) -> &[u8] {
        self.vocabulary.bytes(token)
    }

    /// The same, but a special token among `shown` stands for its own text.
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

    /// What a token is written as: a special token stands for its own text.
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

    /// The text that a client would see of these tokens, all at once.
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
