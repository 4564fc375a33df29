//! Handlers of Anthropic's Messages API, for its own clients and Claude Code: `POST /v1/messages`, `POST
//! /v1/messages/count_tokens`. Requests take the path of chat; only the formats differ.

use super::App;
use super::correlation::CorrelationId;
use super::error::Answered;
use super::generation::Asker;
use super::presentation;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::IntoResponse as _;
use std::sync::Arc;
use worker_orcd_api::anthropic::answer::MessageTokens;
use worker_orcd_api::anthropic::request::{self, MessagesRequest};
use worker_orcd_api::presentation::Form;

pub async fn messages(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
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
    presentation::respond(form, &app, accepted, false).await
}

/// Number of prompt tokens of the same request to `/v1/messages`.
pub async fn count_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Answered {
    let names = request::COUNT_NAMES;
    let (model, input, _room) = app.receive(request, names, request::read_counted).await?;
    let tokens = app.tokens_of(&model, input, "messages").await?;
    let input_tokens = tokens.len();
    Ok(axum::Json(MessageTokens { input_tokens }).into_response())
}
