//! An answer in one piece: the `response` with which a stream of the same request ends.

use super::answer::{Header, Progress};
use super::output::Output;
use crate::engine::{Failure, RequestStream, StreamEvent};
use crate::error_code::ErrorCode;
use crate::http::error::ApiError;
use crate::http::job::Job;
use crate::http::sse::write_json;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

pub(super) async fn respond(
    mut stream: RequestStream,
    mut job: Job,
    header: &Header,
) -> Result<Response, ApiError> {
    let only_one_call = !header.echo.parallel_tool_calls;
    let mut output = Output::new(&header.id, header.parsing, only_one_call);
    let (mut events, mut steps) = (Vec::new(), Vec::new());
    while stream.next(&mut events).await {
        for event in events.drain(..) {
            steps.clear();
            match event {
                StreamEvent::Text(piece) => output.push(&piece, &mut steps),
                StreamEvent::Finished(completion) => {
                    job.finished(&completion);
                    output.finish(completion.stop_reason, &mut steps);
                    let ended = Progress::ended(&completion, output.reasoning_tokens);
                    let mut body = Vec::new();
                    write_json(&mut body, &header.response(&output.items, &ended));
                    return Ok(([(CONTENT_TYPE, "application/json")], body).into_response());
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
