//! Handlers of `/v1/responses`, OpenAI's Responses API without stored responses, for Codex, and of
//! `/v1/responses/input_tokens`. It is `/v1/chat/completions` in another format. [`rest`] is for clients that lost their
//! connection.

pub(in crate::http) mod rest;

use super::App;
use super::error::Answered;
use super::generation::{self, Asked};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use std::sync::Arc;
use worker_orcd_api::responses::answer::ResponseTokens;
use worker_orcd_api::responses::request::RESPONSE;

pub async fn create(asked: Asked) -> Answered {
    generation::answer(asked, RESPONSE).await
}

/// Number of prompt tokens of the same request to `/v1/responses`.
pub async fn count_input_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Answered<Json<ResponseTokens>> {
    let (model, request, _room) = app.receive(request, RESPONSE).await?;
    let tokens = app
        .tokens_of(&model, request.generation.input, "input")
        .await?;
    Ok(Json(ResponseTokens::new(tokens.len())))
}
