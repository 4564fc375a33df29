//! HTTP server.
//!
//! ```text
//! listen (places) → connection → correlation → origin → access (keys) → a route
//!    admin_socket ───────────────────────────────┘            │
//!                                                             │
//!    execute ─┐                                               ▼
//!             ├→ received → generation (single entry point) ─→ Engine
//!     openai ─┤                                                   │
//!  anthropic ─┘                                                   │
//!    client ←── sse (streamed) or whole ←───────── RequestStream ─┘
//! ```
//!
//! * [`health`] and [`metrics`](crate::metrics): answered from memory, never blocking.
//! * [`responses`]: OpenAI's Responses API, on the same path. [`ollama`]: Ollama's.
//! * [`respond`]: responses in the formats of `worker_orcd_api`, which reads requests and writes answers. [`choices`]:
//!   streams of an answer, which [`sse`] sends. [`held`]: answers in one piece with their room in memory.
//! * [`texts`]: tokenize, detokenize and apply-template.
//! * [`admin`]: operator routes and their access.
//! * [`routes`]: table of routes, also for 404 answers. [`openapi`]: the same for programs. [`page`]: status page.
//! * [`crashes`]: reports of dead children.
//! * [`error`]: error responses of all APIs. [`refusals`]: counts and logs requests that were not admitted.
//!
//! Deliberately absent: decisions about children ([`health`] and [`crashes`] only report), and HTTP/2 ([`tls`] offers
//! HTTP/1.1 alone).

#![expect(
    clippy::disallowed_methods,
    reason = "a model is listed with when the worker started"
)]

pub mod access;
pub mod admin;
pub mod admin_socket;
pub mod anthropic;
pub mod blocking_pool;
pub mod body;
mod choices;
pub mod client;
pub mod connection;
pub mod connection_slots;
pub mod correlation;
pub mod crashes;
pub mod devices;
pub mod embeddings;
pub mod error;
pub mod execute;
pub mod generation;
mod guarded;
pub mod handed;
pub mod handover;
pub mod health;
mod held;
pub mod job;
pub mod listen;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod origin;
pub mod page;
mod pooled;
pub mod received;
pub mod refusals;
pub mod rerank;
pub mod respond;
pub mod responses;
pub mod resume;
pub mod routes;
pub mod sse;
pub mod structure;
pub mod texts;
pub mod tls;
mod whole;

use crate::config::Config;
use crate::config::device::DecidedDevices;
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
use blocking_pool::BlockingPool;
use body::{Bodies, BodyLimits};
use connection_slots::ConnectionSlots;
use error::{ApiError, Dialect, HandlerError, Respond as _};
use origin::Names;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tls::Tls;
use tower_http::cors::CorsLayer;
use uuid::Uuid;
use worker_orcd_api::limits::RequestLimits;
use worker_orcd_engine::Engine;
use worker_orcd_ipc::{Pooling, Speculation};
use worker_orcd_requests::Refusal;

/// Paths of orchestrators and scrapers, answered even without a free connection slot.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/health", "/metrics"];

/// Shared state of all handlers.
#[derive(Debug)]
pub struct App {
    pub engine: Engine,
    pub metrics: Metrics,
    pub keys: KnownKeys,
    /// The operator routes are on the admin socket.
    pub has_admin_socket: bool,
    pub limits: RequestLimits,
    pub bodies: Bodies,
    pub pool: BlockingPool,
    /// Parse control tokens also in text of clients.
    pub parse_special: bool,
    /// Requests have drafts.
    pub speculates: bool,
    /// Refuse requests that name another model.
    pub strict_model_name: bool,
    /// Pooling of embeddings; overrides the model file.
    pub pooling: Option<Pooling>,
    /// Connection slots, without those of the probe listener.
    pub slots: Arc<ConnectionSlots>,
    pub devices: DecidedDevices,
    pub worker_id: Uuid,
    /// Accepted host names.
    pub names: Names,
    pub cors: Option<CorsLayer>,
    pub tls: Option<Tls>,
    /// Name of the model in the API: the first of `--served-model-name`, else the file's name without its extension.
    pub model_id: String,
    /// Further names of the model.
    pub model_aliases: Vec<String>,
    /// The value of `--model`.
    pub model_ref: String,
    /// Start of this worker, in Unix seconds.
    pub created: u64,
    /// Requests are handed over to another supervisor; none ends here.
    handed_over: AtomicBool,
    /// True after an upgrade until the model is ready again: requests are admitted and wait.
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
            pool: BlockingPool::default(),
            parse_special: config.parse_special,
            speculates: config.load.speculation != Speculation::Off,
            strict_model_name: config.strict_model_name,
            pooling: config.pooling,
            slots: ConnectionSlots::new(config.http.max_connections.get()),
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

    /// Marks all requests as handed over: a dropped stream is not a cancellation.
    pub fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn has_left(&self) -> bool {
        self.handed_over.load(Ordering::Acquire)
    }

    /// Device memory in use, in bytes, if the child has reported it.
    #[must_use]
    pub fn device_bytes_in_use(&self) -> Option<u64> {
        let (memory, _) = self.engine.snapshot().device().memory?;
        Some(memory.bytes_in_use())
    }
}

/// Name of the file without `.gguf`. Other dots stay: versions contain them.
fn name_of_file(config: &Config) -> String {
    let name = config.model.file_name().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_else(|| config.model_ref.as_str().into());
    name.strip_suffix(".gguf").unwrap_or(&name).to_owned()
}

/// Router of all routes.
pub fn router(app: Arc<App>) -> Router {
    let cors = app.cors.clone();
    let add = |router: Router<Arc<App>>, route: &routes::Route| {
        router.route(route.path, (route.handler)())
    };
    let router = routes::ROUTES
        .iter()
        .fold(Router::new(), add)
        .fallback(routes::nothing_there)
        .layer(from_fn(explain))
        .layer(from_fn_with_state(Arc::clone(&app), access::check))
        .layer(from_fn_with_state(Arc::clone(&app), origin::check))
        .layer(from_fn_with_state(Arc::clone(&app), refusals::note));
    // Before the key check: preflight requests of browsers have no key.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(from_fn(correlation::correlate))
        .with_state(app)
}

/// Router for connections without a slot: it answers probes alone.
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
    // Counted here, without the log line of `refusals`: overload must not fill the log.
    app.metrics.events.refused(refusal.code().as_str());
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

/// Writes errors of handlers in the format of the path's API, and the body of the router's 405, which has the allowed
/// methods.
async fn explain(request: Request<Body>, next: Next) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let mut response = next.run(request).await;
    if let Some(HandlerError(error)) = response.extensions_mut().remove() {
        return error.respond(dialect);
    }
    if response.status() != axum::http::StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allow: Option<&HeaderValue> = response.headers().get(ALLOW);
    ApiError::method_not_allowed().respond_allowing(dialect, allow)
}

#[cfg(test)]
mod tests;
