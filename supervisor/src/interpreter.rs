//! The interpreter of what strangers wrote, in a process of its own that may die.
//!
//! A chat template comes with the model file. It can nest until a stack overflows, grow until
//! memory is gone, or take its time, and no interpreter bounds all of that from inside. So it runs
//! in a small process that has limits on memory, descriptors and time, that the supervisor kills
//! at a deadline, and whose death costs the request that asked:
//!
//! ```text
//! http ─→ pool (two threads, each with) ── Order ──→ process (`worker-orcd interpret`)
//!          a process at the other end   ←─ Answer ──   limits, then one order after another
//! ```
//!
//! * [`pool`] is the supervisor's side, [`process`] the other one, `channel` the socket between.
//! * One order at a time: a death ends nobody's work but that of the order it followed.
//!
//! Deliberately absent: tokenizing, which the supervisor does within bounds; anything that a
//! client was promised.

mod channel;
pub mod pool;
pub mod process;

pub use pool::Interpreter;

use crate::text::template::{Rendering, TemplateError, TemplateSource};
use serde::{Deserialize, Serialize};

/// Longest prompt that a template may make where the vocabulary bounds none: half of what fits
/// between the processes.
pub const MAX_RENDERED_BYTES: usize = 16 << 20;

/// Questions of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    /// The first order of each process.
    Compile(TemplateSource),
    Render(Rendering),
}

/// One for each order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Compiled,
    Rendered(String),
    Failed(TemplateError),
}
