//! Error responses.

use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
pub use worker_orcd_api::error::{ApiError, Dialect};

/// Extension of a refused request's response, for counting and logging.
#[derive(Debug, Clone, Copy)]
pub struct Refused(pub &'static str);

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Answer of a handler.
pub type Answered<T = Response> = Result<T, HandlerError>;

/// Error of a handler. The router writes it in the format of the path's API ([`explain`](super::explain)).
#[derive(Debug, Clone)]
pub struct HandlerError(pub ApiError);

impl From<ApiError> for HandlerError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        let mut response = self.0.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub trait Respond {
    /// Response in the format of an API.
    #[must_use]
    fn respond(&self, dialect: Dialect) -> Response;

    /// [`Self::respond`] that keeps the `Allow` header of the router's own answer.
    #[must_use]
    fn respond_allowing(&self, dialect: Dialect, allow: Option<&HeaderValue>) -> Response;
}

impl Respond for ApiError {
    fn respond(&self, dialect: Dialect) -> Response {
        let body = self.body(dialect).to_string();
        let mut response = (self.status(), body).into_response();
        if !self.is_an_end() {
            response.extensions_mut().insert(Refused(self.code()));
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // OpenAI's clients decide by the status unless this header is set.
        let again = if self.may_be_sent_again_at_once() {
            "true"
        } else {
            "false"
        };
        headers.insert(SHOULD_RETRY, HeaderValue::from_static(again));
        response
    }

    fn respond_allowing(&self, dialect: Dialect, allow: Option<&HeaderValue>) -> Response {
        let mut response = self.respond(dialect);
        if let Some(allow) = allow {
            response.headers_mut().insert(ALLOW, allow.clone());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use worker_orcd_requests::Refusal;
    use worker_orcd_requests::error_code::ErrorCode;

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let refusal = Refusal::QueueFull {
            retry_after: Duration::from_secs(7),
        };
        let response = ApiError::from(refusal).respond(Dialect::Native);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "7");
    }

    #[test]
    fn a_client_is_told_whether_and_when_to_try_again() {
        let sent = |error: ApiError| {
            let headers = error.respond(Dialect::OpenAi).headers().clone();
            (
                headers["x-should-retry"].clone(),
                headers.get(RETRY_AFTER).cloned(),
            )
        };
        let soon = Some(HeaderValue::from(1));
        let loading = ApiError::of_code(ErrorCode::WorkerUnhealthy, "loading");
        assert_eq!(sent(loading), (HeaderValue::from_static("true"), soon));
        let late = ApiError::of_code(ErrorCode::InferenceTimeout, "late");
        assert_eq!(sent(late), (HeaderValue::from_static("false"), None));
        let oom = ApiError::of_code(ErrorCode::VramOom, "full");
        assert_eq!(sent(oom), (HeaderValue::from_static("false"), None));
    }
}
