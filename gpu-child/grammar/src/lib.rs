//! Which token may come next where an answer is held to a [`Grammar`](worker_orcd_ipc::Grammar).
//!
//! ```text
//! TokenizerFacts ── Compiler::new ──► Compiler ── compile(grammar) ──► Matcher ──► mask, accept, mask, …
//!                   (once a model)              (once a request)                  (once a token)
//! ```
//!
//! llguidance does the work: an Earley parser over lexemes that are derivatives of regular expressions, walked
//! along a trie of the vocabulary. Around it this crate has the vocabulary of our models, [`limits`],
//! and one error of bounded length.
//!
//! What of a mask the lexer alone says is found once for each of its states, and shared by all matchers of a grammar
//! (`bias.rs`, `scout.rs`).
//!
//! A [`Matcher`] is a function of (vocabulary, grammar, tokens accepted) and of nothing else: another process
//! that replays the same tokens gets the same masks, and the same error where limits end it.
//!
//! Deliberately absent: threads, clocks, I/O, and any state of one request that another one could see the result of. Who calls this runs it
//! where nothing waits for it, on a stack of [`STACK_BYTES`](limits::STACK_BYTES).

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod bias;
mod captures;
mod compiler;
mod error;
mod gbnf;
mod held;
mod inline;
mod kept;
pub mod limits;
mod mask;
mod matcher;
mod narrow;
mod rehearsal;
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
