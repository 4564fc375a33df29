//! Answers that are not what was asked for, in the words of either API.

use super::fields::{Constraint, FieldError};
use crate::engine::{Failure, Refusal};
use crate::error_code::ErrorCode;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Which of the two APIs a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Native,
    OpenAi,
}

impl Dialect {
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        if path.starts_with("/v1/") {
            Self::OpenAi
        } else {
            Self::Native
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retriable: bool,
    /// What is wrong with which field; empty unless the request itself is at fault.
    errors: Vec<FieldError>,
    retry_after_seconds: Option<u64>,
}

impl ApiError {
    #[must_use]
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let message = match errors.as_slice() {
            [only] => format!("{} {}", only.field, only.message),
            many => format!("{} fields are invalid", many.len()),
        };
        Self {
            errors,
            ..Self::of_code(ErrorCode::InvalidRequest, message)
        }
    }

    #[must_use]
    pub fn invalid_field(field: &str, constraint: Constraint, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError::new(field, constraint, message)])
    }

    #[must_use]
    pub fn unauthorized() -> Self {
        Self::of_code(
            ErrorCode::Unauthorized,
            "a valid key is needed: Authorization: Bearer KEY",
        )
    }

    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::plain(StatusCode::NOT_FOUND, "NOT_FOUND", message)
    }

    #[must_use]
    pub fn method_not_allowed() -> Self {
        let message = "this path does not answer this method";
        Self::plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "METHOD_NOT_ALLOWED",
            message,
        )
    }

    #[must_use]
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("the body is larger than {limit_bytes} bytes");
        Self::plain(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", message)
    }

    #[must_use]
    pub fn not_json() -> Self {
        let message = "the body must be sent as Content-Type: application/json";
        Self::plain(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UNSUPPORTED_MEDIA_TYPE",
            message,
        )
    }

    #[must_use]
    pub fn body_timeout() -> Self {
        let message = "the body did not arrive in time";
        Self::plain(StatusCode::REQUEST_TIMEOUT, "REQUEST_TIMEOUT", message)
    }

    #[must_use]
    pub fn of_failure(failure: &Failure) -> Self {
        let retriable = failure.retriable;
        Self {
            retriable,
            ..Self::of_code(failure.code, failure.message.clone())
        }
    }

    #[must_use]
    pub fn of_code(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.http_status());
        Self {
            retriable: code.is_retriable(),
            ..Self::plain(
                status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                code.as_str(),
                message,
            )
        }
    }

    fn plain(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retriable: false,
            errors: Vec::new(),
            retry_after_seconds: None,
        }
    }

    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    #[must_use]
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::Native => self.native_body(),
            Dialect::OpenAi => self.openai_body(),
        }
    }

    fn native_body(&self) -> Value {
        let mut body =
            json!({"code": self.code, "message": self.message, "retriable": self.retriable});
        if !self.errors.is_empty() {
            body["errors"] = json!(self.errors);
        }
        body
    }

    /// With several mistakes, `param` names the first and the message tells them all.
    fn openai_body(&self) -> Value {
        let tell = |error: &FieldError| format!("{} {}", error.field, error.message);
        let message = match self.errors.as_slice() {
            [] => self.message.clone(),
            errors => errors.iter().map(tell).collect::<Vec<_>>().join("; "),
        };
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=498 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {
            "message": message,
            "type": kind,
            "param": self.errors.first().map(|error| error.field.clone()),
            "code": self.code.to_lowercase(),
        }})
    }

    #[must_use]
    pub fn respond(&self, dialect: Dialect) -> Response {
        let body = self.body(dialect).to_string();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// [`Self::respond`] that keeps the `Allow` header of the router's own answer.
    #[must_use]
    pub fn respond_allowing(&self, dialect: Dialect, allow: Option<&HeaderValue>) -> Response {
        let mut response = self.respond(dialect);
        if let Some(allow) = allow {
            response.headers_mut().insert(ALLOW, allow.clone());
        }
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let mut error = Self::of_code(refusal.code(), refusal.to_string());
        if let Refusal::QueueFull { retry_after } = refusal {
            error.retry_after_seconds = Some(retry_after.as_secs().max(1));
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn both_apis_name_every_field() {
        let error = ApiError::invalid(vec![
            FieldError::new("top_p", Constraint::Range, "must be from 0 to 1"),
            FieldError::new("tools", Constraint::Unsupported, "is not supported"),
        ]);
        assert_eq!(
            error.body(Dialect::Native),
            json!({
                "code": "INVALID_REQUEST", "message": "2 fields are invalid", "retriable": false,
                "errors": [
                    {"field": "top_p", "constraint": "range", "message": "must be from 0 to 1"},
                    {"field": "tools", "constraint": "unsupported", "message": "is not supported"},
                ],
            })
        );
        assert_eq!(
            error.body(Dialect::OpenAi),
            json!({"error": {
                "message": "top_p must be from 0 to 1; tools is not supported",
                "type": "invalid_request_error", "param": "top_p", "code": "invalid_request",
            }})
        );
    }

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let refusal = Refusal::QueueFull {
            retry_after: Duration::from_secs(7),
        };
        let response = ApiError::from(refusal).respond(Dialect::Native);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "7");
    }
}
