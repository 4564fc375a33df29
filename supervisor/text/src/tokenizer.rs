//! Text to token ids, equal to llama.cpp's for every tokenizer that is accepted.

use super::TextError;
use super::byte_level::ByteLevel;
use super::conversation::Conversation;
use super::pieces::Undivided;
use super::provenance::Marked;
use super::sentence_piece::SentencePiece;
use super::special::{Fragment, SpecialTokens};
use std::ops::Range;
use worker_orcd_ipc::vocabulary::names_every_byte;
use worker_orcd_ipc::{TokenId, TokenizerFacts, TokenizerKind};

#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    special: SpecialTokens,
    /// Tokens that the model wants before and after every prompt.
    begin: Option<TokenId>,
    end: Option<TokenId>,
    longest_token_bytes: Option<usize>,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevelBpe(Box<ByteLevel>),
    SentencePiece {
        model: SentencePiece,
        space_prefix: bool,
    },
}

impl Tokenizer {
    /// # Errors
    /// When the pre-tokenizer is unknown or the facts contradict themselves.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        let algorithm = match facts.kind {
            TokenizerKind::ByteLevelBpe => {
                Algorithm::ByteLevelBpe(Box::new(ByteLevel::from_facts(facts)?))
            }
            TokenizerKind::SentencePiece => Algorithm::SentencePiece {
                model: SentencePiece::from_facts(facts)?,
                space_prefix: facts.add_space_prefix,
            },
        };
        let special = SpecialTokens::from_facts(facts);
        Ok(Self {
            algorithm,
            longest_token_bytes: longest_token_bytes(facts, &special),
            special,
            begin: wanted(facts.add_bos, facts.bos, "begin")?,
            end: wanted(facts.add_eos, facts.eos, "end")?,
        })
    }

    /// The ids of a prompt, with the tokens the model wants around it.
    ///
    /// # Errors
    /// When the text holds a word too long to be taken apart.
    pub fn encode(&self, prompt: &str) -> Result<Vec<TokenId>, Undivided> {
        self.encode_whole(prompt, &[])
    }

    /// The same as [`Self::encode`], but a begin or end token that the text itself holds is not
    /// doubled, and texts of control tokens that `clients_own` names become no control tokens.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_rendered(
        &self,
        rendered: &str,
        clients_own: &[bool],
    ) -> Result<Vec<TokenId>, Undivided> {
        let mut ids = self.encode_whole(rendered, clients_own)?;
        if self.begin.is_some() && ids.len() > 1 && self.begin == Some(ids[1]) {
            ids.remove(0);
        }
        if self.end.is_some() && ids.len() > 1 && self.end == Some(ids[ids.len() - 2]) {
            ids.pop();
        }
        Ok(ids)
    }

    /// The ids of a text and nothing else.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>, Undivided> {
        let mut ids = Vec::new();
        self.encode_fragments(text, &[], &mut ids)?;
        Ok(ids)
    }

    /// The same of a text that is put together from pieces, of which a client wrote some (`true`): the text of a control
    /// token that has a part in one of those becomes no control token.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_pieces(&self, pieces: &[(&str, bool)]) -> Result<Vec<TokenId>, Undivided> {
        let text: String = pieces.iter().map(|(piece, _)| *piece).collect();
        let (mut at, mut own) = (0, Vec::new());
        for (piece, is_own) in pieces {
            if *is_own {
                own.push(at..at + piece.len());
            }
            at += piece.len();
        }
        let touched = |found: &Range<usize>| {
            let mut own = own.iter();
            own.any(|own| own.start < found.end && found.start < own.end)
        };
        let found = self.special.find_control(&text);
        let clients_own: Vec<bool> = found.map(|found| touched(&found.range)).collect();
        let mut ids = Vec::new();
        self.encode_fragments(&text, &clients_own, &mut ids)?;
        Ok(ids)
    }

    /// The conversation, marked so that [`Self::clients_own`] can tell; `None` when there is no need.
    #[must_use]
    pub fn mark(&self, conversation: &Conversation) -> Option<Marked> {
        self.special.mark(conversation)
    }

    /// For each control token's text in the prompt, whether a client wrote it; `None` when that
    /// cannot be told.
    #[must_use]
    pub fn clients_own(
        &self,
        prompt: &str,
        marked: &Marked,
        marked_prompt: &str,
    ) -> Option<Vec<bool>> {
        self.special.clients_own(prompt, marked, marked_prompt)
    }

    /// True for a text that has a control token's text in it.
    #[must_use]
    pub fn holds_control(&self, text: &str) -> bool {
        self.special.find_control(text).next().is_some()
    }

    /// The control tokens that have one of these texts.
    #[must_use]
    pub fn control_of<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Vec<TokenId> {
        self.special.control_of(texts)
    }

    /// The text of a special token.
    pub(super) fn special_text(&self, token: TokenId) -> Option<&str> {
        self.special.text(token)
    }

    /// The most bytes of a text that can become one token; `None` where there is no such bound.
    #[must_use]
    pub fn longest_token_bytes(&self) -> Option<usize> {
        self.longest_token_bytes
    }

    fn encode_whole(&self, prompt: &str, clients_own: &[bool]) -> Result<Vec<TokenId>, Undivided> {
        // As many as there can be: what is not written takes no memory, and growing would copy.
        let mut ids = Vec::with_capacity(prompt.len() + 3);
        ids.extend(self.begin);
        self.encode_fragments(prompt, clients_own, &mut ids)?;
        ids.extend(self.end);
        ids.shrink_to_fit();
        Ok(ids)
    }

    fn encode_fragments(
        &self,
        text: &str,
        clients_own: &[bool],
        out: &mut Vec<TokenId>,
    ) -> Result<(), Undivided> {
        let mut after_special = true;
        for fragment in self.special.split(text, clients_own) {
            match fragment {
                Fragment::Token(token) => out.push(token),
                Fragment::Text(text) if clients_own.is_empty() => {
                    self.encode_text(text, after_special, out)?;
                }
                Fragment::Text(text) => self.encode_harmless(text, after_special, out)?,
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        Ok(())
    }

    /// A text that may hold texts of control tokens. Should a model's merges lead to one of them
    /// after all, it is taken character by character.
    fn encode_harmless(
        &self,
        text: &str,
        after_special: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), Undivided> {
        let before = out.len();
        self.encode_text(text, after_special, out)?;
        if out[before..].iter().any(|id| self.special.is_control(*id)) {
            out.truncate(before);
            let mut first = after_special;
            for c in text.chars() {
                self.encode_text(c.encode_utf8(&mut [0; 4]), first, out)?;
                first = false;
            }
        }
        Ok(())
    }

    fn encode_text(
        &self,
        text: &str,
        after_special: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), Undivided> {
        match &self.algorithm {
            Algorithm::SentencePiece {
                model,
                space_prefix,
            } => model.encode(text, *space_prefix && after_special, out),
            Algorithm::ByteLevelBpe(model) => model.encode(text, out),
        }
    }
}

/// A token's text is at least as long as what it stands for: a byte is written as a character, a
/// space as `▁`. There is no bound where bytes of a text become no token at all.
fn longest_token_bytes(facts: &TokenizerFacts, special: &SpecialTokens) -> Option<usize> {
    let loses_bytes = match facts.kind {
        TokenizerKind::ByteLevelBpe => !names_every_byte(&facts.tokens),
        TokenizerKind::SentencePiece => false,
    };
    if loses_bytes || special.swallow_space() {
        return None;
    }
    facts.tokens.iter().map(String::len).max()
}

fn wanted(add: bool, token: Option<TokenId>, name: &str) -> Result<Option<TokenId>, TextError> {
    match (add, token) {
        (false, _) => Ok(None),
        (true, Some(token)) => Ok(Some(token)),
        (true, None) => Err(TextError::Malformed(format!(
            "it asks for a {name}-of-sequence token it lacks"
        ))),
    }
}
