//! Table of all routes, with their handlers and descriptions: the source of the router, of `/openapi.json` and of 404
//! responses.

use super::error::{ApiError, Dialect, Respond as _};
use super::openapi::{of_ollama, operations};
use super::{
    App, anthropic, crashes, devices, embeddings, execute, health, metrics, ollama, openai,
    openapi, page, rerank, responses, resume, texts,
};
use axum::body::Body;
use axum::extract::State;
use axum::http::header::VARY;
use axum::http::{HeaderMap, Request, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use utoipa::openapi::path::{HttpMethod, OperationBuilder};

#[derive(Debug)]
pub struct Route {
    pub method: HttpMethod,
    pub path: &'static str,
    pub handler: fn() -> MethodRouter<Arc<App>>,
    pub operation: fn(&App) -> OperationBuilder,
}

type Handler = fn() -> MethodRouter<Arc<App>>;
type Describe = fn(&App) -> OperationBuilder;

const fn a_get(path: &'static str, handler: Handler, operation: Describe) -> Route {
    Route {
        method: HttpMethod::Get,
        path,
        handler,
        operation,
    }
}

const fn a_post(path: &'static str, handler: Handler, operation: Describe) -> Route {
    Route {
        method: HttpMethod::Post,
        ..a_get(path, handler, operation)
    }
}

/// Every route, in the order of their listing.
pub const ROUTES: [Route; 41] = [
    a_get("/", || get(root), operations::root),
    a_post(
        "/v1/chat/completions",
        || post(openai::chat),
        operations::chat,
    ),
    a_post(
        "/v1/completions",
        || post(openai::completion),
        operations::completion,
    ),
    a_post(
        "/v1/responses",
        || post(responses::create),
        operations::responses,
    ),
    a_post(
        "/v1/responses/input_tokens",
        || post(responses::count_input_tokens),
        operations::count_input_tokens,
    ),
    a_post(
        "/v1/embeddings",
        || post(embeddings::embeddings),
        operations::embeddings,
    ),
    a_post(
        "/v1/rerank",
        || post(rerank::rerank),
        |app| operations::rerank(app, "rerank"),
    ),
    a_get(
        "/v1/models",
        || get(openai::models::list),
        operations::models,
    ),
    a_get(
        "/v1/models/{name}",
        || get(openai::models::one),
        operations::model,
    ),
    a_get(
        "/v1/chat/completions/{id}",
        || get(resume::resume),
        operations::rest_of_chat,
    ),
    a_get(
        "/v1/completions/{id}",
        || get(resume::resume),
        operations::rest_of_completion,
    ),
    a_post(
        "/v1/messages",
        || post(anthropic::messages),
        operations::messages,
    ),
    a_get(
        "/v1/messages/{id}",
        || get(resume::resume),
        operations::rest_of_message,
    ),
    a_post(
        "/v1/messages/count_tokens",
        || post(anthropic::count_tokens),
        operations::count_tokens,
    ),
    a_get(
        "/v1/responses/{id}",
        || get(resume::resume),
        operations::rest_of_response,
    ),
    a_post("/api/chat", || post(ollama::chat), of_ollama::chat),
    a_get(
        "/api/chat/{id}",
        || get(resume::resume),
        of_ollama::rest_of_chat,
    ),
    a_post(
        "/api/generate",
        || post(ollama::generate),
        of_ollama::generate,
    ),
    a_get(
        "/api/generate/{id}",
        || get(resume::resume),
        of_ollama::rest_of_generate,
    ),
    a_post("/api/embed", || post(ollama::embed), of_ollama::embed),
    a_get("/api/tags", || get(ollama::models::tags), of_ollama::tags),
    a_post("/api/show", || post(ollama::models::show), of_ollama::show),
    a_get(
        "/api/version",
        || get(ollama::models::version),
        of_ollama::version,
    ),
    a_post("/tokenize", || post(texts::tokenize), operations::tokenize),
    a_post(
        "/detokenize",
        || post(texts::detokenize),
        operations::detokenize,
    ),
    a_post(
        "/apply-template",
        || post(texts::apply_template),
        operations::apply_template,
    ),
    a_post(
        "/rerank",
        || post(rerank::rerank),
        |app| operations::rerank(app, "rerank_without_version"),
    ),
    a_post("/execute", || post(execute::execute), operations::execute),
    a_get(
        "/execute/{job_id}",
        || get(resume::resume),
        operations::rest_of_job,
    ),
    a_post("/cancel", || post(execute::cancel), operations::cancel),
    a_post(
        "/shutdown",
        || post(execute::shutdown),
        operations::shutdown,
    ),
    a_post("/restart", || post(execute::restart), operations::restart),
    a_post(
        "/devices/{number}/drain",
        || post(devices::drain),
        operations::drain_device,
    ),
    a_post(
        "/devices/{number}/readmit",
        || post(devices::readmit),
        operations::readmit_device,
    ),
    a_get("/health", || get(health::health), operations::health),
    a_get("/livez", || get(health::livez), operations::livez),
    a_get("/readyz", || get(health::readyz), operations::readyz),
    a_get("/metrics", || get(metrics), operations::metrics),
    a_get("/crashes", || get(crashes::list), operations::crashes),
    a_get("/crashes/{id}", || get(crashes::one), operations::crash),
    a_get(
        "/openapi.json",
        || get(openapi::document),
        operations::document,
    ),
];

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Root<'a> {
    name: &'static str,
    version: &'static str,
    model: &'a str,
    routes: Vec<String>,
    openai_base_url: &'static str,
    status_page: &'static str,
}

/// `GET /`: a short description as JSON, or the status page if HTML is accepted.
pub async fn root(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if page::is_wanted(&headers) {
        return page::page();
    }
    let told = Root {
        name: "worker-orcd",
        version: env!("CARGO_PKG_VERSION"),
        model: &app.model_id,
        routes: listed(),
        openai_base_url: "/v1",
        status_page: "this address in a browser",
    };
    ([(VARY, "Accept")], axum::Json(told)).into_response()
}

pub async fn nothing_there(request: Request<Body>) -> Response {
    let path = request.uri().path();
    ApiError::not_found(advice(path)).respond(Dialect::of_path(path))
}

/// The same URI without redundant slashes, or `None` if there are none.
#[must_use]
pub fn plain(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    if path == "/" || !(path.ends_with('/') || path.contains("//")) {
        return None;
    }
    let steps: Vec<_> = path.split('/').filter(|step| !step.is_empty()).collect();
    let plain = format!("/{}", steps.join("/"));
    let query = uri.query().map(|query| format!("?{query}"));
    format!("{plain}{}", query.unwrap_or_default()).parse().ok()
}

fn advice(path: &str) -> String {
    if let Some(refusal) = ollama::refusal(path) {
        return refusal;
    }
    let versioned = format!("/v1{path}");
    let is_listed = |path: &str| ROUTES.iter().any(|route| route.path == path);
    if is_listed(&versioned) {
        return format!(
            "there is nothing at this path; did you mean {versioned}? The OpenAI API's base URL ends in /v1"
        );
    }
    format!(
        "there is nothing at this path; there are: {}",
        listed().join(", ")
    )
}

fn listed() -> Vec<String> {
    let told = |route: &Route| format!("{} {}", method(&route.method), route.path);
    ROUTES.iter().map(told).collect()
}

fn method(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Post => "POST",
        _ => "GET",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_that_mean_nothing_are_left_out() {
        let of = |uri: &str| plain(&uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(of("/v1/models/").as_deref(), Some("/v1/models"));
        assert_eq!(
            of("/v1//models?a=/b//"),
            Some("/v1/models?a=/b//".to_owned())
        );
        assert_eq!(of("//").as_deref(), Some("/"));
        for already in ["/", "/v1/models", "/health?x=//"] {
            assert_eq!(of(already), None, "{already}");
        }
    }

    #[test]
    fn a_forgotten_version_is_told_and_everything_else_gets_the_list() {
        assert!(advice("/chat/completions").contains("did you mean /v1/chat/completions?"));
        let refused = "/api/blobs is not supported: ";
        assert!(advice("/api/blobs/sha256:1").starts_with(refused));
        let list = advice("/v1/embeddings");
        assert!(
            ROUTES.iter().all(|route| list.contains(route.path)),
            "{list}"
        );
    }
}
