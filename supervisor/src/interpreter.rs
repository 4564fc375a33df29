//! The interpreter of what strangers wrote, in a process of its own that may die.
//!
//! A chat template comes with the model file, a grammar with a request. Either can nest until a stack
//! overflows, grow until memory is gone, or take its time, and no interpreter bounds all of that from inside.
//! So it runs in a small process that has limits on memory, descriptors and time, that the supervisor kills
//! at a deadline, and whose death costs the request that asked:
//!
//! ```text
//! http ─→ pool, grammars (two threads each) ── Order ──→ process (`worker-orcd interpret`)
//!          with a process at the other end  ←─ Answer ──   limits, then one order after another
//! ```
//!
//! * [`pool`] has the processes for templates and [`grammars`] those for grammars, so that neither waits for
//!   the other; `keeper` replaces those that died; [`process`] is the other side, `channel` the socket between.
//! * One order at a time: a death ends nobody's work but that of the order it followed.
//!
//! Deliberately absent: tokenizing, which the supervisor does within bounds; anything that a
//! client was promised.

mod channel;
pub mod grammars;
mod keeper;
pub mod pool;
pub mod process;

pub use grammars::{GrammarFault, Grammars};
pub use pool::Interpreter;

use serde::{Deserialize, Serialize};
use worker_orcd_ipc::{Grammar, TokenizerFacts};
use worker_orcd_text::template::{Rendering, TemplateError, TemplateSource};

/// Longest prompt that a template may make where the vocabulary bounds none: half of what fits
/// between the processes.
pub const MAX_RENDERED_BYTES: usize = 16 << 20;

/// Questions of the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Order {
    /// The first order of a process for templates.
    Compile(TemplateSource),
    Render(Rendering),
    /// The first order of a process for grammars.
    Vocabulary(TokenizerFacts),
    /// Compiles a grammar, and finds out which tokens may come first.
    Check(Grammar),
}

/// One for each order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// To a first order.
    Ready,
    Rendered(String),
    Failed(TemplateError),
    /// What is wrong with the vocabulary.
    NoVocabulary(String),
    /// What is wrong with the grammar, if anything is.
    Checked(Result<(), String>),
}
