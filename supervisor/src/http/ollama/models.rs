//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`: the loaded model in Ollama's terms.

use crate::http::App;
use crate::http::embeddings::pooling;
use crate::http::error::Answered;
use crate::http::openai::models::LATEST;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::iter::once;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use worker_orcd_api::ollama::embed::SHOW;
use worker_orcd_engine::{DeviceSnapshot, LoadedModel};
use worker_orcd_ipc::MemoryReport;
use worker_orcd_text::calendar::rfc3339;
use worker_orcd_text::hex::hex;

/// Version of Ollama whose API these routes follow. Clients compare it with the one that they need.
const API_VERSION: &str = "0.24.0";

/// Time from the start of the worker to `expires_at`: the model stays loaded. `ollama ps` calls more than 20 years
/// "Forever".
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaVersion")]
pub(in crate::http) struct Version {
    version: &'static str,
}

/// The model, under each of its names.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModels")]
pub(in crate::http) struct Tags {
    models: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaModel")]
pub(in crate::http) struct Model {
    name: String,
    model: String,
    modified_at: String,
    /// Bytes of the file.
    size: u64,
    digest: String,
    details: Details,
    /// Values under the keys of GGUF.
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaDetails")]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: [String; 1],
    parameter_size: String,
    quantization_level: String,
}

/// Models in memory: one, or none while no child serves.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaRunning")]
pub(in crate::http) struct Running {
    #[schemars(length(max = 1))]
    models: Vec<RunningModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaRunningModel")]
struct RunningModel {
    name: String,
    model: String,
    /// Bytes in memory, on all devices: weights, KV cache and working memory.
    size: u64,
    digest: String,
    details: Details,
    expires_at: String,
    /// The part of `size` that is on cards.
    size_vram: u64,
    context_length: u32,
}

pub(in crate::http) async fn version() -> Json<Version> {
    let version = API_VERSION;
    Json(Version { version })
}

pub(in crate::http) async fn tags(State(app): State<Arc<App>>) -> Answered<Json<Tags>> {
    let model = app.model()?;
    let names = once(&app.model_id).chain(&app.model_aliases);
    let models = names.map(|name| describe(&app, &model, name)).collect();
    Ok(Json(Tags { models }))
}

pub(in crate::http) async fn show(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Answered<Json<Model>> {
    let (model, ..) = app.receive(request, SHOW).await?;
    Ok(Json(describe(&app, &model, &app.model_id)))
}

pub(in crate::http) async fn running(State(app): State<Arc<App>>) -> Json<Running> {
    let model = app.engine.model();
    let snapshot = app.engine.snapshot();
    let serving = || snapshot.devices.iter().filter(|device| device.serving);
    let is_loaded = serving().next().is_some();
    let describe = |model: Arc<LoadedModel>| {
        let bytes = |device: &DeviceSnapshot| {
            let memory = device.memory.as_ref().map(|(memory, _)| memory);
            memory.map_or(model.facts.file_bytes, MemoryReport::bytes_in_use)
        };
        let (mut size, mut size_vram) = (0_u64, 0_u64);
        for device in serving() {
            size = size.saturating_add(bytes(device));
            if device.id.starts_with("cuda") {
                size_vram = size_vram.saturating_add(bytes(device));
            }
        }
        let described = describe(&app, &model, &app.model_id);
        RunningModel {
            name: described.name,
            model: described.model,
            size,
            digest: described.digest,
            details: described.details,
            expires_at: rfc3339(UNIX_EPOCH + Duration::from_secs(app.created) + FOREVER),
            size_vram,
            context_length: model.max_sequence_tokens,
        }
    };
    let models = model.filter(|_| is_loaded).map(describe);
    Json(Running {
        models: models.into_iter().collect(),
    })
}

fn describe(app: &App, model: &LoadedModel, name: &str) -> Model {
    let (facts, terms) = (&model.facts, &model.chat_terms);
    let name = match name.contains(':') {
        true => name.to_owned(),
        false => format!("{name}{LATEST}"),
    };
    let architecture = facts.architecture.clone();
    let mut model_info = Map::new();
    model_info.insert("general.architecture".to_owned(), json!(architecture));
    model_info.insert(
        "general.parameter_count".to_owned(),
        json!(facts.parameters),
    );
    for (key, value) in [
        ("block_count", facts.n_layers),
        ("embedding_length", facts.n_embd),
        ("attention.head_count", facts.n_heads),
        ("attention.head_count_kv", facts.n_kv_heads),
        // That of a request, which is not longer than that of the training.
        ("context_length", model.max_sequence_tokens),
    ] {
        model_info.insert(format!("{architecture}.{key}"), json!(value));
    }
    let capabilities = [
        ("completion", true),
        (
            "embedding",
            pooling(app.pooling, facts.pooling_type).is_ok(),
        ),
        ("tools", terms.shows_tools && terms.parsing.calls.is_some()),
        ("thinking", terms.parsing.thinking.is_some()),
    ];
    let capabilities = capabilities.into_iter().filter(|(_, is_one)| *is_one);
    Model {
        model: name.clone(),
        name,
        // Start of the worker: it serves one model from then on.
        modified_at: rfc3339(UNIX_EPOCH + Duration::from_secs(app.created)),
        size: facts.file_bytes,
        digest: hex(&model.digest()),
        details: Details {
            parent_model: "",
            format: "gguf",
            families: [architecture.clone()],
            family: architecture,
            parameter_size: format!("{:.1}M", facts.parameters as f64 / 1e6),
            quantization_level: facts.quant_kind.clone(),
        },
        model_info,
        capabilities: capabilities.map(|(name, _)| name).collect(),
    }
}
