//! Ollama's API: `/api/chat`, `/api/generate` and `/api/embed`. An answer is one JSON object, or one on each line.
//!
//! ```text
//! request ─→ messages, or prompt ─┐
//!            options, tools ──────┴→ generation ─→ timeline ─→ lines (one object for each step)
//!                                                        └───→ whole (their sum)
//! ```
//!
//! The format is that of `api/types.go` in Ollama's repository. A field that would change the answer and is not supported
//! is refused by name; docs/guide/ollama.md has all of them. [`answer`]: objects of answers. [`embed`]: embeddings.
//!
//! Deliberately absent: management of models, images, log probabilities, and context shift.

pub mod answer;
pub mod embed;
mod options;
pub mod request;

pub use crate::answer_format::OllamaKind as Kind;
