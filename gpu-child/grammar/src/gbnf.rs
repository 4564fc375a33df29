//! GBNF, the grammars of llama.cpp, as Lark.
//!
//! A GBNF grammar matches characters; the parser of Lark matches lexemes, and a lexeme goes on as long as it can. In
//! `[a-z]* "x"` a lexeme `[a-z]*` would take the `x` too. So each regular part becomes one lexeme only where no text that follows
//! it could also continue it, or another lexeme that may stand there; elsewhere it is taken apart, at the worst into
//! single characters, which cannot continue each other. The language stays the same.
//!
//! ```text
//! text ── reader ──► rules ── regular ──► rules that are not recursive are written out where they are used
//!      ── cut ──► lexemes and what is around them ── writer ──► Lark
//! ```
//!
//! As in llama.cpp, the last one of several rules of one name counts, and a repetition that may be longer than 2000 has no
//! end. Refused by name: tokens (`<think>`, `<[7]>`, `!<think>`), empty classes, ranges that end before they begin, surrogates.

mod around;
mod automaton;
mod class;
mod cut;
mod reader;
mod regular;
mod writer;

use crate::limits::MAX_GRAMMAR_BYTES;
use class::Class;

/// Brackets inside brackets.
const MAX_NESTING: usize = 64;

/// Parts inside parts, where rules that are not recursive are written out.
const MAX_DEPTH: usize = 256;

const MAX_RULES: usize = 1024;

/// As in llama.cpp.
const MAX_REPETITIONS: u32 = 2000;

/// Parts of the rules, where those that are not recursive are written out.
const MAX_PARTS: usize = 50_000;

/// A Lark grammar of the same language, for [`worker_orcd_ipc::Grammar::Lark`].
///
/// # Errors
/// When the text is malformed (the sentence has line and column), refers to tokens, or exceeds a limit.
pub fn gbnf_to_lark(text: &str) -> Result<String, String> {
    if text.len() > MAX_GRAMMAR_BYTES {
        let bytes = text.len();
        return Err(format!(
            "it has {bytes} bytes; at most {MAX_GRAMMAR_BYTES} are compiled"
        ));
    }
    let rules = regular::written_out(reader::rules(text)?)?;
    Ok(writer::lark(&cut::lexemes(rules)?))
}

/// What a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    /// The empty text.
    Empty,
    Class(Class),
    Sequence(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
    /// By its index.
    Rule(usize),
}

impl Tree {
    /// A literal, or as a literal but with classes.
    fn is_word(&self) -> bool {
        match self {
            Self::Class(_) => true,
            Self::Sequence(trees) => trees.iter().all(|tree| matches!(tree, Self::Class(_))),
            _ => false,
        }
    }

    /// Those of a word.
    fn classes(&self) -> impl Iterator<Item = &Class> {
        let trees = match self {
            Self::Sequence(trees) => trees.as_slice(),
            tree => std::slice::from_ref(tree),
        };
        trees.iter().filter_map(|tree| match tree {
            Self::Class(class) => Some(class),
            _ => None,
        })
    }
}

/// Rules, the first of which is the root.
#[derive(Debug)]
struct Rules<T> {
    names: Vec<String>,
    bodies: Vec<T>,
}

#[cfg(test)]
mod llama_cpp;
#[cfg(test)]
mod tests;
