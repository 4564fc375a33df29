//! HTTP: what clients see.
//!
//! ```text
//! listen (places) → connection → correlation → origin → access (keys) → a route
//!    admin_socket ───────────────────────────────┘            │
//!                                                             │
//!    execute ─┐                                               ▼
//!             ├→ fields → generation (one request, one way in) → Engine
//!     openai ─┤                                                   │
//!  anthropic ─┘                                                   │
//!    client ←── sse (streamed) or whole ←───────── RequestStream ─┘
//! ```
//!
//! * [`health`] and [`metrics`](crate::metrics) answer from memory and never wait.
//! * [`responses`] is OpenAI's other API for conversations, over the same way in.
//! * [`choices`] are several answers of one request.
//! * [`texts`] tells tokens of texts and texts of tokens.
//! * [`admin`] says what only the operator may ask, and where.
//! * [`routes`] says what there is, also to somebody who asked for what there is not; [`openapi`] says it to
//!   programs, and [`page`] shows it to people.
//! * [`crashes`] tells of children that died, in the words of their reports.
//! * [`error`] is every answer that is not what was asked for, in either API's words;
//!   [`refusals`] counts and logs those whose request was not let in.
//!
//! Deliberately absent: decisions about children ([`health`] and [`crashes`] show what is known of
//! them); HTTP/2 ([`tls`] offers HTTP/1.1 alone).

#![expect(
    clippy::disallowed_methods,
    reason = "a model is listed with when the worker started"
)]

pub mod access;
pub mod admin;
pub mod admin_socket;
pub mod anthropic;
pub mod begun;
pub mod body;
mod call_ids;
pub mod choices;
pub mod client;
pub mod connection;
pub mod correlation;
pub mod crashes;
pub mod devices;
pub mod effort;
pub mod embeddings;
pub mod error;
pub mod execute;
pub mod fields;
pub mod generation;
mod guarded;
pub mod handed;
pub mod handover;
pub mod health;
pub mod job;
pub mod json;
pub mod lanes;
pub mod listen;
mod logit_bias;
pub mod messages;
pub mod mistakes;
pub mod openai;
pub mod openapi;
pub mod origin;
pub mod page;
pub mod places;
mod pooled;
pub mod presentation;
pub mod reading;
pub mod received;
pub mod refusals;
pub mod rerank;
pub mod responses;
pub mod resume;
pub mod routes;
pub mod sse;
pub mod structure;
pub mod texts;
pub mod thinking_budget;
mod timeline;
pub mod tls;
mod tool_calls;
mod tools;
mod whole;

use crate::config::device::DecidedDevices;
use crate::config::{Config, RequestLimits};
use crate::engine::{Engine, Refusal};
use crate::metrics::Metrics;
use crate::metrics::exposition::Format;
use access::KnownKeys;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use body::{Bodies, BodyLimits};
use error::{ApiError, Dialect};
use lanes::Lanes;
use origin::Names;
use places::Places;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tls::Tls;
use tower_http::cors::CorsLayer;
use uuid::Uuid;
use worker_orcd_ipc::Pooling;

/// Paths that orchestrators and scrapers ask for, answered even when every place is taken.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/health", "/metrics"];

/// Everything that all handlers share.
#[derive(Debug)]
pub struct App {
    pub engine: Engine,
    pub metrics: Metrics,
    pub keys: KnownKeys,
    /// The operator has a socket, so the operator's routes are there.
    pub has_admin_socket: bool,
    pub limits: RequestLimits,
    pub bodies: Bodies,
    pub lanes: Lanes,
    /// Control tokens are parsed in what clients write into messages, too.
    pub parse_special: bool,
    /// Requests may name no model but this one.
    pub strict_model_name: bool,
    /// How texts become embeddings, instead of as the model file says.
    pub pooling: Option<Pooling>,
    /// Places of all connections, but for probes that found none.
    pub places: Arc<Places>,
    pub devices: DecidedDevices,
    pub worker_id: Uuid,
    /// Host names by which this worker may be called.
    pub names: Names,
    pub cors: Option<CorsLayer>,
    pub tls: Option<Tls>,
    /// The name by which clients call the model: the first of its names, or the file's without its
    /// ending.
    pub model_id: String,
    /// Other names that were given to it.
    pub model_aliases: Vec<String>,
    /// The value of `--model`.
    pub model_ref: String,
    /// Unix seconds at which this worker started.
    pub created: u64,
    /// Another supervisor goes on with every request: none of them ends here.
    handed_over: AtomicBool,
    /// Behind an upgrade, until the model is ready again: requests are taken and wait.
    pub goes_on: AtomicBool,
}

impl App {
    #[must_use]
    pub fn new(config: &Config, engine: Engine, devices: DecidedDevices) -> Self {
        let mut names = config.served_model_names.iter().cloned();
        let model_id = names.next().unwrap_or_else(|| name_of_file(config));
        Self {
            engine,
            metrics: Metrics::default(),
            keys: KnownKeys::new(&config.http.keys),
            has_admin_socket: config.http.admin_socket.is_some(),
            limits: config.limits.clone(),
            bodies: Bodies::new(BodyLimits {
                bytes: config.http.max_body_bytes,
                time: config.http.read_timeout,
                together: config.http.max_bodies_bytes,
            }),
            lanes: Lanes::default(),
            parse_special: config.parse_special,
            strict_model_name: config.strict_model_name,
            pooling: config.pooling,
            places: Places::new(config.http.max_connections.get()),
            devices,
            worker_id: config.worker_id,
            names: Names::of(&config.http),
            cors: origin::cors(&config.http.cors_origins),
            tls: config.http.tls.clone().map(Tls::new),
            model_id,
            model_aliases: names.collect(),
            model_ref: config.model_ref.clone(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |it| it.as_secs()),
            handed_over: AtomicBool::new(false),
            goes_on: AtomicBool::new(false),
        }
    }

    /// From now on what is dropped here goes on elsewhere.
    pub fn leaves(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn has_left(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Device memory in use, where the child has said so.
    #[must_use]
    pub fn device_bytes_in_use(&self) -> Option<u64> {
        let (memory, _) = self.engine.snapshot().device().memory?;
        let context = memory.context_bytes.unwrap_or(0);
        Some(memory.known_bytes().saturating_add(context))
    }
}

/// The file's name without `.gguf`; other dots stay, because versions have them.
fn name_of_file(config: &Config) -> String {
    let name = config.model.file_name().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_else(|| config.model_ref.as_str().into());
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

/// Every route.
pub fn router(app: Arc<App>) -> Router {
    let cors = app.cors.clone();
    let add = |router: Router<Arc<App>>, route: &routes::Route| {
        router.route(route.path, (route.handler)())
    };
    let router = routes::ROUTES
        .iter()
        .fold(Router::new(), add)
        .fallback(routes::nothing_there)
        .layer(from_fn(explain_method))
        .layer(from_fn_with_state(Arc::clone(&app), access::check))
        .layer(from_fn_with_state(Arc::clone(&app), origin::check))
        .layer(from_fn_with_state(Arc::clone(&app), refusals::note));
    // Before keys are asked for: browsers send none with their question.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(from_fn(correlation::correlate))
        .with_state(app)
}

/// Every route, for those who found no place: probes are answered, nothing else is.
pub fn probe_router(app: Arc<App>) -> Router {
    router(Arc::clone(&app)).layer(from_fn_with_state(app, only_probes))
}

async fn only_probes(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let path = request.uri().path();
    if PROBES.contains(&path) {
        return next.run(request).await;
    }
    let refusal = Refusal::QueueFull {
        retry_after: Duration::from_secs(1),
    };
    // Here and not by `refusals`: a crowd that is turned away fills no log.
    app.metrics.request_refused(refusal.code().as_str());
    ApiError::from(refusal).respond(Dialect::of_path(path))
}

async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let model = app.engine.model();
    let snapshot = app.engine.snapshot();
    let live = app.engine.live_requests();
    let text = app
        .metrics
        .render(&snapshot, live, model.as_deref(), format);
    ([(CONTENT_TYPE, format.content_type())], text).into_response()
}

/// Gives the router's own 405 a body; which methods are allowed, it knows best.
async fn explain_method(request: Request<Body>, next: Next) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let response = next.run(request).await;
    if response.status() != axum::http::StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow: Option<&HeaderValue> = response.headers().get(ALLOW);
    ApiError::method_not_allowed().respond_allowing(dialect, allow)
}

#[cfg(test)]
mod tests;
