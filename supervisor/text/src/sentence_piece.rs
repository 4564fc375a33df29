//! SentencePiece-style BPE: adjacent symbols merge while their concatenation is a token, the best score first, the
//! leftmost of equal ones. Symbols outside the vocabulary become bytes.
//!
//! This is llama.cpp's algorithm for a `llama` vocabulary. A list of ranked merges cannot express it: two pairs of
//! equal score are ordered by position, not by rank.

use super::TextError;
use super::pieces::{self, Merge, Undivided};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use worker_orcd_ipc::vocabulary::META_SPACE;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

#[derive(Debug)]
pub(super) struct SentencePiece {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    /// Token of each byte. A byte without one becomes the unknown token.
    bytes: Vec<Option<TokenId>>,
    unknown: Option<TokenId>,
}

impl SentencePiece {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Result<Self, TextError> {
        Self::new(&facts.tokens, &facts.scores, facts.unknown)
    }

    fn new(tokens: &[String], scores: &[f32], unknown: Option<TokenId>) -> Result<Self, TextError> {
        let ids: HashMap<String, u32> = tokens.iter().cloned().zip(0..).collect();
        let byte_token = |byte: u8| {
            ids.get(&format!("<0x{byte:02X}>"))
                .or_else(|| {
                    ids.get(&char::from(byte).to_string())
                        .filter(|_| byte.is_ascii())
                })
                .map(|id| TokenId(*id))
        };
        let bytes: Vec<Option<TokenId>> = (0..=255).map(byte_token).collect();
        if unknown.is_none() && bytes.iter().any(Option::is_none) {
            let why = "some bytes have no token, and there is no unknown token";
            return Err(TextError::Malformed(why.to_owned()));
        }
        Ok(Self {
            ids,
            scores: scores.to_vec(),
            bytes,
            unknown,
        })
    }

    /// Appends the ids of a text without special tokens.
    ///
    /// # Errors
    /// If a long text cannot be split into pieces; only an adversarial vocabulary causes this.
    pub(super) fn encode(
        &self,
        text: &str,
        space_prefix: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), Undivided> {
        pieces::encode(&self.text(text, space_prefix), out)
    }

    fn text<'a>(&'a self, text: &'a str, space_prefix: bool) -> Text<'a> {
        let text = if space_prefix {
            Cow::Owned([" ", text].concat())
        } else {
            Cow::Borrowed(text)
        };
        Text { model: self, text }
    }

    fn append(&self, symbol: &str, out: &mut Vec<TokenId>) {
        if let Some(&id) = self.ids.get(symbol) {
            out.push(TokenId(id));
            return;
        }
        out.extend(
            symbol
                .bytes()
                .filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)),
        );
    }

    fn score(&self, text: &str) -> Option<f32> {
        self.ids.get(text).map(|id| self.scores[*id as usize])
    }
}

fn escape(text: &str) -> String {
    text.chars()
        .map(|c| if c == ' ' { META_SPACE } else { c })
        .collect()
}

/// Unescaped text. Only the parts that are merged are escaped.
#[derive(Debug)]
struct Text<'a> {
    model: &'a SentencePiece,
    text: Cow<'a, str>,
}

impl Merge for Text<'_> {
    type Token = ();

    fn len(&self) -> usize {
        self.text.len()
    }

    fn merge(&self, part: Range<usize>) -> Vec<((), usize)> {
        let text = &self.text[part];
        let escaped = escape(text);
        let mut word = Word::new(&escaped);
        word.merge(self.model);
        let mut lengths = text.chars().map(char::len_utf8);
        word.remaining()
            .map(|symbol| ((), lengths.by_ref().take(symbol.chars().count()).sum()))
            .collect()
    }

    fn append(&self, (): (), part: Range<usize>, out: &mut Vec<TokenId>) {
        self.model.append(&escape(&self.text[part]), out);
    }

    fn floor(&self, at: usize) -> usize {
        (0..=at)
            .rev()
            .find(|at| self.text.is_char_boundary(*at))
            .unwrap_or(0)
    }
}

/// Symbols of a text, which are merged in place.
#[derive(Debug)]
struct Word<'a> {
    text: &'a str,
    symbols: Vec<Symbol>,
}

/// Symbol `text[start..start + len]`, in bytes. `len` is 0 after the merge into the left neighbour.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two adjacent symbols that form a token when joined.
#[derive(Debug)]
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both symbols when the pair was found. Another length now means that one of them was merged since.
    len: usize,
}

impl<'a> Word<'a> {
    fn new(text: &'a str) -> Self {
        let count = text.chars().count();
        let symbols = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: index.checked_sub(1),
                next: (index + 1 < count).then_some(index + 1),
            })
            .collect();
        Self { text, symbols }
    }

    fn merge(&mut self, model: &SentencePiece) {
        let mut queue = BinaryHeap::new();
        for right in 1..self.symbols.len() {
            queue.extend(self.bigram(model, right - 1, right));
        }
        while let Some(bigram) = queue.pop() {
            if !self.is_current(&bigram) {
                continue;
            }
            let after = self.symbols[bigram.right].next;
            self.symbols[bigram.left].len = bigram.len;
            self.symbols[bigram.left].next = after;
            self.symbols[bigram.right].len = 0;
            if let Some(after) = after {
                self.symbols[after].previous = Some(bigram.left);
                queue.extend(self.bigram(model, bigram.left, after));
            }
            if let Some(before) = self.symbols[bigram.left].previous {
                queue.extend(self.bigram(model, before, bigram.left));
            }
        }
    }

    fn bigram(&self, model: &SentencePiece, left: usize, right: usize) -> Option<Bigram> {
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        let score = model.score(&self.text[start..start + len])?;
        Some(Bigram {
            score,
            left,
            right,
            len,
        })
    }

    fn is_current(&self, bigram: &Bigram) -> bool {
        let (left, right) = (self.symbols[bigram.left], self.symbols[bigram.right]);
        left.len > 0 && right.len > 0 && left.len + right.len == bigram.len
    }

    fn remaining(&self) -> impl Iterator<Item = &'a str> {
        let text = self.text;
        self.symbols
            .iter()
            .filter(|symbol| symbol.len > 0)
            .map(move |symbol| &text[symbol.start..symbol.start + symbol.len])
    }
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Vocabulary of every byte, and of tokens of several characters, some with equal scores.
    fn model() -> SentencePiece {
        let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
        let merged = [
            "a",
            "b",
            "c",
            "▁",
            "é",
            "ab",
            "bc",
            "▁a",
            "▁▁",
            "▁▁▁▁",
            "abc",
            "aa",
            "aaaa",
            "cé",
            "c▁",
        ];
        let tokens: Vec<String> = bytes.chain(merged.map(str::to_owned)).collect();
        let scores = (0_u16..).map(|place| -f32::from(place % 5));
        let scores: Vec<f32> = scores.take(tokens.len()).collect();
        SentencePiece::new(&tokens, &scores, None).unwrap()
    }

    proptest! {
        #[test]
        fn pieces_give_the_ids_of_the_whole_text(
            text in "[abcdé▁ ]{0,80}", space_prefix: bool, piece in 1_usize..40
        ) {
            let model = model();
            let text = model.text(&text, space_prefix);
            let escaped = escape(&text.text);
            let mut word = Word::new(&escaped);
            word.merge(&model);
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            word.remaining().for_each(|symbol| model.append(symbol, &mut whole));
            pieces::encode_small(&text, piece, &mut pieces).unwrap();
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn a_text_as_long_as_a_body_is_taken_apart() {
        let mut ids = Vec::new();
        model()
            .encode(&"a".repeat(1 << 20), false, &mut ids)
            .unwrap();
        assert_eq!(ids.len(), 1 << 18);
    }
}
