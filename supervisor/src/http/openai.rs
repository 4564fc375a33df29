//! The OpenAI API: `/v1/chat/completions`, `/v1/completions`, `/v1/models`.
//!
//! Both kinds of completion are one [`GenerationRequest`](super::generation::GenerationRequest) with different fields
//! and response formats. An unsupported field is refused by name. One that requests the default behaviour (`logit_bias:
//! {}`, `tools: []`) is accepted, and so are labels, which change no answer.
//!
//! * [`request`]: reader of requests. [`stream`], [`several`], [`whole`]: writers of answers. [`parts`]: splits text
//!   into tool calls and reasoning. `logprobs`: reads and writes log probabilities. [`models`]: the list of the one
//!   model.

#![expect(clippy::disallowed_methods, reason = "an answer is stamped")]

mod harmless;
pub mod logprobs;
pub mod models;
mod parts;
pub mod request;
pub(super) mod several;
pub mod stream;
mod template_settings;
pub(in crate::http) mod tool_choice;
pub(super) mod tools;
pub(super) mod whole;

use super::App;
use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect};
use super::generation::Asker;
use super::presentation::Form;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::Response;
use request::OpenAiRequest;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use worker_orcd_requests::StopReason;
use worker_orcd_text::tools::Parsing;

/// Endpoint of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Chat,
    Completion,
}

impl Kind {
    fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Completion => "cmpl-",
        }
    }

    fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Completion => "text_completion",
        }
    }

    fn chunk_object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            // The older endpoint uses the same object name for its chunks.
            Self::Completion => "text_completion",
        }
    }
}

/// Common first fields of all events of an answer.
#[derive(Debug, Clone)]
pub struct Header {
    pub kind: Kind,
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// The model's fingerprint, for `system_fingerprint`.
    pub fingerprint: String,
    /// Parsers of the answer's text.
    pub parsing: Parsing,
    /// The grammar allows tool calls alone.
    pub must_call: bool,
}

pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    respond(&app, correlation, request, Kind::Chat).await
}

pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    respond(&app, correlation, request, Kind::Completion).await
}

async fn respond(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
    kind: Kind,
) -> Response {
    match try_respond(app, correlation, request, kind).await {
        Ok(response) => response,
        Err(error) => error.respond(Dialect::OpenAi),
    }
}

async fn try_respond(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
    kind: Kind,
) -> Result<Response, ApiError> {
    let asker = Asker::of(&request, correlation);
    let read = request::read_of(kind);
    let (model, request, room) = app.receive(request, request::names(kind), read).await?;
    let OpenAiRequest {
        generation,
        stream,
        parsing,
        more,
    } = request;
    let asked = generation.structure.as_ref();
    let must_call = asked.is_some_and(|it| it.structure.must_call());
    let mut form = Form::OpenAi {
        kind,
        created: unix_seconds(),
        fingerprint: model.fingerprint(),
        stream,
        parsing,
        must_call,
        layout: more.layout(),
    };
    let started = app.start_all(&model, generation, more, &mut form, asker);
    let accepted = started.await?;
    drop(room);
    form.respond_all(app, accepted, false).await
}

fn finish_reason(reason: StopReason) -> &'static str {
    match reason {
        StopReason::MaxTokens => "length",
        StopReason::Eos | StopReason::StopSequence => "stop",
    }
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
