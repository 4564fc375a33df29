//! `GET /crashes`, `/crashes/{id}`: reports of dead children, newest first.

use super::App;
use super::error::{ApiError, Dialect, Respond as _};
use crate::descriptors::CRASH_READERS;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::Semaphore;
use worker_orcd_engine::crash::Summary;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Crashes {
    crashes: Vec<Summary>,
}

pub async fn list(State(app): State<Arc<App>>) -> Response {
    let crashes = app.engine.crashes().list();
    axum::Json(Crashes { crashes }).into_response()
}

/// Limits parallel readers: each needs a file descriptor.
static READERS: Semaphore = Semaphore::const_new(CRASH_READERS);

pub async fn one(State(app): State<Arc<App>>, id: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(id)) = id else {
        return ApiError::bad_request("the path is not UTF-8").respond(Dialect::Native);
    };
    let _turn = READERS.acquire().await;
    // Disk reads may block.
    let found = tokio::task::spawn_blocking(move || app.engine.crashes().get(&id)).await;
    match found.ok().flatten() {
        Some(report) => axum::Json(report).into_response(),
        None => ApiError::not_found("there is no such crash report").respond(Dialect::Native),
    }
}
