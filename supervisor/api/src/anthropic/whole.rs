//! Answer in one piece: the sum of a stream's events.

use super::{ID_PREFIX_OF_CALLS, stop_reason, usage_of};
use crate::timeline::{Item, Kind, Timeline, sum};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use worker_orcd_requests::{Completion, StopReason};
use worker_orcd_text::tools::Parsing;

#[derive(Debug, Serialize)]
pub struct Answer {
    id: String,
    r#type: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    stop_reason: &'static str,
    stop_sequence: Option<String>,
    usage: Value,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    ToolUse {
        id: String,
        name: String,
        /// JSON object, as the model wrote it.
        input: Box<RawValue>,
    },
}

impl Answer {
    #[must_use]
    pub fn of(
        id: &str,
        model: &str,
        parsing: Parsing,
        text: &str,
        completion: &Completion,
    ) -> Self {
        let mut timeline = Timeline::new(id, ID_PREFIX_OF_CALLS, parsing);
        let mut steps = Vec::new();
        timeline.push(text, &mut steps);
        timeline.finish(completion.stop_reason == StopReason::MaxTokens, &mut steps);
        Self {
            id: id.to_owned(),
            r#type: "message",
            role: "assistant",
            model: model.to_owned(),
            content: sum(steps).into_iter().map(block).collect(),
            stop_reason: stop_reason(completion.stop_reason, &timeline),
            stop_sequence: completion.stop_sequence.clone(),
            usage: usage_of(completion),
        }
    }
}

fn block(Item { kind, text }: Item) -> Block {
    match kind {
        Kind::Text => Block::Text { text },
        Kind::Reasoning => Block::Thinking {
            thinking: text,
            signature: "",
        },
        Kind::Call { id, name } => Block::ToolUse {
            id,
            name,
            input: input(text),
        },
    }
}

/// Input of a call. Truncated arguments are not an object, and completing them would make another call than the model
/// intended, so they become `{}`.
fn input(text: String) -> Box<RawValue> {
    let nothing = |_| RawValue::from_string("{}".to_owned());
    let given = RawValue::from_string(text).or_else(nothing);
    given.unwrap_or_else(|_| RawValue::NULL.to_owned())
}
