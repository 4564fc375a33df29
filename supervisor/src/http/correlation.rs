//! `X-Correlation-Id`: accepted or generated, echoed, and in every log line of its job. OpenAI's clients use the name
//! `X-Request-Id`, Anthropic's `Request-Id`.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

const HEADER: HeaderName = HeaderName::from_static("x-correlation-id");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
const MAX_CHARS: usize = 128;

#[derive(Debug, Clone)]
pub struct CorrelationId(pub String);

pub async fn correlate(mut request: Request<Body>, next: Next) -> Response {
    let given = request
        .headers()
        .get(HEADER)
        .and_then(|value| value.to_str().ok());
    let id = given
        .filter(|id| is_usable(id))
        .map_or_else(generate, str::to_owned);
    request.extensions_mut().insert(CorrelationId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value.clone());
        response.headers_mut().insert(REQUEST_ID, value.clone());
        response.headers_mut().insert(ANTHROPIC_ID, value);
    }
    response
}

/// True for an id of acceptable length and characters, safe to log.
fn is_usable(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_CHARS && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn generate() -> String {
    Uuid::new_v4().to_string()
}
