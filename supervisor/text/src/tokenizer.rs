//! Tokenizer: text to token ids, equal to llama.cpp's ids for every accepted vocabulary.

use super::TextError;
use super::byte_level::ByteLevel;
use super::character_level::CharacterLevel;
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
    /// Tokens that the model requires before and after every prompt.
    begin: Option<TokenId>,
    end: Option<TokenId>,
    longest_token_bytes: Option<usize>,
}

#[derive(Debug)]
enum Algorithm {
    ByteLevelBpe(Box<ByteLevel>),
    CharacterBpe(CharacterLevel),
    SentencePiece {
        model: SentencePiece,
        space_prefix: bool,
    },
}

impl Tokenizer {
    /// # Errors
    /// If the pre-tokenizer is unknown, or the facts contradict themselves.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        let algorithm = match facts.kind {
            TokenizerKind::ByteLevelBpe => {
                Algorithm::ByteLevelBpe(Box::new(ByteLevel::from_facts(facts)?))
            }
            TokenizerKind::CharacterBpe => {
                Algorithm::CharacterBpe(CharacterLevel::from_facts(facts)?)
            }
            TokenizerKind::SentencePiece => Algorithm::SentencePiece {
                model: SentencePiece::from_facts(facts)?,
                space_prefix: facts.add_space_prefix,
            },
        };
        let special = SpecialTokens::from_facts(facts);
        Ok(Self {
            longest_token_bytes: longest_token_bytes(facts, &algorithm, &special),
            algorithm,
            special,
            begin: wanted(facts.add_bos, facts.bos, "begin")?,
            end: wanted(facts.add_eos, facts.eos, "end")?,
        })
    }

    /// Ids of a raw prompt, with the model's begin- and end-of-sequence tokens.
    ///
    /// # Errors
    /// If the text holds a word that cannot be split into pieces.
    pub fn encode(&self, prompt: &str) -> Result<Vec<TokenId>, Undivided> {
        self.encode_whole(prompt, &[])
    }

    /// Ids of a prompt that a chat template rendered. Begin- and end-of-sequence tokens that the template wrote are not
    /// doubled. Entry `n` of `clients_own` is true if a client wrote the `n`th control token's text, which then stays
    /// text.
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

    /// Ids of a text, without begin- and end-of-sequence tokens.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<TokenId>, Undivided> {
        let mut ids = Vec::new();
        self.encode_fragments(text, &[], &mut ids)?;
        Ok(ids)
    }

    /// Ids of the concatenation of `pieces`, without begin- and end-of-sequence tokens. A piece with `true` is a
    /// client's: a control token's text that overlaps such a piece stays text.
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

    /// Marks the conversation for [`Self::clients_own`]. `None` if no mark is needed.
    #[must_use]
    pub fn mark(&self, conversation: &Conversation) -> Option<Marked> {
        self.special.mark(conversation)
    }

    /// Flag for each control token's text in `prompt`, in order: true if a client wrote it. `None` if the two
    /// renderings do not agree.
    #[must_use]
    pub fn clients_own(
        &self,
        prompt: &str,
        marked: &Marked,
        marked_prompt: &str,
    ) -> Option<Vec<bool>> {
        self.special.clients_own(prompt, marked, marked_prompt)
    }

    /// True if the text contains the text of a control token.
    #[must_use]
    pub fn holds_control(&self, text: &str) -> bool {
        self.special.find_control(text).next().is_some()
    }

    /// Control tokens with one of these texts.
    #[must_use]
    pub fn control_of<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Vec<TokenId> {
        self.special.control_of(texts)
    }

    /// Text of a special token. `None` for other tokens.
    pub(super) fn special_text(&self, token: TokenId) -> Option<&str> {
        self.special.text(token)
    }

    /// Longest text of one token, in bytes. `None` if there is no bound.
    #[must_use]
    pub fn longest_token_bytes(&self) -> Option<usize> {
        self.longest_token_bytes
    }

    fn encode_whole(&self, prompt: &str, clients_own: &[bool]) -> Result<Vec<TokenId>, Undivided> {
        // Capacity for one token per byte: unwritten pages take no memory, and growing would copy.
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

    /// Encodes a text that may contain the texts of control tokens. If the model's merges produce a control token, the
    /// text is encoded character by character.
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
            Algorithm::CharacterBpe(model) => model.encode(text, out),
        }
    }
}

/// Longest token's length in bytes. A token's text is at least as long as the text that it decodes to: a byte is
/// written as one character, a space as `▁`. There is no bound if some bytes of a text have no token.
fn longest_token_bytes(
    facts: &TokenizerFacts,
    algorithm: &Algorithm,
    special: &SpecialTokens,
) -> Option<usize> {
    let loses_bytes = match algorithm {
        Algorithm::ByteLevelBpe(_) => !names_every_byte(&facts.tokens),
        Algorithm::CharacterBpe(model) => !model.names_every_byte(),
        Algorithm::SentencePiece { .. } => false,
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
