//! An answer in one piece.
//!
//! The handler's future holds the stream: when the client goes away, the connection drops the
//! future, the future drops the stream, and the engine cancels the work.

use super::logprobs::List;
use super::parts::Parts;
use super::stream::usage_of;
use super::{Header, Kind, finish_reason};
use crate::engine::{Completion, Failure, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use crate::http::error::ApiError;
use crate::http::job::Job;
use crate::http::sse::write_json;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
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
                    let body = answer(header, &text, logprobs, &completion);
                    return Ok(([(CONTENT_TYPE, "application/json")], body).into_response());
                }
                // The journal gives vectors to those who asked for them.
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

/// What is before the choices.
#[derive(Serialize)]
struct Opening<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
}

/// What is before the log probabilities of the choice.
#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// The answer as JSON. Log probabilities of a long one are tens of megabytes, so they are written into it
/// once, and it has room for them and no more.
fn answer(header: &Header, text: &str, logprobs: Option<List>, completion: &Completion) -> Vec<u8> {
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
    let opening = Opening {
        id: &header.id,
        object: header.kind.object(),
        created: header.created,
        model: &header.model,
        system_fingerprint: &header.fingerprint,
    };
    let choice = Choice {
        index: 0,
        message,
        text,
    };
    let mut end = b",\"finish_reason\":".to_vec();
    write_json(&mut end, &finish_reason);
    end.extend_from_slice(b"}],\"usage\":");
    write_json(&mut end, &usage_of(completion));
    end.push(b'}');

    let mut out = Vec::new();
    write_json(&mut out, &opening);
    // Reopens the object that was just closed.
    out.pop();
    out.extend_from_slice(b",\"choices\":[");
    write_json(&mut out, &choice);
    out.pop();
    out.extend_from_slice(b",\"logprobs\":");
    match logprobs {
        Some(list) => {
            out.reserve_exact(list.bytes() + end.len());
            list.write(&mut out);
        }
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(&end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Listed, ListedToken, StopReason};
    use crate::requests::testing;
    use crate::text::tools::Parsing;
    use std::time::Duration;
    use worker_orcd_ipc::{Logprobs, TokenId};

    fn answered(kind: Kind, tokens: usize) -> Vec<u8> {
        let header = Header {
            kind,
            id: "job".to_owned(),
            created: 3,
            model: "m".to_owned(),
            fingerprint: "fp".to_owned(),
            parsing: Parsing::default(),
        };
        let completion = Completion {
            stop_reason: StopReason::MaxTokens,
            stop_sequence: None,
            tokens_in: 2,
            cached_tokens: 1,
            tokens_out: 1,
            queued_for: None,
            first_token_after: Duration::ZERO,
            decode_time: Duration::ZERO,
            recoveries: 0,
        };
        let token = ListedToken {
            token: TokenId(0),
            offset: 0,
            logprobs: Logprobs {
                of_token: -0.5,
                top: vec![],
            },
        };
        let listed = Listed {
            tokens: vec![token; tokens],
            text: testing::text(),
        };
        let list = (tokens > 0).then(|| List::of(kind, &listed));
        answer(&header, "a", list, &completion)
    }

    #[test]
    fn an_answer_has_the_fields_of_its_api_with_log_probabilities_and_without() {
        let of = |object, choice: Value| {
            json!({
                "id": "job", "object": object, "created": 3, "model": "m", "system_fingerprint": "fp",
                "choices": [choice],
                "usage": {
                    "prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 1},
                },
            })
        };
        let read = |kind, tokens| -> Value {
            serde_json::from_slice(&answered(kind, tokens)).expect("it is JSON")
        };
        let message = json!({"role": "assistant", "content": "a", "refusal": null});
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "length"});
        assert_eq!(read(Kind::Chat, 0), of("chat.completion", choice));
        let logprobs = json!({
            "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0],
        });
        let choice =
            json!({"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "length"});
        assert_eq!(read(Kind::Completion, 1), of("text_completion", choice));
    }

    #[test]
    fn a_long_answer_with_log_probabilities_takes_its_own_bytes_and_no_more() {
        for kind in [Kind::Chat, Kind::Completion] {
            let body = answered(kind, 5000);
            let unused = body.capacity() - body.len();
            assert!(unused < 1000, "{unused} beside {}", body.len());
        }
    }
}
