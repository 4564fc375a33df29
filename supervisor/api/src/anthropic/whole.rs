//! Answer in one piece: the sum of a stream's events.

use super::ID_PREFIX_OF_CALLS;
use super::answer::{Block, End, Message};
use crate::timeline::{Timeline, sum};
use worker_orcd_requests::{Completion, StopReason};
use worker_orcd_text::tools::Parsing;

#[must_use]
pub fn answer(
    id: &str,
    model: &str,
    parsing: Parsing,
    text: &str,
    completion: &Completion,
) -> Message {
    let mut timeline = Timeline::new(id, ID_PREFIX_OF_CALLS, parsing);
    let mut steps = Vec::new();
    timeline.push(text, &mut steps);
    timeline.finish(completion.stop_reason == StopReason::MaxTokens, &mut steps);
    let end = End::of(completion, &timeline);
    let content = sum(steps).into_iter().map(Block::from).collect();
    Message::of(id, model, completion.into()).ended(content, end)
}
