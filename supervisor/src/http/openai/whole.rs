//! An answer in one piece.
//!
//! The handler's future holds the stream: when the client goes away, the connection drops the
//! future, the future drops the stream, and the engine cancels the work.

use super::logprobs::List;
use super::parts::Parts;
use super::stream::usage;
use super::{Header, Kind, finish_reason};
use crate::engine::{Completion, Failure, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use crate::http::error::ApiError;
use crate::http::job::Job;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub(in crate::http) async fn respond(
    mut stream: RequestStream,
    mut job: Job,
    header: &Header,
) -> Result<Response, ApiError> {
    let mut text = String::new();
    let mut logprobs = stream.has_logprobs().then(|| List::new(header.kind));
    let mut events = Vec::new();
    while stream.next(&mut events).await {
        for event in events.drain(..) {
            match event {
                StreamEvent::Text(piece) => {
                    text.push_str(&piece.text);
                    if let (Some(list), Some(listed)) = (&mut logprobs, &piece.logprobs) {
                        list.add(listed);
                    }
                }
                StreamEvent::Finished(completion) => {
                    job.finished(&completion);
                    let answer = answer(header, &text, logprobs.as_ref(), &completion);
                    return Ok(axum::Json(answer).into_response());
                }
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

#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: [Choice<'a>; 1],
    usage: Value,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<Box<RawValue>>,
    finish_reason: &'static str,
}

fn answer<'a>(
    header: &'a Header,
    text: &'a str,
    logprobs: Option<&List>,
    completion: &Completion,
) -> Answer<'a> {
    let reason = completion.stop_reason;
    let parts = Parts::of(header.parsing, &header.id);
    let (message, text, finish_reason) = match (header.kind, parts) {
        (Kind::Chat, Some(parts)) => {
            let (message, finish_reason) = parts.message(text, reason);
            (Some(message), None, finish_reason)
        }
        (Kind::Chat, None) => {
            let message = json!({"role": "assistant", "content": text, "refusal": null});
            (Some(message), None, finish_reason(reason))
        }
        (Kind::Completion, _) => (None, Some(text), finish_reason(reason)),
    };
    Answer {
        id: &header.id,
        object: header.kind.object(),
        created: header.created,
        model: &header.model,
        system_fingerprint: &header.fingerprint,
        choices: [Choice {
            index: 0,
            message,
            text,
            logprobs: logprobs.map(List::to_raw),
            finish_reason,
        }],
        usage: usage(completion.tokens_in, completion.tokens_out),
    }
}
