//! `GET /crashes`, `/crashes/{id}`: reports of dead children, newest first.

use super::App;
use super::error::{Answered, ApiError};
use crate::descriptors::CRASH_READERS;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::Semaphore;
use worker_orcd_engine::crash::Summary;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Crashes {
    crashes: Vec<Summary>,
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Crashes> {
    let crashes = app.engine.crashes().list();
    Json(Crashes { crashes })
}

/// Limits parallel readers: each needs a file descriptor.
static READERS: Semaphore = Semaphore::const_new(CRASH_READERS);

pub async fn one(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Answered<Json<Value>> {
    let Path(id) = id.map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
    let _turn = READERS.acquire().await;
    // Disk reads may block.
    let found = tokio::task::spawn_blocking(move || app.engine.crashes().get(&id)).await;
    let missing = || ApiError::not_found("there is no such crash report");
    Ok(Json(found.ok().flatten().ok_or_else(missing)?))
}
