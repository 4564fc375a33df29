//! `GET /openapi.json`: machine-readable description of the API.
//!
//! ```text
//! routes (table) ──→ operations ──→ answers (statuses, errors)
//!                        │
//!                        ├──→ description ←── readers of fields, run without a body
//!                        └──→ components ←── types of answers
//! ```
//!
//! It duplicates nothing: the fields of a request, their types and limits come from its reader
//! ([`description`](worker_orcd_api::description)), those of an answer from the type that is serialized
//! ([`answer`](worker_orcd_api::answer)), and the paths come from the router. So the document describes this worker, with its model's vocabulary
//! and its operator's limits. It needs a key like other routes. Objects of answers may gain fields: a client must ignore
//! unknown ones.

mod answers;
pub mod described;
pub mod of_ollama;
pub mod operations;

use super::App;
use super::access::OPEN_PATHS;
use super::error::Dialect;
use super::routes::{ROUTES, Route};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use described::Described;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::openapi::path::{Operation, PathItem, PathsBuilder};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, OpenApiBuilder, Tag};

/// Name of the security scheme.
const KEY: &str = "key";
/// Groups of operations.
const TAGS: [&str; 6] = [
    "openai",
    "anthropic",
    "ollama",
    "worker",
    "operator",
    "probe",
];

const ABOUT: &str = "An LLM inference worker whose clients notice at most a pause when the engine behind it dies.\n\n\
    A field that is not supported is refused by name, and `null` is the same as a field that is absent. \
    Any request may carry `X-Correlation-Id`, which is echoed. \
    What is no HTTP, or has headers without end, is answered 400 or 431 without a body, or not at all.";

pub async fn document(State(app): State<Arc<App>>) -> Response {
    axum::Json(of(&app)).into_response()
}

/// Document of this worker.
#[must_use]
pub fn of(app: &App) -> Value {
    let mut document = json!(paths(app));
    document["components"]["schemas"] = Value::Object(operations::components());
    document
}

fn paths(app: &App) -> OpenApi {
    let paths = ROUTES.iter().fold(PathsBuilder::new(), |paths, route| {
        let item = PathItem::new(route.method.clone(), operation(app, route));
        paths.path(route.path, item)
    });
    let info = Info::builder()
        .title("worker-orcd")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(License::new("Apache-2.0")))
        .build();
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = Components::builder().security_scheme(KEY, scheme);
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .tags(Some(TAGS.map(Tag::new)))
        .build()
}

/// Operation with the common properties of all routes: early refusals, and the key.
fn operation(app: &App, route: &Route) -> Operation {
    let is_open = OPEN_PATHS.contains(&route.path);
    let asks_for_keys = app.keys.are_asked_for();
    let Described { operation, whys } = (route.operation)(app);
    let of_all = answers::of_every_route(route.path, asks_for_keys && !is_open);
    let dialect = Dialect::of_path(route.path);
    let operation = answers::refused(operation, dialect, &[whys, of_all].concat());
    let needs = || SecurityRequirement::new(KEY, <[&str; 0]>::default());
    match (asks_for_keys, route.path) {
        (false, _) => operation.build(),
        // Callers with a key get more fields.
        (true, "/health") => operation
            .securities(Some([SecurityRequirement::default(), needs()]))
            .build(),
        (true, _) if is_open => operation.securities(Some([])).build(),
        (true, _) => operation.security(needs()).build(),
    }
}

#[cfg(test)]
mod tests;
