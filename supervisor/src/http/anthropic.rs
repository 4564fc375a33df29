//! Handlers of Anthropic's Messages API, for its own clients and Claude Code: `POST /v1/messages`, `POST
//! /v1/messages/count_tokens`. Requests take the path of chat; only the formats differ.

use super::App;
use super::error::Answered;
use super::generation::{self, Asked};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use std::sync::Arc;
use worker_orcd_api::anthropic::answer::MessageTokens;
use worker_orcd_api::anthropic::request::{COUNTED, MESSAGES};

pub async fn messages(asked: Asked) -> Answered {
    generation::answer(asked, MESSAGES).await
}

/// Number of prompt tokens of the same request to `/v1/messages`.
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Answered<Json<MessageTokens>> {
    let (model, input, _room) = app.receive(request, COUNTED).await?;
    let tokens = app.tokens_of(&model, input, "messages").await?;
    let input_tokens = tokens.len();
    Ok(Json(MessageTokens { input_tokens }))
}
