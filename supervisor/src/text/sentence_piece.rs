//! SentencePiece-style BPE: neighbours merge while their concatenation is a token, the best
//! score first, the leftmost on a tie; what remains outside the vocabulary becomes bytes.
//!
//! This is llama.cpp's reading of a `llama` vocabulary. A list of ranked merges cannot express
//! it (two pairs of equal score are ordered by place, not by rank), hence these lines instead of
//! the `tokenizers` crate.
//!
//! A merge never reaches across two characters that stand beside each other in no token. A text is
//! cut there, and each piece is merged by itself: the ids are those of the whole text, and the
//! book-keeping is as large as the longest piece.

use super::TextError;
use super::vocabulary::META_SPACE;
use super::word::{MOST_BYTES_AT_ONCE, Undivided};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use worker_orcd_ipc::{TokenId, TokenizerFacts};

#[derive(Debug)]
pub(super) struct SentencePiece {
    ids: HashMap<String, u32>,
    scores: Vec<f32>,
    /// Characters that stand beside each other in some token.
    neighbours: HashSet<(char, char)>,
    /// The token of each byte; a byte without one is the unknown token.
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
        let neighbours = tokens.iter().flat_map(|token| pairs(token)).collect();
        Ok(Self {
            ids,
            scores: scores.to_vec(),
            neighbours,
            bytes,
            unknown,
        })
    }

    /// Appends the ids of a text that holds no special tokens.
    ///
    /// # Errors
    /// When a piece that may become one token is too long.
    pub(super) fn encode(
        &self,
        text: &str,
        space_prefix: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<(), Undivided> {
        let escaped = text.chars().map(|c| if c == ' ' { META_SPACE } else { c });
        let mut piece = String::new();
        let mut last = None;
        for c in space_prefix
            .then_some(META_SPACE)
            .into_iter()
            .chain(escaped)
        {
            if last.is_some_and(|last| !self.neighbours.contains(&(last, c))) {
                self.encode_piece(&piece, out);
                piece.clear();
            }
            piece.push(c);
            if piece.len() > MOST_BYTES_AT_ONCE {
                return Err(Undivided);
            }
            last = Some(c);
        }
        self.encode_piece(&piece, out);
        Ok(())
    }

    fn encode_piece(&self, piece: &str, out: &mut Vec<TokenId>) {
        let mut word = Word::new(piece);
        word.merge(self);
        for symbol in word.remaining() {
            self.append(symbol, out);
        }
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

fn pairs(token: &str) -> impl Iterator<Item = (char, char)> {
    token.chars().zip(token.chars().skip(1))
}

/// A text as a list of symbols that grow into each other.
#[derive(Debug)]
struct Word<'a> {
    text: &'a str,
    symbols: Vec<Symbol>,
}

/// `text[start..start + len]`; `len` is 0 once it was merged into its left neighbour.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose concatenation is a token.
#[derive(Debug)]
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when it was found: another size means that one of them has grown since.
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

    /// Every byte, and tokens of several characters, some of equal score.
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
        fn pieces_give_the_ids_of_the_whole_text(text in "[abcdé ]{0,40}") {
            let model = model();
            let (mut whole, mut pieces) = (Vec::new(), Vec::new());
            model.encode_piece(&text.replace(' ', "▁"), &mut whole);
            model.encode(&text, false, &mut pieces).unwrap();
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn a_piece_that_is_longer_than_any_is_refused() {
        let model = model();
        let mut ids = Vec::new();
        let long = "a".repeat(MOST_BYTES_AT_ONCE + 1);
        assert_eq!(model.encode(&long, false, &mut ids), Err(Undivided));
        ids.clear();
        let divided = "acb".repeat(MOST_BYTES_AT_ONCE);
        model.encode(&divided, false, &mut ids).unwrap();
        assert_eq!(ids.len(), 3 * MOST_BYTES_AT_ONCE);
    }
}
