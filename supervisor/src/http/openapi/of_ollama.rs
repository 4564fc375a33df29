//! Operations of Ollama's API.

use super::answers::{Why, content, json};
use super::described::Described;
use super::operations::{can_embed, few_tokens, rest_of_answer};
use crate::http::App;
use crate::http::ollama::models::{Model, Running, Tags, Version};
use serde_json::{Value, json};
use utoipa::openapi::ResponseBuilder;
use worker_orcd_api::answer;
use worker_orcd_api::error::OllamaError;
use worker_orcd_api::ollama::Kind;
use worker_orcd_api::ollama::answer::Line;
use worker_orcd_api::ollama::embed::{EMBED, Embedded, SHOW};
use worker_orcd_api::ollama::request::reader;
use worker_orcd_api::render::LINES;
use worker_orcd_api::schema;

const STREAM: &str = "Streamed unless `stream` is false: a JSON object on each line, of which the last has `done: true`. \
    A stream that fails ends with an error in its place. The shape of a stream is that of each line.";

pub fn chat(app: &App) -> Described {
    let asked = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    generation(app, Kind::Chat, "ollama_chat", "messages", &asked)
}

pub fn generate(app: &App) -> Described {
    let asked = json!("Why is the sky blue?");
    generation(app, Kind::Generate, "ollama_generate", "prompt", &asked)
}

fn generation(app: &App, kind: Kind, id: &str, field: &str, asked: &Value) -> Described {
    let options = json!({"num_predict": few_tokens(app), "temperature": 0.5, "stop": ["."]});
    let whole = json!({"model": app.model_id, field: asked, "options": options, "stream": false});
    let streamed = json!({field: asked, "options": options, "keep_alive": "5m"});
    let examples = [("whole", whole), ("streamed", streamed)];
    Described::new(id, "ollama", "Answer a conversation or a prompt")
        .about(STREAM)
        .takes(app, &reader(kind), &examples)
        .computed()
        .responds("200", lines())
}

pub fn rest_of_chat(_: &App) -> Described {
    rest_of_answer("rest_of_ollama_chat", "ollama", lines())
}

pub fn rest_of_generate(_: &App) -> Described {
    rest_of_answer("rest_of_ollama_generate", "ollama", lines())
}

pub fn embed(app: &App) -> Described {
    let example = can_embed(app).then(|| ("texts", json!({"input": ["A river"]})));
    Described::new("ollama_embed", "ollama", "The vectors of texts")
        .takes(app, &EMBED, example.as_slice())
        .computed()
        .answers::<Embedded>("The vectors")
}

pub fn show(app: &App) -> Described {
    let example = ("model", json!({"model": app.model_id}));
    Described::new("ollama_show", "ollama", "The model")
        .takes(app, &SHOW, &[example])
        .computed()
        .answers::<Model>("The model")
}

pub fn tags(_: &App) -> Described {
    Described::new(
        "ollama_tags",
        "ollama",
        "The model, under each of its names",
    )
    .answers::<Tags>("A list")
    .refused(&[&[Why::Unhealthy]])
}

pub fn running(_: &App) -> Described {
    Described::new(
        "ollama_running",
        "ollama",
        "The model, with the memory that it takes",
    )
    .answers::<Running>("A list, empty while no child serves")
}

pub fn version(_: &App) -> Described {
    Described::new("ollama_version", "ollama", "The version of the API")
        .answers::<Version>("The version")
}

/// Answer, whole or in lines.
fn lines() -> ResponseBuilder {
    let lines = [answer::of::<Line<'_>>(), answer::of::<OllamaError>()];
    let whole = json::<Line<'_>>("The answer, whole or streamed");
    whole.content(LINES, content(schema::any_of(lines)))
}
