//! GBNF, the grammars of llama.cpp, translated to Lark.
//!
//! A GBNF grammar matches characters; the parser of Lark matches lexemes, and a lexeme is as long as possible. In
//! `[a-z]* "x"` a lexeme `[a-z]*` would take the `x` too. So a regular part becomes one lexeme only if no text that may
//! follow it could also continue it, or an alternative lexeme. Other parts are split, in the worst case into single
//! characters, which cannot continue each other. The language stays the same.
//!
//! ```text
//! text ── reader ──► rules ── regular ──► non-recursive rules are inlined where they are used
//!      ── cut ──► lexemes and rules around them ── writer ──► Lark
//! ```
//!
//! As in llama.cpp, the last of several rules of one name wins, and a repetition above 2000 is unbounded. Refused by
//! name: tokens (`<think>`, `<[7]>`, `!<think>`), empty classes, ranges that end before they begin, surrogates.

mod around;
mod automaton;
mod class;
mod cut;
mod reader;
mod regular;
mod writer;

use crate::limits::MAX_GRAMMAR_BYTES;
use class::Class;

/// Maximum depth of nested brackets.
const MAX_NESTING: usize = 64;

/// Maximum depth of nested parts, after the inlining of non-recursive rules.
const MAX_DEPTH: usize = 256;

const MAX_RULES: usize = 1024;

/// Maximum bounded repetition, as in llama.cpp.
const MAX_REPETITIONS: u32 = 2000;

/// Maximum number of parts, after the inlining of non-recursive rules.
const MAX_PARTS: usize = 50_000;

/// A Lark grammar of the same language, for [`worker_orcd_ipc::Grammar::Lark`].
///
/// # Errors
/// If the text is malformed (the message has line and column), refers to tokens, or exceeds a limit.
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

/// Expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    /// The empty text.
    Empty,
    Class(Class),
    Sequence(Vec<Tree>),
    Either(Vec<Tree>),
    Repeat(Box<Tree>, u32, Option<u32>),
    /// Reference to a rule, by its index.
    Rule(usize),
}

impl Tree {
    /// True for a literal, and for a sequence of characters and classes.
    fn is_word(&self) -> bool {
        match self {
            Self::Class(_) => true,
            Self::Sequence(trees) => trees.iter().all(|tree| matches!(tree, Self::Class(_))),
            _ => false,
        }
    }

    /// Classes of a word.
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
