//! Server of a client command: its address, its key, and the parsing of its answers.
//!
//! Deliberately absent: the content of requests, and connections ([`outgoing`] opens one for each request).

use crate::key_file::read_keys;
use crate::outgoing::{self, Connection, Url};
use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use clap::{Arg, ArgMatches};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Data of a stream's last event.
pub(crate) const DONE: &str = "[DONE]";

/// Variable in which clients of the OpenAI API find their key.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// Largest error body, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Larger than any health report, metrics or crash list of a worker.
const MAX_ANSWER_BYTES: usize = 4 << 20;

pub(crate) fn arguments() -> [Arg; 2] {
    let url = Arg::new("url")
        .long("url")
        .value_name("URL")
        .help("Base URL of the server, without /v1")
        .default_value("http://localhost:8080");
    let key = Arg::new("api-key-file")
        .long("api-key-file")
        .value_name("FILE")
        .help("File of API keys, of which the first is sent [default: OPENAI_API_KEY, if set]");
    [url, key]
}

/// Error response.
#[derive(Debug, Error)]
#[error("{status}: {words}")]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// Error code of the API, if any.
    pub(crate) code: Option<String>,
    /// Error message, or the raw body.
    pub(crate) words: String,
}

#[derive(Debug)]
pub(crate) struct Remote {
    url: Url,
    key: Option<String>,
    /// Admin socket, which needs no key.
    admin_socket: Option<PathBuf>,
}

impl Remote {
    /// Server from the [`arguments`].
    pub(crate) fn new(arguments: &ArgMatches) -> Result<Self> {
        let text = |name: &str| arguments.get_one::<String>(name);
        let url = text("url").map_or("", String::as_str);
        let key = match text("api-key-file") {
            Some(file) => read_keys(Path::new(file))
                .map_err(|why| anyhow!(why))?
                .into_iter()
                .next(),
            None => std::env::var(KEY_VARIABLE)
                .ok()
                .filter(|key| !key.is_empty()),
        };
        Ok(Self {
            url: Url::parse(url).map_err(|why| anyhow!(why))?,
            key,
            admin_socket: None,
        })
    }

    /// Worker behind this `--admin-socket`.
    pub(crate) fn at_admin_socket(path: &Path) -> Result<Self> {
        Ok(Self {
            url: Url::parse("http://localhost").map_err(|why| anyhow!(why))?,
            key: None,
            admin_socket: Some(path.to_owned()),
        })
    }

    /// Name of the server in messages.
    pub(crate) fn name(&self) -> String {
        match &self.admin_socket {
            Some(path) => path.display().to_string(),
            None => self.url.authority.clone(),
        }
    }

    /// POST request with a JSON body. `path` is relative to the server's URL.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Request<Full<Bytes>>> {
        let request = self.with_key(Request::post(self.path(path)));
        let request = request.header(CONTENT_TYPE, "application/json");
        Ok(request.body(body.to_string().into())?)
    }

    /// GET request. `path` is relative to the server's URL. Returns the complete body, whatever the status.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        let request = self.with_key(Request::get(self.path(path)));
        let answer = self.send(request.body(Full::default())?).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES);
        let body = body.collect().await.map_err(|error| anyhow!(error));
        let body = body.with_context(|| format!("{}: the answer broke off", self.name()))?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok((status, text))
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.url.path.trim_end_matches('/'))
    }

    fn with_key(&self, request: Builder) -> Builder {
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        }
    }

    pub(crate) async fn connect(&self) -> Result<Connection> {
        let connected = match &self.admin_socket {
            Some(path) => outgoing::connect_at(path).await,
            None => outgoing::connect(&self.url).await,
        };
        connected.map_err(|why| anyhow!("{}: {why}", self.name()))
    }

    /// Sends a request on a new connection. Returns the body of a successful answer.
    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> Result<Incoming> {
        Ok(accepted(self.send(request).await?).await?)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let answer = self.connect().await?.send(request).await;
        answer.map_err(|why| anyhow!("{}: {why}", self.name()))
    }
}

/// Body of a successful answer.
pub(crate) async fn accepted(answer: Response<Incoming>) -> Result<Incoming, Refusal> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer.into_body());
    }
    let text = beginning(answer.into_body()).await;
    let error: Value = serde_json::from_str(&text).unwrap_or_default();
    Err(Refusal {
        status,
        code: code_of(&error),
        words: words_of(&error).unwrap_or(text),
    })
}

async fn beginning(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if bytes.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Message of an error object.
pub(crate) fn words_of(error: &Value) -> Option<String> {
    error["error"]["message"].as_str().map(str::to_owned)
}

/// Code of an error object.
pub(crate) fn code_of(error: &Value) -> Option<String> {
    match &error["error"]["code"] {
        Value::String(code) => Some(code.clone()),
        Value::Number(code) => Some(code.to_string()),
        _ => None,
    }
}

/// Events of a stream; only their data is parsed.
#[derive(Debug)]
pub(crate) struct Events {
    body: Incoming,
    lines: Lines,
    ready: VecDeque<String>,
}

impl Events {
    pub(crate) fn of(body: Incoming) -> Self {
        Self {
            body,
            lines: Lines::default(),
            ready: VecDeque::new(),
        }
    }

    /// Data of the next event; `None` at the end of the answer.
    pub(crate) async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(Some(data));
            }
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            let frame = frame.context("the answer broke off")?;
            let Some(bytes) = frame.data_ref() else {
                continue;
            };
            let lines = self.lines.take(bytes).into_iter();
            let data = lines.filter_map(|line| Some(line.strip_prefix("data:")?.trim().to_owned()));
            self.ready.extend(data);
        }
    }
}

/// Buffer that splits bytes into lines.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Takes all complete lines.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        let whole = String::from_utf8_lossy(&whole).into_owned();
        whole.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_the_bytes_were_cut() {
        let text = "data: {\"a\": \"é\"}\n\n: still here\r\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let (one, other) = text.as_bytes().split_at(cut);
            let mut found = lines.take(one);
            found.extend(lines.take(other));
            assert_eq!(found, text.lines().collect::<Vec<_>>(), "{cut}");
        }
    }
}
