//! Handlers of Ollama's API, for its clients: `/api/chat`, `/api/generate` and `/api/embed`; [`models`]: its routes about
//! the model. Requests take the path of chat; only the formats differ. Routes that manage models are refused by name.

#![expect(clippy::disallowed_methods, reason = "embeddings are timed")]

pub mod models;

use super::client;
use super::embeddings;
use super::error::Answered;
use super::generation::{self, Asked};
use axum::extract::{Extension, State};
use std::time::Instant;
use worker_orcd_api::embeddings::read::INPUT;
use worker_orcd_api::ollama::Kind;
use worker_orcd_api::ollama::embed as embedding;
use worker_orcd_api::ollama::request::reader;

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

pub async fn chat(asked: Asked) -> Answered {
    generation::answer(asked, reader(Kind::Chat)).await
}

pub async fn generate(asked: Asked) -> Answered {
    generation::answer(asked, reader(Kind::Generate)).await
}

pub async fn embed((State(app), Extension(correlation), request): Asked) -> Answered {
    let (begun, client) = (Instant::now(), client::of_request(request.extensions()));
    let (model, asked, room) = app.receive(request, embedding::EMBED).await?;
    let computed = embeddings::vectors(&app, correlation, client, &model, asked.inputs, room);
    let (vectors, tokens) = computed.await?;
    let bytes = vectors.iter().map(|it| size_of_val(&**it)).sum();
    let (name, took) = (app.model_id.clone(), begun.elapsed());
    let answer = embedding::answer(vectors, asked.dimensions, name, tokens, took);
    app.answered(INPUT, bytes, answer, ()).await
}
