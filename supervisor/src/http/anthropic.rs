//! Anthropic's Messages API, for its own clients and Claude Code: `POST /v1/messages`, `POST
//! /v1/messages/count_tokens`.
//!
//! It is a front end to the path of chat: a request becomes the same
//! [`GenerationRequest`](super::generation::GenerationRequest), and the same parsers split the text of the answer. Only
//! the formats differ.
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
pub(super) mod error;
pub mod request;
mod settings;
pub mod stream;
mod tools;
pub(super) mod whole;

use self::stream::MessageEvents;
use super::App;
use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect};
use super::generation::{Accepted, Asker};
use super::presentation::Form;
use super::sse;
use super::timeline::Timeline;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use request::MessagesRequest;
use serde_json::{Value, json};
use std::sync::Arc;
use worker_orcd_requests::{Completion, StopReason};
use worker_orcd_text::tools::Parsing;

pub async fn messages(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    answer(try_messages(&app, correlation, request).await)
}

pub async fn count_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    answer(try_count(&app, request).await)
}

fn answer(outcome: Result<Response, ApiError>) -> Response {
    outcome.unwrap_or_else(|error| error.respond(Dialect::Anthropic))
}

async fn try_messages(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let asker = Asker::of(&request, correlation);
    let received = app.receive(request, request::NAMES, request::read).await?;
    let (model, request, room) = received;
    let MessagesRequest {
        generation,
        is_streamed,
        parsing,
    } = request;
    let mut form = Form::Messages {
        is_streamed,
        parsing,
    };
    let accepted = app.start(&model, generation, &mut form, asker).await?;
    drop(room);
    form.respond(app, accepted, false).await
}

/// Number of prompt tokens of the same request to `/v1/messages`.
async fn try_count(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let names = request::COUNT_NAMES;
    let (model, input, _room) = app.receive(request, names, request::read_counted).await?;
    let tokens = app.tokens_of(&model, input, "messages").await?;
    Ok(axum::Json(json!({"input_tokens": tokens.len()})).into_response())
}

/// Response of an accepted request. `begun`: the client already has the head of the response.
///
/// # Errors
/// If the request fails before any of the answer was sent.
pub(super) async fn respond(
    answer: Accepted,
    model: &str,
    is_streamed: bool,
    parsing: Parsing,
    begun: bool,
) -> Result<Response, ApiError> {
    // The block of a piece depends on all earlier text.
    answer.stream.give_known();
    if !is_streamed {
        return whole::respond(answer, model, parsing).await;
    }
    let Accepted {
        stream,
        job,
        tokens_in,
    } = answer;
    let events = MessageEvents::new(job.id(), model, tokens_in, parsing);
    match begun {
        true => Ok(sse::go_on(stream, job, events)),
        false => sse::respond_when_known(stream, job, events).await,
    }
}

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
