//! Anthropic's Messages API, as its own clients and Claude Code speak it: `POST /v1/messages`,
//! `POST /v1/messages/count_tokens`.
//!
//! A front end onto the path that chat takes: a request becomes the same
//! [`GenerationRequest`](super::generation::GenerationRequest), and the text of the answer is taken apart by the
//! same parsers. Only the words differ.
//!
//! ```text
//! request ─→ conversation (content: blocks) ─┐
//!            thinking, tools ────────────────┴→ generation ─→ timeline ─→ stream (named events)
//!                                                                   └───→ whole  (their sum)
//! ```
//!
//! A field that would change the answer and is not done is refused by name; docs/guide/messages.md has all of them.
//! Deliberately absent: images and documents, tools that Anthropic's servers run, and a budget for thoughts.

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
use crate::engine::{Completion, StopReason};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use request::MessagesRequest;
use serde_json::{Value, json};
use std::sync::Arc;
use worker_orcd_text::tools::Parsing;

pub async fn messages(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    told(try_messages(&app, correlation, request).await)
}

pub async fn count_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    told(try_count(&app, request).await)
}

fn told(outcome: Result<Response, ApiError>) -> Response {
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

/// The length of the prompt that the same request to `/v1/messages` would have.
async fn try_count(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let names = request::COUNT_NAMES;
    let (model, input, _room) = app.receive(request, names, request::read_counted).await?;
    let tokens = app.tokens_of(&model, input, "messages").await?;
    Ok(axum::Json(json!({"input_tokens": tokens.len()})).into_response())
}

/// `begun`: the client has had the beginning of it.
///
/// # Errors
/// When nothing was told yet, and nothing but a failure can be.
pub(super) async fn respond(
    answer: Accepted,
    model: &str,
    is_streamed: bool,
    parsing: Parsing,
    begun: bool,
) -> Result<Response, ApiError> {
    // Which block a piece belongs to depends on all before it.
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

/// What the ids of tool uses begin with.
const ID_PREFIX_OF_CALLS: &str = "toolu_";

/// Why the answer of a timeline ended.
fn stop_reason(reason: StopReason, timeline: &Timeline) -> &'static str {
    match reason {
        StopReason::MaxTokens => "max_tokens",
        StopReason::StopSequence => "stop_sequence",
        StopReason::Eos if timeline.has_whole_calls() => "tool_use",
        StopReason::Eos => "end_turn",
    }
}

/// Tokens as this API counts them: those of the prompt that were computed before are read from a cache, and no input.
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
