//! Anthropic's Messages API: requests, named events, and errors.
//!
//! ```text
//! request ─→ conversation (content: blocks) ─┐
//!            thinking, tools ────────────────┴→ generation ─→ timeline ─→ stream (named events)
//!                                                                   └───→ whole  (their sum)
//! ```
//!
//! An unsupported field that would change the answer is refused by name; docs/guide/messages.md has all of them.
//! Deliberately absent: images and documents, tools that Anthropic's servers run, and a reasoning budget.

mod content;
mod conversation;
pub mod request;
mod settings;
pub mod stream;
mod tools;
pub mod whole;

use crate::timeline::Timeline;
use serde_json::{Value, json};
use worker_orcd_requests::{Completion, StopReason};

/// Prefix of tool use ids.
const ID_PREFIX_OF_CALLS: &str = "toolu_";

/// Stop reason of a finished answer.
fn stop_reason(reason: StopReason, timeline: &Timeline) -> &'static str {
    match reason {
        StopReason::MaxTokens => "max_tokens",
        StopReason::StopSequence => "stop_sequence",
        StopReason::Eos if timeline.has_whole_calls() => "tool_use",
        StopReason::Eos => "end_turn",
    }
}

/// Usage of this API: prompt tokens from the prefix cache are cache reads, and are no input tokens.
fn usage(tokens_in: u32, cached: u32, tokens_out: u32) -> Value {
    json!({
        "input_tokens": tokens_in.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": tokens_out,
    })
}

fn usage_of(completion: &Completion) -> Value {
    let (all, cached) = (completion.tokens_in, completion.cached_tokens);
    usage(all, cached, completion.tokens_out)
}
