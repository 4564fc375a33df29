//! Pre-tokenizers: the regular expressions by which each model family splits text into words before merging
//! (`tokenizer.ggml.pre` of a GGUF file).
//!
//! A wrong pattern gives plausible text and wrong ids, so a name that is not in this table is refused. Each row was
//! compared with llama.cpp's ids for that name.

use super::TextError;
use super::pieces::Undivided;
use regex::Regex;
use std::ops::Range;

/// Patterns, applied one after another. Both the matches and the text between matches are words.
type Patterns = &'static [&'static str];

/// Splitting rules of one family.
#[derive(Debug, PartialEq)]
pub(super) struct PreTokenizer {
    pub(super) patterns: Patterns,
    /// A word that is a token as a whole becomes that token, without merging.
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

/// Qwen2's, but line feeds are no part of a run of other characters.
const SEED_CODER: Patterns = &[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Qwen2's, with marks among the letters.
const QWEN35: Patterns = &[
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Mistral's pattern as llama.cpp implements it: any letter other than `a` to `z` counts as upper case, any other than
/// `A` to `Z` as lower case.
const TEKKEN: Patterns = &[
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The pattern as llama.cpp implements it: case is distinguished for ASCII letters only, and marks are not letters.
const O200K: Patterns = &[
    r"[^\r\n\p{L}\p{N}]?[\p{L}--a-z]*[\p{L}--A-Z]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--a-z]+[\p{L}--A-Z]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
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
    /// If the name is not in the table.
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
            "qwen35" => (QWEN35, false),
            "seed-coder" => (SEED_CODER, false),
            "gpt-4o" | "llama4" | "minimax-m2" => (O200K, false),
            "falcon" => (FALCON, false),
            "tekken" => (TEKKEN, true),
            unknown => return Err(TextError::UnknownPreTokenizer(unknown.to_owned())),
        };
        Ok(Self {
            patterns,
            ignore_merges,
        })
    }

    pub(super) fn words(&self) -> Result<Words, TextError> {
        let cuts = self.patterns.iter().map(|pattern| Cut::new(pattern));
        Ok(Words(cuts.collect::<Result<_, _>>()?))
    }
}

/// Alternatives for white space: a run leaves its last character to the following word, if there is one.
const LENDS_ITS_LAST: &str = r"\s+(?!\S)|\s+";

/// Compiled patterns of one family. They have no lookahead and do not backtrack, so time grows linearly with the text
/// and memory is constant.
#[derive(Debug)]
pub(super) struct Words(Vec<Cut>);

#[derive(Debug)]
struct Cut {
    /// Pattern. Its first group, if it has one, is a run of white space.
    pattern: Regex,
}

impl Words {
    /// Calls `each` for all words in order, until it fails.
    pub(super) fn of<F>(&self, text: &str, each: &mut F) -> Result<(), Undivided>
    where
        F: FnMut(&str) -> Result<(), Undivided>,
    {
        cut(&self.0, text, each)
    }
}

fn cut<F>(cuts: &[Cut], text: &str, each: &mut F) -> Result<(), Undivided>
where
    F: FnMut(&str) -> Result<(), Undivided>,
{
    let Some((first, others)) = cuts.split_first() else {
        return each(text);
    };
    first
        .parts(text)
        .try_for_each(|part| cut(others, part, each))
}

impl Cut {
    fn new(pattern: &str) -> Result<Self, TextError> {
        let pattern = Regex::new(&pattern.replace(LENDS_ITS_LAST, r"(\s+)"))
            .map_err(|error| TextError::Malformed(error.to_string()))?;
        Ok(Self { pattern })
    }

    /// Matches of the pattern, and the text between them, in order.
    fn parts<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut found: Option<Range<usize>> = None;
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == text.len() {
                return None;
            }
            let next = found.take().or_else(|| self.find(text, start));
            let next = next.unwrap_or(text.len()..text.len());
            let part = if next.start > start {
                start..next.start
            } else {
                next.clone()
            };
            found = (part != next).then_some(next);
            start = part.end;
            Some(&text[part])
        })
    }

    fn find(&self, text: &str, from: usize) -> Option<Range<usize>> {
        let found = self.pattern.find_at(text, from)?;
        let (last, c) = found.as_str().char_indices().next_back()?;
        let may_lend = last > 0 && c.is_whitespace() && found.end() < text.len();
        let lends = may_lend && {
            let groups = self.pattern.captures_at(text, found.start());
            groups.is_some_and(|groups| groups.get(1).is_some())
        };
        let end = if lends {
            found.start() + last
        } else {
            found.end()
        };
        Some(found.start()..end)
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
        for name in [
            "default",
            "gpt-2",
            "smollm",
            "llama-bpe",
            "qwen2",
            "qwen35",
            "seed-coder",
            "falcon",
            "tekken",
            "gpt-4o",
        ] {
            PreTokenizer::named(name).unwrap().words().unwrap();
        }
    }
}
