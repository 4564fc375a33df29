//! How each model family cuts text into words before merging: `tokenizer.ggml.pre`.
//!
//! A wrong pattern gives plausible text and wrong ids, so a name that is not in this table is
//! refused. Every row was compared with llama.cpp's ids for that name.

use super::TextError;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// Applied one after the other; what a pattern matches and what lies between are words.
type Patterns = &'static [&'static str];

/// One family's way of cutting.
#[derive(Debug, PartialEq)]
pub(super) struct PreTokenizer {
    pub(super) patterns: Patterns,
    /// A word that is a token as a whole is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
}

const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const GPT2: Patterns = &[WORDS];

const DIGITS_THEN_WORDS: Patterns = &[r"\p{N}", WORDS];

const LLAMA3: Patterns = &[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

const QWEN2: Patterns = &[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

const DEFAULT: Patterns = &[
    r"[\p{P}\$\+<=>\^~\|]+",
    WORDS,
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

const FALCON: Patterns = &[r"[\p{P}\$\+<=>\^~\|`]+", WORDS, r"[0-9][0-9][0-9]"];

impl PreTokenizer {
    /// # Errors
    /// When the name is not in the table.
    pub(super) fn named(name: &str) -> Result<Self, TextError> {
        let (patterns, ignore_merges) = match name {
            "" | "default" => (DEFAULT, false),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "exaone4" | "trillion"
            | "granite-docling" => (GPT2, false),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" => (DIGITS_THEN_WORDS, false),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" | "glm4" => {
                (LLAMA3, true)
            }
            "dbrx" | "smaug-bpe" | "chatglm-bpe" => (LLAMA3, false),
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" => (QWEN2, false),
            "falcon" => (FALCON, false),
            unknown => return Err(TextError::UnknownPreTokenizer(unknown.to_owned())),
        };
        Ok(Self {
            patterns,
            ignore_merges,
        })
    }

    /// The cuts, then the mapping of bytes to printable characters.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, TextError> {
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| TextError::Malformed(error.to_string()))?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(
            false, false, false,
        )));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let error = PreTokenizer::named("klingon").unwrap_err();
        assert_eq!(error, TextError::UnknownPreTokenizer("klingon".to_owned()));
    }

    #[test]
    fn every_pattern_compiles() {
        for name in ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "falcon"] {
            PreTokenizer::named(name).unwrap().build().unwrap();
        }
    }
}
