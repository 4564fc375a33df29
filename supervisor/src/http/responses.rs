//! `/v1/responses`: OpenAI's Responses API without stored responses, for Codex; `/v1/responses/input_tokens`.
//!
//! It is `/v1/chat/completions` in another format: [`request`] converts `input` and `tools` to the same messages and
//! tools, and the text of the answer becomes items ([`output`]), whole or streamed. Answers are not stored, so a
//! reference to an earlier one is refused by name. [`rest`] is for clients that lost their connection.
//!
//! ```text
//! request (input → items, tools, settings) → generation … pieces → output → events (streamed) or whole
//!                                                                    └→ answer: items and responses as JSON
//! ```

pub mod answer;
mod events;
mod input;
mod items;
mod output;
pub mod request;
pub(in crate::http) mod rest;
mod settings;
mod tools;
mod whole;

use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect};
use super::generation::{Accepted, Asker};
use super::openai::unix_seconds;
use super::presentation::Form;
use super::{App, sse};
use answer::Header;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use events::Events;
use request::ResponsesRequest;
use serde_json::json;
use std::sync::Arc;

const ID_PREFIX: &str = "resp_";

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    match try_create(&app, correlation, request).await {
        Ok(response) => response,
        Err(error) => error.respond(Dialect::OpenAi),
    }
}

async fn try_create(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let asker = Asker::of(&request, correlation);
    let received = app.receive(request, request::NAMES, request::read).await?;
    let (model, request, room) = received;
    let ResponsesRequest {
        generation,
        is_streamed,
        parsing,
        echo,
    } = request;
    let mut form = Form::Responses {
        created: unix_seconds(),
        is_streamed,
        parsing,
        echo: Box::new(echo),
        from: 0,
    };
    let accepted = app.start(&model, generation, &mut form, asker).await;
    let accepted = accepted.map_err(|error| error.renamed(own_name))?;
    drop(room);
    form.respond(app, accepted, false).await
}

/// Name in this API of a field of chat.
fn own_name(field: &str) -> String {
    match field {
        "messages" => "input".to_owned(),
        field => field.to_owned(),
    }
}

/// Number of prompt tokens of the same request to `/v1/responses`.
pub async fn count_input_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    match try_count(&app, request).await {
        Ok(response) => response,
        Err(error) => error.respond(Dialect::OpenAi),
    }
}

async fn try_count(app: &Arc<App>, request: Request<Body>) -> Result<Response, ApiError> {
    let received = app.receive(request, request::NAMES, request::read).await?;
    let (model, request, _room) = received;
    let input = request.generation.input;
    let tokens = app.tokens_of(&model, input, "input").await;
    let tokens = tokens.map_err(|error| error.renamed(own_name))?;
    let told = json!({"object": "response.input_tokens", "input_tokens": tokens.len()});
    Ok(axum::Json(told).into_response())
}

/// Response: streamed from event `first` on, or whole if `first` is `None`. `begun`: the client already has the head of
/// the response.
///
/// # Errors
/// If the request fails before any of the answer was sent.
pub(super) async fn respond(
    accepted: Accepted,
    header: Header,
    first: Option<u64>,
    begun: bool,
) -> Result<Response, ApiError> {
    // The format of a piece depends on all earlier text.
    accepted.stream.give_known();
    let Some(first) = first else {
        return whole::respond(accepted, &header).await;
    };
    let Accepted { stream, job, .. } = accepted;
    let events = Events::new(header, first);
    match begun {
        true => Ok(sse::go_on(stream, job, events)),
        false => sse::respond_when_known(stream, job, events).await,
    }
}
