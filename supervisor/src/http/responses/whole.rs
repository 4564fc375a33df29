//! Answer in one piece: the same `response` object that ends a stream.

use super::answer::{Header, Progress};
use super::output::Output;
use crate::http::error::ApiError;
use crate::http::generation::Accepted;
use crate::http::sse::write_json;
use crate::http::whole::gather_one;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use worker_orcd_requests::Piece;

pub(super) async fn respond(accepted: Accepted, header: &Header) -> Result<Response, ApiError> {
    let only_one_call = !header.echo.parallel_tool_calls;
    let mut output = Output::new(&header.id, header.parsing, only_one_call);
    let mut growth = Vec::new();
    let take = |piece: &Piece| {
        growth.clear();
        output.push(piece, &mut growth);
    };
    let completion = gather_one(accepted, take).await?;
    output.finish(completion.stop_reason, &mut growth);
    let ended = Progress::ended(&completion, output.reasoning_tokens);
    let mut body = Vec::new();
    write_json(&mut body, &header.response(&output.items, &ended));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}
