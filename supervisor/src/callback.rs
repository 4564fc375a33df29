//! Registration of this worker with an orchestrator.
//!
//! One POST, repeated with growing pauses until an answer of 2xx or the last attempt. [`outgoing`] limits the possible
//! targets.

use axum::http::Request;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use serde::Serialize;
use std::time::Duration;
use thiserror::Error;
use worker_orcd_cli::outgoing::{self, Url};

/// Maximum number of attempts. The pause between them doubles.
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Body of the registration.
#[derive(Debug, Clone, Serialize, PartialEq)]
pub(crate) struct Registration {
    pub worker_id: String,
    pub model_ref: String,
    pub memory_bytes: u64,
    /// `vram-only` on a GPU, `host` on the CPU device.
    pub memory_architecture: &'static str,
    pub uri: String,
    pub worker_type: &'static str,
    pub capabilities: Vec<&'static str>,
}

/// All attempts failed, with the reason of the last failure.
#[derive(Debug, Error)]
#[error("the callback was not delivered to {authority} in {ATTEMPTS} attempts: {reason}")]
pub(crate) struct NotDelivered {
    authority: String,
    reason: String,
}

/// # Errors
/// If no attempt is answered with 2xx.
pub(crate) async fn register(url: &Url, registration: &Registration) -> Result<(), NotDelivered> {
    let mut pause = FIRST_PAUSE;
    let mut reason = String::new();
    for attempt in 1..=ATTEMPTS {
        if attempt > 1 {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        match tokio::time::timeout(ATTEMPT_TIMEOUT, post(url, registration)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => reason = why,
            Err(_) => reason = format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs()),
        }
        tracing::warn!(attempt, reason, "callback_failed");
    }
    Err(NotDelivered {
        authority: url.authority.clone(),
        reason,
    })
}

async fn post(url: &Url, registration: &Registration) -> Result<(), String> {
    let body = serde_json::to_vec(registration).map_err(|error| error.to_string())?;
    let request = Request::post(&url.path)
        .header(CONTENT_TYPE, "application/json")
        .header(CONNECTION, "close")
        .body(body.into())
        .map_err(|error| error.to_string())?;
    let status = outgoing::send(url, request).await?.status();
    if status.is_success() {
        return Ok(());
    }
    Err(format!("the answer was {status}"))
}
