//! `GET /`, and answers to requests for paths that do not exist: the paths that do.

use super::App;
use super::error::{ApiError, Dialect};
use super::page;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::VARY;
use axum::http::{HeaderMap, Request, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

/// Every route, as people are told.
pub const ROUTES: [(&str, &str); 18] = [
    ("GET", "/"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/chat/completions/{id}"),
    ("GET", "/v1/completions/{id}"),
    ("POST", "/execute"),
    ("GET", "/execute/{job_id}"),
    ("POST", "/cancel"),
    ("POST", "/shutdown"),
    ("POST", "/restart"),
    ("GET", "/health"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/crashes"),
    ("GET", "/crashes/{id}"),
];

/// `GET /`: what this is, to programs; the status page to who wants HTML.
pub async fn root(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if page::is_wanted(&headers) {
        return page::page();
    }
    let told = json!({
        "name": "worker-orcd",
        "version": env!("CARGO_PKG_VERSION"),
        "model": app.model_id,
        "routes": listed(),
        "openai_base_url": "/v1",
        "status_page": "this address in a browser",
    });
    ([(VARY, "Accept")], axum::Json(told)).into_response()
}

pub async fn nothing_there(request: Request<Body>) -> Response {
    let path = request.uri().path();
    ApiError::not_found(advice(path)).respond(Dialect::of_path(path))
}

/// The same place without slashes that mean nothing, where there are any.
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
    let versioned = format!("/v1{path}");
    let is_listed = |path: &str| ROUTES.iter().any(|(_, known)| *known == path);
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
    let routes = ROUTES.iter();
    routes
        .map(|(method, path)| format!("{method} {path}"))
        .collect()
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
        let list = advice("/v1/responses");
        assert!(ROUTES.iter().all(|(_, path)| list.contains(path)), "{list}");
    }
}
