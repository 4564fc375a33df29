//! An answer in one piece.
//!
//! The handler's future holds the stream: when the client goes away, the connection drops the
//! future, the future drops the stream, and the engine cancels the work.

use super::parts::Parts;
use super::stream::usage;
use super::{Header, Kind, finish_reason};
use crate::engine::{Completion, Failure, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use crate::http::error::ApiError;
use crate::http::job::Job;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(in crate::http) async fn respond(
    mut stream: RequestStream,
    mut job: Job,
    header: &Header,
) -> Result<Response, ApiError> {
    let mut text = String::new();
    let mut events = Vec::new();
    while stream.next(&mut events).await {
        for event in events.drain(..) {
            match event {
                StreamEvent::Text(piece) => text.push_str(&piece.text),
                StreamEvent::Finished(completion) => {
                    job.finished(&completion);
                    return Ok(axum::Json(body(header, &text, &completion)).into_response());
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

fn body(header: &Header, text: &str, completion: &Completion) -> Value {
    let mut choice = json!({
        "index": 0,
        "logprobs": null,
        "finish_reason": finish_reason(completion.stop_reason),
    });
    match (header.kind, Parts::of(header.parsing, &header.id)) {
        (Kind::Chat, Some(parts)) => {
            let (message, reason) = parts.message(text, completion.stop_reason);
            choice["message"] = message;
            choice["finish_reason"] = json!(reason);
        }
        (Kind::Chat, None) => {
            choice["message"] = json!({"role": "assistant", "content": text, "refusal": null});
        }
        (Kind::Completion, _) => choice["text"] = json!(text),
    }
    json!({
        "id": header.id,
        "object": header.kind.object(),
        "created": header.created,
        "model": header.model,
        "choices": [choice],
        "usage": usage(completion.tokens_in, completion.tokens_out),
    })
}
