//! Requests for one picture of a worker.

use crate::remote::{Remote, words_of};
use serde_json::Value;
use std::time::Duration;

/// Time limit of an answer. A worker answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// The error is a message for the view.
pub(super) type Outcome = Result<Answers, String>;

#[derive(Debug)]
pub(super) struct Answers {
    /// Body of `/health`, also with status 503.
    pub(super) health: Value,
    /// Empty if not accessible.
    pub(super) metrics: String,
    /// List of `/crashes`, or the error: only the operator has access.
    pub(super) crashes: Result<Vec<Value>, String>,
}

pub(super) async fn ask(remote: &Remote) -> Outcome {
    let asked = tokio::time::timeout(PATIENCE, all(remote)).await;
    asked.unwrap_or_else(|_| {
        let name = remote.name();
        Err(format!("{name}: no answer within {} s", PATIENCE.as_secs()))
    })
}

async fn all(remote: &Remote) -> Outcome {
    let (status, text) = get(remote, "/health").await?;
    let health: Value = serde_json::from_str(&text).unwrap_or_default();
    if !health["state"].is_string() {
        let why = why(&health).unwrap_or("this is no state of a worker".to_owned());
        return Err(format!("{}: {status}: {why}", remote.name()));
    }
    let (status, text) = get(remote, "/metrics").await?;
    let metrics = if status == 200 { text } else { String::new() };
    let (status, text) = get(remote, "/crashes").await?;
    let told: Value = serde_json::from_str(&text).unwrap_or_default();
    let crashes = match told["crashes"].as_array() {
        Some(crashes) => Ok(crashes.clone()),
        None => {
            let why = why(&told).unwrap_or_default();
            Err(format!("not available ({status}): {why}"))
        }
    };
    Ok(Answers {
        health,
        metrics,
        crashes,
    })
}

/// Message of a refusal, in the format of the worker's own API or of OpenAI's.
fn why(refusal: &Value) -> Option<String> {
    let own = refusal["message"].as_str().map(str::to_owned);
    own.or_else(|| words_of(refusal))
}

async fn get(remote: &Remote, path: &str) -> Result<(u16, String), String> {
    let (status, text) = remote
        .get(path)
        .await
        .map_err(|error| format!("{error:#}"))?;
    Ok((status.as_u16(), text))
}
