//! `GET /crashes`, `/crashes/{id}`: reports of dead children, newest first.

use super::App;
use super::error::{ApiError, Dialect};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

pub async fn list(State(app): State<Arc<App>>) -> Response {
    axum::Json(json!({"crashes": app.engine.crashes().list()})).into_response()
}

pub async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    // A disk may take its time.
    let found = tokio::task::spawn_blocking(move || app.engine.crashes().get(&id)).await;
    match found.ok().flatten() {
        Some(report) => axum::Json(report).into_response(),
        None => ApiError::not_found("there is no such crash report").respond(Dialect::Native),
    }
}
