//! Anthropic's Messages API: requests, named events, and errors.
//!
//! ```text
//! request ─→ conversation (content: blocks) ─┐
//!            thinking, tools ────────────────┴→ generation ─→ timeline ─→ stream (named events, or their sum)
//! ```
//!
//! [`answer`]: objects of answers.
//!
//! An unsupported field that would change the answer is refused by name; docs/guide/messages.md has all of them.
//! Deliberately absent: images and documents, tools that Anthropic's servers run, and a reasoning budget.

pub mod answer;
mod content;
mod conversation;
pub mod request;
mod settings;
pub mod stream;
mod tools;

/// Prefix of tool use ids.
const ID_PREFIX_OF_CALLS: &str = "toolu_";
