//! Handlers of the OpenAI API: `/v1/chat/completions`, `/v1/completions`, and [`models`]. [`several`]: the stream of an
//! answer with several choices.

#![expect(clippy::disallowed_methods, reason = "an answer is stamped")]

pub mod models;
pub(super) mod several;

use super::App;
use super::correlation::CorrelationId;
use super::error::Answered;
use super::generation::Asker;
use super::presentation;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use worker_orcd_api::openai::Kind;
use worker_orcd_api::openai::request::{self, OpenAiRequest};
use worker_orcd_api::presentation::Form;

pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
    respond(&app, correlation, request, Kind::Chat).await
}

pub async fn completion(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
    respond(&app, correlation, request, Kind::Completion).await
}

async fn respond(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
    kind: Kind,
) -> Answered {
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
    presentation::respond_all(form, app, accepted, false).await
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
