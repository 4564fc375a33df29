//! BPE on characters, as Gemma 4 has it: a space is `▁`, and the merges of a line are those of a list, without words in
//! between. A run of line feeds is a word of its own, and a token if the vocabulary has it. Characters without a token
//! become bytes.

use super::TextError;
use super::merges::{Merges, Symbols};
use super::pieces::{self, Merge, Undivided};
use std::collections::HashMap;
use std::ops::Range;
use worker_orcd_ipc::vocabulary::META_SPACE;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

#[derive(Debug)]
pub(super) struct CharacterLevel {
    characters: HashMap<char, u32>,
    merges: Merges,
    /// Token of each byte, `None` for a byte without one: such bytes are dropped.
    bytes: Vec<Option<TokenId>>,
    /// Runs of line feeds that are a token, by length.
    line_feeds: HashMap<usize, u32>,
}

/// Stands for a character without a token: no merge has it.
const NO_TOKEN: u32 = u32::MAX;

impl CharacterLevel {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        let ids: HashMap<&str, u32> = facts.tokens.iter().map(String::as_str).zip(0..).collect();
        let mut characters = HashMap::new();
        let mut line_feeds = HashMap::new();
        for (text, id) in &ids {
            let mut chars = text.chars();
            if let (Some(c), None) = (chars.next(), chars.next()) {
                characters.insert(c, *id);
            }
            if !text.is_empty() && text.bytes().all(|byte| byte == b'\n') {
                line_feeds.insert(text.len(), *id);
            }
        }
        let bytes = byte_tokens(&ids);
        Ok(Self {
            characters,
            merges: Merges::read(&facts.merges, &ids)?,
            bytes: bytes.collect(),
            line_feeds,
        })
    }

    /// Appends the ids of a text without special tokens.
    ///
    /// # Errors
    /// If a long line cannot be split into pieces; only an adversarial vocabulary causes this.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), Undivided> {
        for run in runs(text) {
            match self.line_feeds.get(&run.len()) {
                Some(id) if run.starts_with('\n') => out.push(TokenId(*id)),
                _ => pieces::encode(
                    &Run {
                        model: self,
                        text: run,
                    },
                    out,
                )?,
            }
        }
        Ok(())
    }

    /// True if each byte has a token, so that every text can be tokenized without loss.
    pub(super) fn names_every_byte(&self) -> bool {
        self.bytes.iter().all(Option::is_some)
    }
}

fn byte_tokens(ids: &HashMap<&str, u32>) -> impl Iterator<Item = Option<TokenId>> {
    (0..=255_u8).map(|byte| {
        let id = ids.get(&*format!("<0x{byte:02X}>"));
        id.map(|id| TokenId(*id))
    })
}

/// Runs of line feeds, and the text between them, in order.
fn runs(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let is_line_feed = text.chars().next()? == '\n';
        let end = text.find(|c| (c == '\n') != is_line_feed);
        let (run, rest) = text.split_at(end.unwrap_or(text.len()));
        text = rest;
        Some(run)
    })
}

/// Unescaped text.
#[derive(Debug)]
struct Run<'a> {
    model: &'a CharacterLevel,
    text: &'a str,
}

impl Merge for Run<'_> {
    type Token = u32;

    fn len(&self) -> usize {
        self.text.len()
    }

    fn merge(&self, part: Range<usize>) -> Vec<(u32, usize)> {
        let symbols = self.text[part].chars().map(|c| {
            let written = if c == ' ' { META_SPACE } else { c };
            let id = self.model.characters.get(&written);
            (id.copied().unwrap_or(NO_TOKEN), c.len_utf8() as u32)
        });
        Symbols::new(symbols).merged(&self.model.merges)
    }

    fn append(&self, token: u32, part: Range<usize>, out: &mut Vec<TokenId>) {
        if token != NO_TOKEN {
            return out.push(TokenId(token));
        }
        let written = self.text[part].replace(' ', "▁");
        out.extend(
            written
                .bytes()
                .filter_map(|byte| self.model.bytes[usize::from(byte)]),
        );
    }

    fn floor(&self, at: usize) -> usize {
        (0..=at)
            .rev()
            .find(|at| self.text.is_char_boundary(*at))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
