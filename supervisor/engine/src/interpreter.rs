//! Interpreter of untrusted programs, in a separate process that may die: chat templates and grammars.
//!
//! A chat template comes with the model file, a grammar with a request. Either can overflow the stack, exhaust memory,
//! or run forever, and no interpreter bounds all of that from inside. So it runs in a small process with limits on
//! memory, descriptors and time. The supervisor kills the process at a deadline. Its death fails one request:
//!
//! ```text
//! prompt ─→ pool, grammars (two threads each, ── Order ──→ process (`worker-orcd interpret`)
//!           with one process each)            ←─ Answer ──   limits, then one order after another
//! ```
//!
//! * [`pool`]: processes for templates. [`grammars`]: processes for grammars. Neither waits for the other. `keeper`:
//!   replaces dead processes. [`process`]: the child's side. `channel`: the socket between.
//! * A process has one order at a time: its death fails no other order.
//!
//! Deliberately absent: tokenizing, which the supervisor does within bounds, and the state of requests.

mod channel;
mod grammars;
mod keeper;
mod pool;
pub mod process;

pub use grammars::{GrammarFault, Grammars};
pub use pool::Interpreter;

use serde::{Deserialize, Serialize};
use worker_orcd_ipc::{Grammar, TokenizerFacts};
use worker_orcd_text::template::{Rendering, TemplateError, TemplateSource};

/// Longest rendered prompt if the vocabulary gives no bound: half of a frame's limit.
pub const MAX_RENDERED_BYTES: usize = 16 << 20;

/// Messages of the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Order {
    /// First order of a process for templates.
    Compile(TemplateSource),
    Render(Rendering),
    /// First order of a process for grammars.
    Vocabulary(TokenizerFacts),
    /// Compiles a grammar and computes the allowed first tokens.
    Check(Grammar),
}

/// Answers, one for each order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// Answer to a first order.
    Ready,
    Rendered(String),
    Failed(TemplateError),
    /// Error of the vocabulary.
    NoVocabulary(String),
    /// Error of the grammar, if any.
    Checked(Result<(), String>),
}
