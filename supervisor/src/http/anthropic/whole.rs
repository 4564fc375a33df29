//! An answer in one piece: the sum of what a stream would tell.
//!
//! The handler's future holds the stream: when the client goes away, the connection drops the future, the future
//! drops the stream, and the engine cancels the work.

use super::blocks::{BlockEvent, Blocks, Kind};
use super::usage_of;
use crate::engine::{Completion, Failure, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use crate::http::error::ApiError;
use crate::http::job::Job;
use crate::text::tools::Parsing;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

pub(in crate::http) async fn respond(
    mut stream: RequestStream,
    mut job: Job,
    model: &str,
    parsing: Parsing,
) -> Result<Response, ApiError> {
    let mut text = String::new();
    let mut events = Vec::new();
    while stream.next(&mut events).await {
        for event in events.drain(..) {
            match event {
                StreamEvent::Text(piece) => text.push_str(&piece.text),
                StreamEvent::Finished(completion) => {
                    job.finished(&completion);
                    let answer = Answer::of(job.id(), model, parsing, &text, &completion);
                    return Ok(axum::Json(answer).into_response());
                }
                StreamEvent::Embedded(_) => break,
                StreamEvent::Failed(failure) => {
                    job.failed(&failure);
                    return Err(ApiError::of_failure(&failure));
                }
            }
        }
    }
    let failure = Failure::new(ErrorCode::Internal, "the stream ended without an end");
    Err(ApiError::of_failure(&failure))
}

#[derive(Debug, Serialize)]
pub(super) struct Answer {
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
        /// As the model wrote it.
        input: Box<RawValue>,
    },
}

impl Answer {
    pub(super) fn of(
        id: &str,
        model: &str,
        parsing: Parsing,
        text: &str,
        completion: &Completion,
    ) -> Self {
        let (mut blocks, mut events) = (Blocks::new(parsing, id), Vec::new());
        blocks.push(text, &mut events);
        blocks.finish(&mut events);
        Self {
            id: id.to_owned(),
            r#type: "message",
            role: "assistant",
            model: model.to_owned(),
            content: sum(events),
            stop_reason: blocks.stop_reason(completion.stop_reason),
            stop_sequence: completion.stop_sequence.clone(),
            usage: usage_of(completion),
        }
    }
}

fn sum(events: Vec<BlockEvent>) -> Vec<Block> {
    let mut content = Vec::new();
    let mut open: Option<(Kind, String)> = None;
    for event in events {
        match event {
            BlockEvent::Begins(kind) => open = Some((kind, String::new())),
            BlockEvent::Adds(more) => {
                if let Some((_, text)) = &mut open {
                    text.push_str(&more);
                }
            }
            BlockEvent::Signed => {}
            BlockEvent::Ends => content.extend(open.take().map(|(kind, text)| whole(kind, text))),
        }
    }
    content
}

fn whole(kind: Kind, text: String) -> Block {
    match kind {
        Kind::Text => Block::Text { text },
        Kind::Thinking => Block::Thinking {
            thinking: text,
            signature: "",
        },
        Kind::ToolUse { id, name } => Block::ToolUse {
            id,
            name,
            input: input(text),
        },
    }
}

/// What was cut in the middle is no object, and half of one would be another call than the model meant.
fn input(text: String) -> Box<RawValue> {
    let nothing = |_| RawValue::from_string("{}".to_owned());
    let given = RawValue::from_string(text).or_else(nothing);
    given.unwrap_or_else(|_| RawValue::NULL.to_owned())
}
