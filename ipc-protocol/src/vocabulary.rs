//! Bytes of each token.
//!
//! Byte-level BPE represents each byte by one of 256 printable characters. SentencePiece, and BPE on characters, represent a
//! space by `▁` and bytes outside their alphabet by `<0xNN>`. Control and unknown tokens have no bytes, so clients never see `<|im_end|>`.
//!
//! Both sides of the protocol use this module: the supervisor to convert tokens to text, the child to match grammars.

use crate::ids::TokenId;
use crate::model::{TokenKind, TokenizerFacts, TokenizerKind};
use std::collections::HashMap;
use std::sync::LazyLock;
use thiserror::Error;

/// Character by which SentencePiece represents a space.
pub const META_SPACE: char = '\u{2581}';

/// Error for inconsistent [`TokenizerFacts`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct MalformedVocabulary(pub String);

/// Bytes of all tokens, in one block. Empty by default.
#[derive(Debug, Default)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// Exclusive end of each token in `bytes`, by id. A token starts at the end of its predecessor.
    ends: Vec<usize>,
    /// Names of tokens without bytes, by id.
    names: HashMap<usize, String>,
}

impl Vocabulary {
    /// Builds the table from a model's tokenizer.
    ///
    /// # Errors
    /// If the vocabulary is empty, a list has another length than the vocabulary, or a byte token is malformed.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, MalformedVocabulary> {
        check_lengths(facts)?;
        let mut bytes = Vec::with_capacity(facts.tokens.iter().map(String::len).sum());
        let mut ends = Vec::with_capacity(facts.tokens.len());
        let mut names = HashMap::new();
        for (index, text) in facts.tokens.iter().enumerate() {
            let kind = effective_kind(facts, index);
            append_bytes(facts.kind, kind, text, &mut bytes)
                .map_err(|error| MalformedVocabulary(format!("token {index}: {error}")))?;
            if ends.last().copied().unwrap_or(0) == bytes.len() {
                names.insert(index, text.clone());
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends, names })
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of a token. Empty for a control token and for an id outside the vocabulary.
    #[must_use]
    pub fn bytes(&self, token: TokenId) -> &[u8] {
        let index = token.index();
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..end]
    }

    /// Bytes of a token, or of its name for a token without bytes, such as `<|im_end|>`.
    #[must_use]
    pub fn name(&self, token: TokenId) -> &[u8] {
        let name = self.names.get(&token.index());
        name.map_or_else(|| self.bytes(token), String::as_bytes)
    }
}

/// Kind of a token. Tokens that end generation are control tokens even if the file differs: some converters mark
/// `<|im_end|>` as normal text.
#[must_use]
pub fn effective_kind(facts: &TokenizerFacts, index: usize) -> TokenKind {
    let ends = facts
        .end_of_generation
        .iter()
        .any(|token| token.index() == index);
    if ends {
        TokenKind::Control
    } else {
        facts.kinds[index]
    }
}

fn check_lengths(facts: &TokenizerFacts) -> Result<(), MalformedVocabulary> {
    let tokens = facts.tokens.len();
    if tokens == 0 {
        return Err(MalformedVocabulary("the vocabulary is empty".to_owned()));
    }
    if facts.kinds.len() != tokens {
        let kinds = facts.kinds.len();
        return Err(MalformedVocabulary(format!(
            "tokenizer.ggml.token_type has {kinds} items for {tokens} tokens"
        )));
    }
    if facts.kind == TokenizerKind::SentencePiece && facts.scores.len() != tokens {
        let scores = facts.scores.len();
        return Err(MalformedVocabulary(format!(
            "tokenizer.ggml.scores has {scores} items for {tokens} tokens"
        )));
    }
    Ok(())
}

fn append_bytes(
    tokenizer: TokenizerKind,
    kind: TokenKind,
    text: &str,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    match (kind, tokenizer) {
        (TokenKind::Control | TokenKind::Unknown | TokenKind::Unused, _) => {}
        (TokenKind::UserDefined, _) => out.extend_from_slice(text.as_bytes()),
        (TokenKind::Byte, _) => out.push(parse_byte(text)?),
        (TokenKind::Normal, TokenizerKind::SentencePiece | TokenizerKind::CharacterBpe) => {
            out.extend_from_slice(text.replace(META_SPACE, " ").as_bytes());
        }
        (TokenKind::Normal, TokenizerKind::ByteLevelBpe) => append_byte_level(text, out),
    }
    Ok(())
}

/// Parses a byte token: `<0x0A>` is byte 10.
fn parse_byte(text: &str) -> Result<u8, String> {
    text.strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2 && digits.bytes().all(|c| c.is_ascii_hexdigit()))
        .and_then(|digits| u8::from_str_radix(digits, 16).ok())
        .ok_or_else(|| format!("byte token {text:?} is not of the form <0xNN>"))
}

/// Appends the bytes of a byte-level token. A token with a character outside the alphabet is not byte-encoded, and its bytes
/// are its UTF-8 text.
fn append_byte_level(text: &str, out: &mut Vec<u8>) {
    match bytes_of(text) {
        Some(bytes) => out.extend(bytes),
        None => out.extend_from_slice(text.as_bytes()),
    }
}

/// Bytes of a byte-encoded token. `None` if a character is outside the alphabet.
#[must_use]
pub fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of_char).collect()
}

/// Byte of a character. `None` if it is outside the alphabet.
#[must_use]
pub fn byte_of_char(c: char) -> Option<u8> {
    BYTE_OF_CHAR.get(c as usize).copied().flatten()
}

/// True if each byte has its own token, so that every text can be tokenized without loss.
#[must_use]
pub fn names_every_byte(tokens: &[String]) -> bool {
    let mut named = [false; 256];
    for token in tokens {
        let mut chars = token.chars();
        if let (Some(c), None) = (chars.next(), chars.next())
            && let Some(byte) = byte_of_char(c)
        {
            named[usize::from(byte)] = true;
        }
    }
    named.iter().all(|named| *named)
}

/// Byte-level alphabet of GPT-2: printable Latin-1 bytes map to their own characters, the other bytes to the characters from
/// U+0100 on, in order. Indexed by character.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut byte_of_char = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let c = if printable {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        byte_of_char[c] = Some(byte);
    }
    byte_of_char
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_one_character_per_byte() {
        let mut bytes: Vec<u8> = BYTE_OF_CHAR.iter().filter_map(|byte| *byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn byte_level_tokens_are_decoded_to_bytes() {
        let mut out = Vec::new();
        append_byte_level("Ġcaf\u{c3}\u{a9}", &mut out);
        assert_eq!(out, " café".as_bytes());
        out.clear();
        append_byte_level("Ċ", &mut out);
        assert_eq!(out, b"\n");
    }

    #[test]
    fn a_space_of_characters_is_decoded_and_their_text_is_kept() {
        let mut out = Vec::new();
        let kind = TokenizerKind::CharacterBpe;
        append_bytes(kind, TokenKind::Normal, "▁aĠ", &mut out).unwrap();
        append_bytes(kind, TokenKind::Byte, "<0x0A>", &mut out).unwrap();
        append_bytes(kind, TokenKind::UserDefined, "<|channel>▁", &mut out).unwrap();
        append_bytes(kind, TokenKind::Control, "<turn|>", &mut out).unwrap();
        assert_eq!(out, " aĠ\n<|channel>▁".as_bytes());
    }

    #[test]
    fn a_token_outside_the_alphabet_keeps_its_text() {
        let mut out = Vec::new();
        append_byte_level("a 日", &mut out);
        assert_eq!(out, "a 日".as_bytes());
    }

    #[test]
    fn malformed_byte_tokens_are_errors() {
        assert_eq!(parse_byte("<0x0A>"), Ok(10));
        assert!(parse_byte("<0xZZ>").is_err());
        assert!(parse_byte("<0x+A>").is_err());
        assert!(parse_byte("0x0A").is_err());
    }
}
