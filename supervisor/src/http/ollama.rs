//! Handlers of Ollama's API, for its clients: `/api/chat`, `/api/generate` and `/api/embed`; [`models`]: its routes about
//! the model. Requests take the path of chat; only the formats differ. Routes that manage models are refused by name.

#![expect(
    clippy::disallowed_methods,
    reason = "an answer is stamped, and embeddings are timed"
)]

pub mod models;

use super::App;
use super::client;
use super::correlation::CorrelationId;
use super::embeddings;
use super::error::Answered;
use super::generation::Asker;
use super::presentation;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use worker_orcd_api::embeddings::read::INPUT;
use worker_orcd_api::ollama::embed as embedding;
use worker_orcd_api::ollama::request::{self, OllamaRequest};
use worker_orcd_api::ollama::{Header, Kind};
use worker_orcd_api::presentation::Form;
use worker_orcd_text::calendar::rfc3339;

/// Last steps of the paths of Ollama that manage models.
const MANAGEMENT: [&str; 6] = ["pull", "push", "create", "copy", "delete", "blobs"];

/// Error message for a route of Ollama that is not served; `None` for other paths.
#[must_use]
pub fn refusal(path: &str) -> Option<String> {
    let step = path.strip_prefix("/api/")?.split('/').next()?;
    let instead = match step {
        "embeddings" => "use /api/embed",
        _ if MANAGEMENT.contains(&step) => {
            "this worker serves the model of its option --model; worker-orcd pull downloads one"
        }
        _ => return None,
    };
    Some(format!("/api/{step} is not supported: {instead}"))
}

pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
    respond(&app, correlation, request, Kind::Chat).await
}

pub async fn generate(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
    respond(&app, correlation, request, Kind::Generate).await
}

async fn respond(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
    kind: Kind,
) -> Answered {
    let asker = Asker::of(&request, correlation);
    let received = app.receive(request, request::NAMES, request::read_of(kind));
    let (model, request, room) = received.await?;
    let OllamaRequest {
        generation,
        is_streamed,
        parsing,
    } = request;
    let mut form = Form::Ollama(Header {
        kind,
        created_at: rfc3339(SystemTime::now()),
        is_streamed,
        parsing,
    });
    let accepted = app.start(&model, generation, &mut form, asker).await?;
    drop(room);
    presentation::respond(form, app, accepted, false).await
}

pub async fn embed(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Answered {
    let (begun, client) = (Instant::now(), client::of_request(request.extensions()));
    let received = app.receive(request, embedding::NAMES, embedding::read);
    let (model, asked, room) = received.await?;
    let computed = embeddings::vectors(&app, correlation, client, &model, asked.inputs, room);
    let (vectors, tokens) = computed.await?;
    let bytes = vectors.iter().map(|it| size_of_val(&**it)).sum();
    let (name, took) = (app.model_id.clone(), begun.elapsed());
    let answer = embedding::answer(vectors, asked.dimensions, name, tokens, took);
    app.answered(INPUT, bytes, answer, ()).await
}
