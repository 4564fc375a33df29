//! Byte-level BPE. A text is split into words. The bytes of a word are merged by the model's list of pairs: the
//! earliest pair of the list first, the leftmost of equal ones.
//!
//! Working memory is that of one piece of a word, so a text costs little more than its ids.

use super::TextError;
use super::pieces::{self, Merge, Undivided};
use super::pre_tokenizer::{PreTokenizer, Words};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use worker_orcd_ipc::vocabulary::{byte_of_char, bytes_of};
use worker_orcd_ipc::{TokenId, TokenizerFacts};

#[derive(Debug)]
pub(super) struct ByteLevel {
    words: Words,
    /// Token of each byte, `None` for a byte without one: such bytes are dropped.
    bytes: [Option<u32>; 256],
    merges: HashMap<(u32, u32), Merged>,
    /// Words that become one token without merging.
    whole: HashMap<Vec<u8>, u32>,
}

#[derive(Debug, Clone, Copy)]
struct Merged {
    rank: u32,
    id: u32,
}

impl ByteLevel {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        let pre = PreTokenizer::named(&facts.pre)?;
        let ids: HashMap<&str, u32> = facts.tokens.iter().map(String::as_str).zip(0..).collect();
        let merges = (0..)
            .zip(&facts.merges)
            .map(|(rank, it)| merge(rank, it, &ids));
        let whole = pre.ignore_merges.then(|| {
            let tokens = ids.iter().map(|(text, id)| (bytes_of(text), *id));
            tokens
                .filter_map(|(bytes, id)| Some((bytes?, id)))
                .collect()
        });
        Ok(Self {
            words: pre.words()?,
            bytes: token_of_each_byte(&ids),
            merges: merges.collect::<Result<_, _>>()?,
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

fn merge(
    rank: u32,
    merge: &str,
    ids: &HashMap<&str, u32>,
) -> Result<((u32, u32), Merged), TextError> {
    let malformed = |why: String| TextError::Malformed(why);
    let (left, right) =
        split_merge(merge).ok_or_else(|| malformed(format!("no merge: {merge:?}")))?;
    let id = |token: &str| {
        let id = ids.get(token).copied();
        id.ok_or_else(|| malformed(format!("the merge {merge:?} needs a token {token:?}")))
    };
    let merged = Merged {
        rank,
        id: id(&[left, right].concat())?,
    };
    Ok(((id(left)?, id(right)?), merged))
}

/// Splits `left right`. The left side may begin with a space.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
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
        let mut symbols = Symbols::new(tokens);
        symbols.merge(&self.model.merges);
        let symbols = symbols.0.iter().filter(|symbol| symbol.len > 0);
        symbols.map(|it| (it.id, it.len as usize)).collect()
    }

    fn append(&self, token: u32, _: Range<usize>, out: &mut Vec<TokenId>) {
        out.push(TokenId(token));
    }

    fn floor(&self, at: usize) -> usize {
        at
    }
}

/// Tokens of a word, which are merged in place.
#[derive(Debug)]
struct Symbols(Vec<Symbol>);

/// `len` is in bytes. It is 0 after the merge into the left neighbour.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    len: u32,
    previous: Option<u32>,
    next: u32,
}

impl Symbols {
    fn new(tokens: impl Iterator<Item = u32>) -> Self {
        let symbol = |(index, id): (u32, u32)| Symbol {
            id,
            len: 1,
            previous: index.checked_sub(1),
            next: index + 1,
        };
        Self((0..).zip(tokens).map(symbol).collect())
    }

    fn merge(&mut self, merges: &HashMap<(u32, u32), Merged>) {
        // Ordered by rank, then by position.
        let mut queue = BinaryHeap::new();
        let consider = |this: &Self, queue: &mut BinaryHeap<_>, left: u32| {
            let merged = this.pair(left).and_then(|pair| merges.get(&pair));
            queue.extend(merged.map(|merged| Reverse((merged.rank, left))));
        };
        for left in 0..self.0.len() as u32 {
            consider(self, &mut queue, left);
        }
        while let Some(Reverse((rank, left))) = queue.pop() {
            let merged = self.pair(left).and_then(|pair| merges.get(&pair));
            // Stale entry: one of the two symbols was merged since.
            let Some(merged) = merged.filter(|merged| merged.rank == rank) else {
                continue;
            };
            self.join(left, merged.id);
            consider(self, &mut queue, left);
            if let Some(previous) = self.0[left as usize].previous {
                consider(self, &mut queue, previous);
            }
        }
    }

    /// Ids of a symbol and the next one. `None` if either is missing or was merged.
    fn pair(&self, left: u32) -> Option<(u32, u32)> {
        let left = self.0.get(left as usize).filter(|left| left.len > 0)?;
        let right = self.0.get(left.next as usize)?;
        Some((left.id, right.id))
    }

    fn join(&mut self, left: u32, id: u32) {
        let right = self.0[left as usize].next as usize;
        let (len, next) = (self.0[right].len, self.0[right].next);
        self.0[right].len = 0;
        let joined = &mut self.0[left as usize];
        *joined = Symbol {
            id,
            len: joined.len + len,
            previous: joined.previous,
            next,
        };
        if let Some(next) = self.0.get_mut(next as usize) {
            next.previous = Some(left);
        }
    }
}

#[cfg(test)]
mod tests;
