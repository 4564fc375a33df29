//! Refused requests: counted by code, and logged with their correlation id.

use super::App;
use super::correlation::CorrelationId;
use super::error::Refused;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::Request;
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

pub async fn note(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let uri = request.uri().clone();
    let response = next.run(request).await;
    if let Some(Refused(code)) = response.extensions().get() {
        app.metrics.events.refused(code);
        tracing::info!(
            correlation_id = correlation.0,
            %method,
            path = uri.path(),
            status = response.status().as_u16(),
            code,
            "request_refused"
        );
    }
    response
}
