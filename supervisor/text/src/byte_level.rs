//! Byte-level BPE. A text is split into words. The bytes of a word are merged by the model's list of pairs: the
//! earliest pair of the list first, the leftmost of equal ones.
//!
//! Working memory is that of one piece of a word, so a text costs little more than its ids.

use super::TextError;
use super::merges::{Merges, Symbols};
use super::pieces::{self, Merge, Undivided};
use super::pre_tokenizer::{PreTokenizer, Words};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use worker_orcd_ipc::vocabulary::{byte_of_char, bytes_of};
use worker_orcd_ipc::{TokenId, TokenizerFacts};

#[derive(Debug)]
pub(super) struct ByteLevel {
    words: Words,
    /// Token of each byte, `None` for a byte without one: such bytes are dropped.
    bytes: [Option<u32>; 256],
    merges: Merges,
    /// Words that become one token without merging.
    whole: HashMap<Vec<u8>, u32>,
}

impl ByteLevel {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        let pre = PreTokenizer::named(&facts.pre)?;
        let ids: HashMap<&str, u32> = facts.tokens.iter().map(String::as_str).zip(0..).collect();
        let whole = pre.ignore_merges.then(|| {
            let tokens = ids.iter().map(|(text, id)| (bytes_of(text), *id));
            tokens
                .filter_map(|(bytes, id)| Some((bytes?, id)))
                .collect()
        });
        Ok(Self {
            words: pre.words()?,
            bytes: token_of_each_byte(&ids),
            merges: Merges::read(&facts.merges, &ids)?,
            whole: whole.unwrap_or_default(),
        })
    }

    /// Appends the ids of a text without special tokens.
    ///
    /// # Errors
    /// If a long word cannot be split into pieces; only an adversarial vocabulary causes this.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<TokenId>) -> Result<(), Undivided> {
        self.words.of(text, &mut |word| {
            if let Some(id) = self.whole.get(word.as_bytes()) {
                out.push(TokenId(*id));
                return Ok(());
            }
            pieces::encode(&self.word(word), out)
        })
    }

    fn word<'a>(&'a self, word: &'a str) -> Word<'a> {
        let has_token = |byte: &u8| self.bytes[usize::from(*byte)].is_some();
        let bytes = if word.as_bytes().iter().all(has_token) {
            Cow::Borrowed(word.as_bytes())
        } else {
            Cow::Owned(word.bytes().filter(has_token).collect())
        };
        Word { model: self, bytes }
    }
}

fn token_of_each_byte(ids: &HashMap<&str, u32>) -> [Option<u32>; 256] {
    let mut bytes = [None; 256];
    for (text, id) in ids {
        let mut chars = text.chars();
        if let (Some(c), None) = (chars.next(), chars.next())
            && let Some(byte) = byte_of_char(c)
        {
            bytes[usize::from(byte)] = Some(*id);
        }
    }
    bytes
}

/// Word without the bytes that have no token.
#[derive(Debug)]
struct Word<'a> {
    model: &'a ByteLevel,
    bytes: Cow<'a, [u8]>,
}

impl Merge for Word<'_> {
    type Token = u32;

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn merge(&self, part: Range<usize>) -> Vec<(u32, usize)> {
        let tokens = self.bytes[part].iter();
        let tokens = tokens.filter_map(|byte| self.model.bytes[usize::from(*byte)]);
        let symbols = Symbols::new(tokens.map(|id| (id, 1)));
        symbols.merged(&self.model.merges)
    }

    fn append(&self, token: u32, _: Range<usize>, out: &mut Vec<TokenId>) {
        out.push(TokenId(token));
    }

    fn floor(&self, at: usize) -> usize {
        at
    }
}

#[cfg(test)]
mod tests;
