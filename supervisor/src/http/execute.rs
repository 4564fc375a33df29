//! Handlers of `/execute`, `/cancel`, `/shutdown` and `/restart`.

use super::correlation::CorrelationId;
use super::error::{Answered, ApiError};
use super::generation::{self, Asked};
use super::{App, client};
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_api::execute::{CANCEL, EXECUTE};
use worker_orcd_api::fields::Fields;
use worker_orcd_api::limits::RequestLimits;
use worker_orcd_api::sampling::ModelTerms;
use worker_orcd_requests::error_code::ErrorCode;

/// `/shutdown` waits for active jobs without a limit; a signal shortens the drain.
const UNHURRIED: Duration = Duration::from_secs(365 * 24 * 3600);

pub async fn execute(asked: Asked) -> Answered {
    generation::answer(asked, EXECUTE).await
}

/// Idempotent: an unknown or finished job is no error, and neither is a job of another key, which continues.
pub async fn cancel((State(app), Extension(correlation), request): Asked) -> Answered {
    // With authentication, a client cannot detect jobs of others.
    let keys = app.keys.are_asked_for();
    let owner = keys.then(|| client::of_request(request.extensions()));
    let terms = (RequestLimits::NONE, ModelTerms::UNKNOWN);
    let read = move |fields: Fields<'_>| (CANCEL.read)(fields, &terms.0, &terms.1);
    let (job_id, _) = app.bodies.read(request, CANCEL.names, read).await?;
    if let Some(job_id) = job_id {
        let live = app.engine.cancel(&job_id, owner);
        tracing::info!(job_id, correlation_id = correlation.0, live, "cancel");
    }
    Ok(Accepted::respond())
}

pub async fn shutdown(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
) -> Response {
    let reason = "POST /shutdown";
    tracing::info!(reason, correlation_id = correlation.0, "shutdown");
    app.engine.drain(UNHURRIED);
    Accepted::respond()
}

/// Replaces the serving child. All streams continue.
pub async fn restart(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
) -> Answered {
    let snapshot = app.engine.snapshot();
    if !snapshot.serving || snapshot.draining {
        let why = format!("no child can be replaced now: {}", snapshot.reason);
        return Err(ApiError::of_code(ErrorCode::WorkerUnhealthy, why).into());
    }
    let reason = "POST /restart";
    tracing::info!(reason, correlation_id = correlation.0, "restart");
    app.engine.replace_child();
    Ok(Accepted::respond())
}

/// Answer of an order that is carried out later: an object without fields.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Accepted {}

impl Accepted {
    pub(super) fn respond() -> Response {
        (StatusCode::ACCEPTED, axum::Json(Self {})).into_response()
    }
}
