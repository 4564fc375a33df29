//! Telling an orchestrator that this worker exists.
//!
//! One POST, repeated with growing pauses until it is answered with 2xx or given up: HTTP/1.1 over
//! TCP, or over TLS. Who is called over TLS must have a certificate of an authority that this host
//! trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others. They are read again for each attempt.
//!
//! Deliberately absent: a way to go on without a certificate that is right.

use crate::config::callback::CallbackUrl;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

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
    let body = serde_json::to_string(registration).map_err(|error| error.to_string())?;
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        url.path,
        url.authority,
        body.len()
    );
    let stream = TcpStream::connect(&url.authority).await;
    let stream = stream.map_err(|error| error.to_string())?;
    match &url.tls {
        None => exchange(stream, &request).await,
        Some(name) => exchange(secured(stream, name).await?, &request).await,
    }
}

async fn secured(
    stream: TcpStream,
    name: &ServerName<'static>,
) -> Result<TlsStream<TcpStream>, String> {
    // Hundreds of files, on some hosts.
    let trusted = tokio::task::spawn_blocking(trusted).await;
    let trusted = trusted.map_err(|error| error.to_string())??;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let connected = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream);
    connected.await.map_err(|error| format!("TLS: {error}"))
}

/// The authorities that this host trusts.
fn trusted() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (known, _) = store.add_parsable_certificates(found.certs);
    if known > 0 {
        return Ok(store);
    }
    let why = found.errors.first().map(|error| format!(": {error}"));
    Err(format!(
        "TLS: this host trusts no certificate authority; SSL_CERT_FILE names a file of them{}",
        why.unwrap_or_default()
    ))
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    stream.flush().await.map_err(text)?;
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
