//! A request's body: small, on time, and a JSON object.

use super::error::ApiError;
use super::fields::{Constraint, Fields};
use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use std::time::Duration;

/// How much, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
}

/// # Errors
/// 415, 413, 408 or 400, whichever comes first.
pub async fn read_fields(request: Request<Body>, limits: BodyLimits) -> Result<Fields, ApiError> {
    if !is_json(&request) {
        return Err(ApiError::not_json());
    }
    if announced_bytes(&request).is_some_and(|bytes| bytes > limits.bytes as u64) {
        return Err(ApiError::too_large(limits.bytes));
    }
    let limited = Limited::new(request.into_body(), limits.bytes);
    let collected = tokio::time::timeout(limits.time, limited.collect())
        .await
        .map_err(|_| ApiError::body_timeout())?
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                return ApiError::too_large(limits.bytes);
            }
            ApiError::invalid_field("body", Constraint::Json, "ended before it was complete")
        })?;
    parse(&collected.to_bytes())
}

fn parse(bytes: &[u8]) -> Result<Fields, ApiError> {
    let wrong = |message: String| ApiError::invalid_field("body", Constraint::Json, message);
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(Fields::new(map)),
        Ok(_) => Err(wrong("must be a JSON object".to_owned())),
        // The parser's message may quote the text; its place does not.
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(wrong(format!("is not JSON: line {line}, column {column}")))
        }
    }
}

fn is_json(request: &Request<Body>) -> bool {
    let Some(value) = request.headers().get(CONTENT_TYPE) else {
        return false;
    };
    let media_type = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn announced_bytes(request: &Request<Body>) -> Option<u64> {
    request
        .headers()
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    const LIMITS: BodyLimits = BodyLimits {
        bytes: 16,
        time: Duration::from_millis(20),
    };

    async fn status(content_type: &str, body: Body) -> Result<Fields, StatusCode> {
        let request = Request::post("/")
            .header(CONTENT_TYPE, content_type)
            .body(body)
            .unwrap();
        read_fields(request, LIMITS)
            .await
            .map_err(|error| error.status())
    }

    #[tokio::test]
    async fn each_kind_of_bad_body_has_its_status() {
        let json = "application/json; charset=utf-8";
        assert!(status(json, Body::from("{\"a\": 1}")).await.is_ok());
        let refused = |result: Result<Fields, StatusCode>| result.unwrap_err().as_u16();
        assert_eq!(refused(status("text/plain", Body::from("{}")).await), 415);
        assert_eq!(refused(status(json, Body::from("{\"a\": ")).await), 400);
        assert_eq!(refused(status(json, Body::from("[1]")).await), 400);
        assert_eq!(
            refused(status(json, Body::from("{\"a\": \"0123456789\"}")).await),
            413
        );
        let never = futures_util::stream::pending::<Result<&'static [u8], std::io::Error>>();
        assert_eq!(refused(status(json, Body::from_stream(never)).await), 408);
    }

    #[tokio::test]
    async fn a_syntax_error_tells_its_place_and_not_its_text() {
        let request = Request::post("/")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from("{\"secret\" 1}"))
            .unwrap();
        let error = read_fields(request, LIMITS).await.unwrap_err();
        let body = error.body(super::super::error::Dialect::Native).to_string();
        assert!(
            body.contains("column 11") && !body.contains("secret"),
            "{body}"
        );
    }
}
