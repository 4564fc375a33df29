//! Table of all routes, with their handlers and descriptions: the source of the router, of `/openapi.json` and of 404
//! responses.

use super::error::{ApiError, HandlerError};
use super::openapi::described::Described;
use super::openapi::{of_ollama, operations};
use super::{
    App, anthropic, crashes, devices, embeddings, execute, health, metrics, ollama, openai,
    openapi, page, rerank, responses, resume, texts,
};
use axum::extract::State;
use axum::http::header::VARY;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use utoipa::openapi::path::HttpMethod;

#[derive(Debug)]
pub struct Route {
    pub method: HttpMethod,
    pub path: &'static str,
    pub handler: fn() -> MethodRouter<Arc<App>>,
    pub operation: fn(&App) -> Described,
}

/// Declares the table: a row is a method, a path, its handler, and its description.
macro_rules! routes {
    ($($method:ident $path:literal: $handler:path, $operation:expr;)+) => {
        &[$(Route {
            method: routes!(@$method),
            path: $path,
            handler: || $method($handler),
            operation: $operation,
        },)+]
    };
    (@get) => { HttpMethod::Get };
    (@post) => { HttpMethod::Post };
}

/// Every route, in the order of their listing.
pub const ROUTES: &[Route] = routes! {
    get "/": root, operations::root;
    post "/v1/chat/completions": openai::chat, operations::chat;
    post "/v1/completions": openai::completion, operations::completion;
    post "/v1/responses": responses::create, operations::responses;
    post "/v1/responses/input_tokens": responses::count_input_tokens, operations::count_input_tokens;
    post "/v1/embeddings": embeddings::embeddings, operations::embeddings;
    post "/v1/rerank": rerank::rerank, |app| operations::rerank(app, "rerank");
    get "/v1/models": openai::models::list, operations::models;
    get "/v1/models/{name}": openai::models::one, operations::model;
    get "/v1/chat/completions/{id}": resume::resume, operations::rest_of_chat;
    get "/v1/completions/{id}": resume::resume, operations::rest_of_completion;
    post "/v1/messages": anthropic::messages, operations::messages;
    get "/v1/messages/{id}": resume::resume, operations::rest_of_message;
    post "/v1/messages/count_tokens": anthropic::count_tokens, operations::count_tokens;
    get "/v1/responses/{id}": resume::resume, operations::rest_of_response;
    post "/api/chat": ollama::chat, of_ollama::chat;
    get "/api/chat/{id}": resume::resume, of_ollama::rest_of_chat;
    post "/api/generate": ollama::generate, of_ollama::generate;
    get "/api/generate/{id}": resume::resume, of_ollama::rest_of_generate;
    post "/api/embed": ollama::embed, of_ollama::embed;
    get "/api/tags": ollama::models::tags, of_ollama::tags;
    post "/api/show": ollama::models::show, of_ollama::show;
    get "/api/ps": ollama::models::running, of_ollama::running;
    get "/api/version": ollama::models::version, of_ollama::version;
    post "/tokenize": texts::tokenize, operations::tokenize;
    post "/detokenize": texts::detokenize, operations::detokenize;
    post "/apply-template": texts::apply_template, operations::apply_template;
    post "/rerank": rerank::rerank, |app| operations::rerank(app, "rerank_without_version");
    post "/execute": execute::execute, operations::execute;
    get "/execute/{job_id}": resume::resume, operations::rest_of_job;
    post "/cancel": execute::cancel, operations::cancel;
    post "/shutdown": execute::shutdown, operations::shutdown;
    post "/restart": execute::restart, operations::restart;
    post "/devices/{number}/drain": devices::drain, operations::drain_device;
    post "/devices/{number}/readmit": devices::readmit, operations::readmit_device;
    get "/health": health::health, operations::health;
    get "/livez": health::livez, operations::livez;
    get "/readyz": health::readyz, operations::readyz;
    get "/metrics": metrics, operations::metrics;
    get "/crashes": crashes::list, operations::crashes;
    get "/crashes/{id}": crashes::one, operations::crash;
    get "/openapi.json": openapi::document, operations::document;
};

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
    let sent = Root {
        name: "worker-orcd",
        version: env!("CARGO_PKG_VERSION"),
        model: &app.model_id,
        routes: listed(),
        openai_base_url: "/v1",
        status_page: "this address in a browser",
    };
    ([(VARY, "Accept")], axum::Json(sent)).into_response()
}

pub async fn nothing_there(uri: Uri) -> HandlerError {
    ApiError::not_found(advice(uri.path())).into()
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
    let sent = |route: &Route| format!("{} {}", method(&route.method), route.path);
    ROUTES.iter().map(sent).collect()
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
