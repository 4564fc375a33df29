//! Handlers of `/v1/responses`, OpenAI's Responses API without stored responses, for Codex, and of
//! `/v1/responses/input_tokens`. It is `/v1/chat/completions` in another format. [`rest`] is for clients that lost their
//! connection.

pub(in crate::http) mod rest;

use super::App;
use super::correlation::CorrelationId;
use super::error::Answered;
use super::generation::Asker;
use super::openai::unix_seconds;
use super::presentation;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::response::IntoResponse as _;
use std::sync::Arc;
use worker_orcd_api::presentation::Form;
use worker_orcd_api::responses::answer::ResponseTokens;
use worker_orcd_api::responses::request::{self, ResponsesRequest};

pub async fn create(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
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
    presentation::respond(form, &app, accepted, false).await
}

/// Name in this API of a field of chat.
fn own_name(field: &str) -> String {
    match field {
        "messages" => "input".to_owned(),
        field => field.to_owned(),
    }
}

/// Number of prompt tokens of the same request to `/v1/responses`.
pub async fn count_input_tokens(State(app): State<Arc<App>>, request: Request<Body>) -> Answered {
    let received = app.receive(request, request::NAMES, request::read).await?;
    let (model, request, _room) = received;
    let input = request.generation.input;
    let tokens = app.tokens_of(&model, input, "input").await;
    let tokens = tokens.map_err(|error| error.renamed(own_name))?;
    Ok(axum::Json(ResponseTokens::new(tokens.len())).into_response())
}
