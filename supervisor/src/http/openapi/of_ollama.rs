//! Operations of Ollama's API.

use super::answers::{ENDS, OF_BODIES, OF_GENERATION, Why, content, json, refused};
use super::operations::{operation, rest};
use super::requests::{body, described, few_tokens};
use crate::http::App;
use crate::http::embeddings::pooling;
use crate::http::error::Dialect::Ollama;
use crate::http::ollama::models::{Model, Tags, Version};
use serde_json::{Value, json};
use utoipa::openapi::ResponseBuilder;
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::request_body::RequestBody;
use worker_orcd_api::answer;
use worker_orcd_api::error::OllamaError;
use worker_orcd_api::ollama::answer::Line;
use worker_orcd_api::ollama::{Kind, embed as embedding, request};
use worker_orcd_api::render::LINES;
use worker_orcd_api::schema;

const STREAM: &str = "Streamed unless `stream` is false: a JSON object on each line, of which the last has `done: true`. \
    A stream that fails ends with an error in its place. The shape of a stream is that of each line.";

pub fn chat(app: &App) -> OperationBuilder {
    let asked = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    generation(app, Kind::Chat, "ollama_chat", "messages", &asked)
}

pub fn generate(app: &App) -> OperationBuilder {
    let asked = json!("Why is the sky blue?");
    generation(app, Kind::Generate, "ollama_generate", "prompt", &asked)
}

fn generation(app: &App, kind: Kind, id: &str, field: &str, asked: &Value) -> OperationBuilder {
    let shape = described(app, request::NAMES, request::read_of(kind));
    let options = json!({"num_predict": few_tokens(app), "temperature": 0.5, "stop": ["."]});
    let whole = json!({"model": app.model_id, field: asked, "options": options, "stream": false});
    let streamed = json!({field: asked, "options": options, "keep_alive": "5m"});
    let request = body(shape, &[("whole", whole), ("streamed", streamed)]);
    of_body(id, "Answer a conversation or a prompt", request, lines()).description(Some(STREAM))
}

pub fn rest_of_chat(_: &App) -> OperationBuilder {
    rest_of("rest_of_ollama_chat")
}

pub fn rest_of_generate(_: &App) -> OperationBuilder {
    rest_of("rest_of_ollama_generate")
}

fn rest_of(id: &str) -> OperationBuilder {
    let operation = rest(id, "ollama", "id").response("200", lines());
    let operation = refused(operation, Ollama, ENDS);
    refused(operation, Ollama, &[Why::NotFound])
}

pub fn embed(app: &App) -> OperationBuilder {
    let shape = described(app, embedding::NAMES, embedding::read);
    let of_file = app.engine.model().and_then(|it| it.facts.pooling_type);
    let example = pooling(app.pooling, of_file).map(|_| ("texts", json!({"input": ["A river"]})));
    let request = body(shape, example.ok().as_slice());
    let vectors = json::<embedding::Embedded>("The vectors");
    of_body("ollama_embed", "The vectors of texts", request, vectors)
}

pub fn show(app: &App) -> OperationBuilder {
    let shape = described(app, embedding::SHOW_NAMES, embedding::read_show);
    let request = body(shape, &[("model", json!({"model": app.model_id}))]);
    of_body(
        "ollama_show",
        "The model",
        request,
        json::<Model>("The model"),
    )
}

pub fn tags(_: &App) -> OperationBuilder {
    let operation = operation(
        "ollama_tags",
        "ollama",
        "The model, under each of its names",
    )
    .response("200", json::<Tags>("A list"));
    refused(operation, Ollama, &[Why::Unhealthy])
}

pub fn version(_: &App) -> OperationBuilder {
    operation("ollama_version", "ollama", "The version of the API")
        .response("200", json::<Version>("The version"))
}

/// Operation with a body.
fn of_body(id: &str, summary: &str, body: RequestBody, ok: ResponseBuilder) -> OperationBuilder {
    let operation = operation(id, "ollama", summary)
        .request_body(Some(body))
        .response("200", ok);
    let operation = refused(operation, Ollama, OF_BODIES);
    let operation = refused(operation, Ollama, OF_GENERATION);
    let operation = refused(operation, Ollama, ENDS);
    // If the request names another model, or the model gives no embeddings.
    refused(operation, Ollama, &[Why::NotFound])
}

/// Answer, whole or in lines.
fn lines() -> ResponseBuilder {
    let lines = [answer::of::<Line<'_>>(), answer::of::<OllamaError>()];
    let whole = json::<Line<'_>>("The answer, whole or streamed");
    whole.content(LINES, content(schema::any_of(lines)))
}
