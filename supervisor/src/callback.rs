//! Telling an orchestrator that this worker exists.
//!
//! One POST, repeated with growing pauses until it is answered with 2xx or given up. HTTP/1.1
//! over plain TCP is all it takes, and all there is.

use crate::config::callback::CallbackUrl;
use serde::Serialize;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Attempts, between which the pause doubles, before the registration has failed.
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// A status line is all that is read.
const MAX_ANSWER_BYTES: usize = 1024;

/// The words that an orchestrator is told.
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

/// Every attempt failed; this is how the last one did.
#[derive(Debug, Error)]
#[error("the callback was not delivered to {authority} in {ATTEMPTS} attempts: {reason}")]
pub(crate) struct NotDelivered {
    authority: String,
    reason: String,
}

/// # Errors
/// When no attempt was answered with 2xx.
pub(crate) async fn register(
    url: &CallbackUrl,
    registration: &Registration,
) -> Result<(), NotDelivered> {
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

async fn post(url: &CallbackUrl, registration: &Registration) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let body = serde_json::to_string(registration).map_err(|error| error.to_string())?;
    let CallbackUrl { authority, path } = url;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(authority).await.map_err(text)?;
    stream.write_all(head.as_bytes()).await.map_err(text)?;
    stream.write_all(body.as_bytes()).await.map_err(text)?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < MAX_ANSWER_BYTES {
        if stream.read_buf(&mut answer).await.map_err(text)? == 0 {
            break;
        }
    }
    check_status(&answer)
}

fn check_status(answer: &[u8]) -> Result<(), String> {
    let line = answer
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    match words.next() {
        Some(status) if is_http && status.len() == 3 && status.starts_with('2') => Ok(()),
        _ => Err(format!("the answer was {line:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_2xx_is_a_delivery() {
        assert!(check_status(b"HTTP/1.1 204 No Content\r\n").is_ok());
        assert!(check_status(b"HTTP/1.0 200\r\n").is_ok());
        for answer in [
            &b"HTTP/1.1 500 Oops\r\n"[..],
            b"",
            b"SSH-2.0 200 x\r\n",
            b"HTTP/1.1 2",
        ] {
            assert!(check_status(answer).is_err(), "{answer:?}");
        }
    }
}
