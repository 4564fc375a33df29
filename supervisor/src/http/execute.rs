//! `POST /execute`, `POST /cancel`, `POST /shutdown`, `POST /restart`: this worker's own API.

pub mod events;

use super::begun;
use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect};
use super::fields::{Fields, Names, among};
use super::generation::{Asker, GenerationRequest, Input};
use super::messages::read_messages;
use super::presentation::Form;
use super::reading::{self, ModelTerms, read_logit_bias, read_sampling, read_stop};
use super::{App, client};
use crate::config::RequestLimits;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_requests::OnFault;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_text::tools::ChatTerms;

const MAX_JOB_ID_CHARS: usize = 128;

/// Default of this API in all versions.
const DEFAULT_MAX_TOKENS: u32 = 2048;
const DEFAULT_PROMPT_CHARS: usize = 32_768;

pub const OWN_NAMES: &[&str] = &[
    "job_id",
    "prompt",
    "messages",
    "max_tokens",
    "ignore_eos",
    "on_fault",
    "metrics",
];

/// Every field of `/execute`.
pub const NAMES: Names = |name| among(name, &[OWN_NAMES, reading::NAMES]);

/// Every field of `/cancel`.
pub const CANCEL_NAMES: Names = |name| among(name, &[&["job_id"]]);

/// `/shutdown` waits for active jobs without a limit; a signal shortens the drain.
const UNHURRIED: Duration = Duration::from_secs(365 * 24 * 3600);

pub async fn execute(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    match try_execute(&app, correlation, request).await {
        Ok(response) => response,
        Err(error) => error.respond(Dialect::Native),
    }
}

async fn try_execute(
    app: &Arc<App>,
    correlation: CorrelationId,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let asker = Asker::of(&request, correlation);
    let model = app.model();
    let terms = ModelTerms::of(model.as_deref().ok());
    let limits = app.limits.clone();
    let read = move |fields: Fields<'_>| read_request(fields, &limits, &terms);
    let ((request, wants_metrics), room) = app.bodies.read(request, NAMES, read).await?;
    let model = model?;
    let mut form = Form::Execute {
        seed: request.sampling.seed,
        metrics: wants_metrics,
    };
    let accepted = app.start(&model, request, &mut form, asker).await?;
    drop(room);
    form.respond(app, accepted, false).await
}

/// The request, and whether it requests metrics.
///
/// # Errors
/// All mistakes in the request.
pub fn read_request(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<(GenerationRequest, bool), ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(DEFAULT_PROMPT_CHARS);
    let most_tokens = limits.max_tokens_out.unwrap_or(DEFAULT_MAX_TOKENS);
    let job_id = fields.text("job_id", &(1..=MAX_JOB_ID_CHARS));
    let job_id = fields.required("job_id", job_id);
    let input = read_input(&mut fields, max_chars, &model.chat);
    let max_tokens = fields.integer("max_tokens", 1..=u64::from(most_tokens));
    let sampling = read_sampling(&mut fields, model);
    let logit_bias = read_logit_bias(&mut fields, model);
    let stop = read_stop(&mut fields);
    let ignore_eos = fields.boolean("ignore_eos").unwrap_or(false);
    let on_fault = fields.word(
        "on_fault",
        &[("resume", OnFault::Resume), ("fail", OnFault::Fail)],
    );
    let wants_metrics = fields.boolean("metrics").unwrap_or(false);
    fields.finish().map_err(ApiError::invalid)?;
    let (Some(job_id), Some(input)) = (job_id, input) else {
        return Err(ApiError::unreadable());
    };
    let request = GenerationRequest {
        logprobs: None,
        echo: false,
        logit_bias,
        thinking: None,
        structure: None,
        job_id,
        input,
        sampling,
        max_tokens: max_tokens.map_or(most_tokens, |tokens| tokens as u32),
        stop,
        ignore_eos,
        on_fault,
    };
    Ok((request, wants_metrics))
}

fn read_input(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Option<Input> {
    let prompt = fields.text("prompt", &(1..=max_chars)).map(Input::Prompt);
    let history = read_messages(fields, max_chars, terms);
    let messages = history.map(|it| begun::input(fields, it, None, Vec::new(), false));
    fields.either("prompt", "messages", prompt.or(messages))
}

/// Idempotent: an unknown or finished job is no error, and neither is a job of another key, which continues.
pub async fn cancel(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
) -> Response {
    // With authentication, a client cannot detect jobs of others.
    let keys = app.keys.are_asked_for();
    let owner = keys.then(|| client::of_request(request.extensions()));
    let read = async {
        app.bodies
            .read(request, CANCEL_NAMES, read_cancellation)
            .await
    };
    match read.await {
        Ok((job_id, _)) => {
            if let Some(job_id) = job_id {
                let live = app.engine.cancel(&job_id, owner);
                tracing::info!(job_id, correlation_id = correlation.0, live, "cancel");
            }
            accepted()
        }
        Err(error) => ApiError::respond(&error, Dialect::Native),
    }
}

/// Reads the job id.
///
/// # Errors
/// All mistakes in the request.
pub fn read_cancellation(mut fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    let job_id = fields.text("job_id", &(1..=MAX_JOB_ID_CHARS));
    let job_id = fields.required("job_id", job_id);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(job_id)
}

pub async fn shutdown(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
) -> Response {
    let reason = "POST /shutdown";
    tracing::info!(reason, correlation_id = correlation.0, "shutdown");
    app.engine.drain(UNHURRIED);
    accepted()
}

/// Replaces the serving child. All streams continue.
pub async fn restart(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
) -> Response {
    let snapshot = app.engine.snapshot();
    if !snapshot.serving || snapshot.draining {
        let why = format!("no child can be replaced now: {}", snapshot.reason);
        return ApiError::of_code(ErrorCode::WorkerUnhealthy, why).respond(Dialect::Native);
    }
    let reason = "POST /restart";
    tracing::info!(reason, correlation_id = correlation.0, "restart");
    app.engine.replace_child();
    accepted()
}

fn accepted() -> Response {
    (StatusCode::ACCEPTED, axum::Json(json!({}))).into_response()
}
