//! Answers, serialized directly: a tree of JSON values would need many times the memory. Each is serialized twice,
//! first to count its bytes.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use worker_orcd_ipc::TokenId;
use worker_orcd_text::{Detokenizer, Text};

/// Answer of `/tokenize`.
#[derive(Debug)]
pub struct Tokenized {
    pub text: Arc<Text>,
    /// Length of the model's context, in tokens.
    pub context: u32,
    pub tokens: Vec<TokenId>,
    pub with_pieces: bool,
    pub with_texts: bool,
}

/// Answer of `/detokenize`, with llama-server's and vLLM's name of the text.
#[derive(Debug)]
pub struct Detokenized {
    pub text: Arc<Text>,
    pub tokens: Vec<TokenId>,
}

/// Answer of `/apply-template`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Templated {
    pub prompt: String,
}

/// Bytes of an answer; `None` if there are more than `most`.
pub fn length(answer: &impl Serialize, most: usize) -> Option<usize> {
    let mut left = Left(most);
    serde_json::to_writer(&mut left, answer).ok()?;
    Some(most - left.0)
}

/// Bytes that may still be written.
struct Left(usize);

impl Write for Left {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub type TokenizeAnswer = TokenizedFields<Vec<Token<'static>>, Vec<String>>;
pub type DetokenizeAnswer = DetokenizedFields<String>;

/// Fields of [`Tokenized`]. `T`, `P`: lists.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Tokenized")]
pub struct TokenizedFields<T, P> {
    tokens: T,
    count: usize,
    max_model_len: u32,
    token_strs: Option<P>,
}

impl Serialize for Tokenized {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = &*self.text;
        let ids = self.tokens.iter();
        let tokens = List(ids.clone().map(|id| match self.with_pieces {
            false => Token::Id(id.0),
            true => Token::WithPiece {
                id: id.0,
                piece: Piece::of(text, *id),
            },
        }));
        let lossy = |id: &TokenId| String::from_utf8_lossy(text.bytes_written(*id));
        let answer = TokenizedFields {
            tokens,
            count: self.tokens.len(),
            max_model_len: self.context,
            token_strs: self.with_texts.then(|| List(ids.map(lossy))),
        };
        answer.serialize(serializer)
    }
}

/// List that is serialized from an iterator.
struct List<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Token<'a> {
    Id(u32),
    WithPiece { id: u32, piece: Piece<'a> },
}

/// Bytes that are not UTF-8 are a list of numbers, as in llama-server.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Piece<'a> {
    fn of(text: &'a Text, id: TokenId) -> Self {
        let bytes = text.bytes_written(id);
        std::str::from_utf8(bytes).map_or(Self::Bytes(bytes), Self::Text)
    }
}

/// Fields of [`Detokenized`]. `T`: a text.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Detokenized")]
pub struct DetokenizedFields<T> {
    content: T,
    prompt: T,
}

impl Serialize for Detokenized {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = || Written(&self.text, &self.tokens);
        let answer = DetokenizedFields {
            content: written(),
            prompt: written(),
        };
        answer.serialize(serializer)
    }
}

/// Text of tokens, with special tokens.
struct Written<'a>(&'a Text, &'a [TokenId]);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, tokens) = self;
        let mut detokenizer = Detokenizer::default();
        let mut certain = String::new();
        for &token in *tokens {
            detokenizer.push(text.bytes_written(token), &mut certain);
            out.write_str(&certain)?;
            certain.clear();
        }
        detokenizer.finish(&mut certain);
        out.write_str(&certain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_was_said_or_refused_by_a_byte() {
        let prompt = "a\u{1}\"\u{e9}".to_owned();
        let answer = Templated { prompt };
        let bytes = serde_json::to_vec(&answer).unwrap().len();
        assert_eq!(length(&answer, bytes), Some(bytes));
        assert_eq!(length(&answer, 1 << 20), Some(bytes));
        assert_eq!(length(&answer, bytes - 1), None);
    }
}
