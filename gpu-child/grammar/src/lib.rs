//! Masks of allowed next tokens under a [`Grammar`](worker_orcd_ipc::Grammar).
//!
//! ```text
//! TokenizerFacts ── Compiler::new ──► Compiler ── compile(grammar) ──► Matcher ──► mask, accept, mask, …
//!                   (once a model)              (once a request)                  (once a token)
//! ```
//!
//! llguidance does the work: an Earley parser over lexemes that are derivatives of regular expressions, walked along a
//! trie of the vocabulary. This crate adds the vocabulary of a model, [`limits`], and one error of bounded length.
//!
//! The part of a mask that depends on the lexer alone is computed once for each of its states, and shared by all
//! matchers of a grammar (`bias.rs`, `scout.rs`).
//!
//! A [`Matcher`] is a function of (vocabulary, grammar, accepted tokens) only: another process that replays the same
//! tokens gets the same masks, and the same error at a limit.
//!
//! Deliberately absent: threads, clocks, I/O, and any state of one request that affects another. The caller runs this
//! on threads for which nothing waits, with a stack of [`STACK_BYTES`](limits::STACK_BYTES).

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod bias;
mod cache;
mod captures;
mod compiler;
mod dict;
mod error;
mod gbnf;
mod held;
mod inline;
pub mod limits;
mod mask;
mod matcher;
mod narrow;
mod parameters;
mod rehearsal;
mod rules;
mod schema;
mod scout;
mod slices;
mod source;
mod tokens;
mod trie;
mod walk;

pub use compiler::Compiler;
pub use error::GrammarError;
pub use gbnf::gbnf_to_lark;
pub use mask::Mask;
pub use matcher::Matcher;
