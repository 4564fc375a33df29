//! Error responses in the format of each API.

pub mod anthropic;

pub(crate) use anthropic::THREAD;

use crate::answer::absent_not_null;
use crate::mistakes::{Constraint, FieldError, LISTED, Mistakes};
use anthropic::AnthropicError;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt::Display;
use strum::VariantArray as _;
use worker_orcd_requests::error_code::{ErrorCode, OTHER_REFUSALS};
use worker_orcd_requests::{Failure, Refusal};

/// API of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Native,
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/v1/") || path == "/rerank" {
            Self::OpenAi
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::Native
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
#[schemars(transform = absent_not_null)]
pub struct NativeError<'a> {
    code: Code,
    message: &'a str,
    retriable: bool,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schemars(length(min = 1, max = LISTED))]
    errors: &'a [FieldError],
    #[serde(skip_serializing_if = "Option::is_none")]
    more_errors: Option<usize>,
}

/// Code of an error of the native API.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Code(#[schemars(extend("enum" = codes()))] pub(crate) &'static str);

fn codes() -> Vec<&'static str> {
    let of_requests = ErrorCode::VARIANTS.iter().map(|code| code.as_str());
    of_requests.chain(OTHER_REFUSALS).collect()
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct OpenAiError<'a> {
    error: OpenAiErrorDetails<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
struct OpenAiErrorDetails<'a> {
    message: String,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Cow<'static, str>,
    retriable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    more_errors: Option<usize>,
}

/// Error of Ollama's API, as a response and as the last line of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OllamaError {
    error: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retriable: bool,
    /// Mistakes by field; empty unless the request is invalid.
    mistakes: Mistakes,
    /// Code of the OpenAI API, which its clients check.
    openai_code: Option<&'static str>,
    retry_after_seconds: Option<u64>,
    /// End of an admitted request, which is counted elsewhere.
    is_an_end: bool,
}

/// Retry delay while a worker loads or replaces a child.
const SOON_SECONDS: u64 = 1;

impl ApiError {
    #[must_use]
    pub fn invalid(mistakes: Mistakes) -> Self {
        let message = match (mistakes.listed(), mistakes.more()) {
            ([only], 0) => format!("{} {}", only.field, only.message),
            _ => format!("{} fields are invalid", mistakes.count()),
        };
        Self {
            mistakes,
            ..Self::of_code(ErrorCode::InvalidRequest, message)
        }
    }

    #[must_use]
    pub fn invalid_field(field: &str, constraint: Constraint, message: impl Into<String>) -> Self {
        Self::invalid(FieldError::new(field, constraint, message).into())
    }

    /// Error of a prompt that is too long. Clients recognise its message and shorten their conversation.
    #[must_use]
    pub fn context_length(field: &str, tokens: impl Display, fit: u32, context: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your {field} has \
             {tokens} tokens, of which at most {fit} fit. Please reduce its length."
        );
        Self {
            mistakes: FieldError::new(field, Constraint::Length, message.clone()).into(),
            openai_code: Some("context_length_exceeded"),
            ..Self::of_code(ErrorCode::InvalidRequest, message)
        }
    }

    #[must_use]
    pub fn unauthorized() -> Self {
        let message = "a valid key is needed: Authorization: Bearer KEY, or x-api-key: KEY";
        Self {
            openai_code: Some("invalid_api_key"),
            ..Self::of_code(ErrorCode::Unauthorized, message)
        }
    }

    #[must_use]
    pub fn no_such_model(message: impl Into<String>) -> Self {
        Self {
            openai_code: Some("model_not_found"),
            ..Self::not_found(message)
        }
    }

    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::of_code(ErrorCode::InvalidRequest, message)
    }

    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::plain(StatusCode::FORBIDDEN, "FORBIDDEN", message)
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
    pub fn encoded() -> Self {
        let message = "bodies are taken as they are: no Content-Encoding";
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
    pub fn cut_short() -> Self {
        Self::invalid_field("body", Constraint::Json, "ended before it was complete")
    }

    /// Sets the code of the OpenAI API.
    #[must_use]
    pub fn with_openai_code(self, code: &'static str) -> Self {
        Self {
            openai_code: Some(code),
            ..self
        }
    }

    /// Error: other bodies hold all the memory for bodies.
    #[must_use]
    pub fn no_room() -> Self {
        Self::busy("too many long requests are being received; try again soon")
    }

    /// Error: a resource is temporarily in use.
    #[must_use]
    pub fn busy(message: impl Into<String>) -> Self {
        Self {
            retry_after_seconds: Some(SOON_SECONDS),
            ..Self::of_code(ErrorCode::QueueFull, message)
        }
    }

    #[must_use]
    pub fn unreadable() -> Self {
        Self::of_code(ErrorCode::Internal, "the body could not be read")
    }

    #[must_use]
    pub fn of_failure(failure: &Failure) -> Self {
        let retriable = failure.retriable;
        Self {
            retriable,
            is_an_end: true,
            ..Self::of_code(failure.code, failure.message.clone())
        }
    }

    #[must_use]
    pub fn of_code(code: ErrorCode, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(code.http_status());
        Self {
            retriable: code.is_retriable(),
            retry_after_seconds: (code == ErrorCode::WorkerUnhealthy).then_some(SOON_SECONDS),
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
            mistakes: Mistakes::default(),
            openai_code: None,
            retry_after_seconds: None,
            is_an_end: false,
        }
    }

    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    #[must_use]
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::Native => json!(self.native()),
            Dialect::OpenAi => json!(self.for_openai()),
            Dialect::Anthropic => json!(self.for_anthropic()),
            Dialect::Ollama => json!(self.for_ollama()),
        }
    }

    fn native(&self) -> NativeError<'_> {
        NativeError {
            code: Code(self.code),
            message: &self.message,
            retriable: self.retriable,
            errors: self.mistakes.listed(),
            more_errors: self.more_errors(),
        }
    }

    /// Error for `/v1`. With several mistakes, `param` is the first and the message has all.
    fn for_openai(&self) -> OpenAiError<'_> {
        let r#type = match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        };
        let lower_case = || self.code.to_lowercase().into();
        OpenAiError {
            error: OpenAiErrorDetails {
                message: self.openai_message(),
                r#type,
                param: self.mistakes.listed().first().map(|it| it.field.as_str()),
                code: self.openai_code.map_or_else(lower_case, Cow::Borrowed),
                retriable: self.retriable,
                more_errors: self.more_errors(),
            },
        }
    }

    pub(crate) fn for_anthropic(&self) -> AnthropicError {
        let message = self.openai_message();
        let message = match self.openai_code {
            Some("context_length_exceeded") => format!("{}: {message}", anthropic::TOO_LONG),
            _ => message,
        };
        AnthropicError::new(self.status, message, &self.mistakes)
    }

    pub(crate) fn for_ollama(&self) -> OllamaError {
        let error = self.openai_message();
        OllamaError { error }
    }

    fn more_errors(&self) -> Option<usize> {
        Some(self.mistakes.more()).filter(|more| *more > 0)
    }

    fn openai_message(&self) -> String {
        if self.mistakes.is_empty() || self.openai_code.is_some() {
            return self.message.clone();
        }
        let tell = |error: &FieldError| format!("{} {}", error.field, error.message);
        let mut told: Vec<String> = self.mistakes.listed().iter().map(tell).collect();
        if self.mistakes.more() > 0 {
            told.push(format!("and {} more", self.mistakes.more()));
        }
        told.join("; ")
    }

    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Delay before a retry.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_seconds
    }

    /// Whether it is the end of an admitted request.
    #[must_use]
    pub fn is_an_end(&self) -> bool {
        self.is_an_end
    }

    /// False after a timeout: a retry would take as long again, and clients retry three times by default.
    #[must_use]
    pub fn may_be_sent_again_at_once(&self) -> bool {
        self.retriable && self.status != StatusCode::GATEWAY_TIMEOUT
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let mut error = Self::of_code(refusal.code(), refusal.to_string());
        error.retry_after_seconds = refusal.retry_after().map(|after| after.as_secs().max(1));
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_apis_name_every_field() {
        let mut mistakes = Mistakes::default();
        mistakes.note(|| FieldError::new("top_p", Constraint::Range, "must be from 0 to 1"));
        mistakes.note(|| FieldError::new("tools", Constraint::Unsupported, "is not supported"));
        let error = ApiError::invalid(mistakes);
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
                "retriable": false,
            }})
        );
    }

    #[test]
    fn both_apis_list_the_first_mistakes_and_count_the_rest() {
        let mut mistakes = Mistakes::default();
        for _ in 0..2_000_000 {
            mistakes.note(|| FieldError::new("x".repeat(64), Constraint::Type, "is wrong"));
        }
        let error = ApiError::invalid(mistakes);
        let native = error.body(Dialect::Native);
        assert_eq!(native["message"], "2000000 fields are invalid");
        assert_eq!(native["errors"].as_array().unwrap().len(), 32);
        assert_eq!(native["more_errors"], 1_999_968);
        let openai = &error.body(Dialect::OpenAi)["error"];
        assert_eq!(openai["more_errors"], 1_999_968);
        let message = openai["message"].as_str().unwrap();
        assert!(message.ends_with("; and 1999968 more") && message.len() < 4096);
    }

    #[test]
    fn clients_of_openai_find_the_words_that_they_look_for() {
        let code = |error: &ApiError| error.body(Dialect::OpenAi)["error"]["code"].clone();
        assert_eq!(code(&ApiError::unauthorized()), "invalid_api_key");
        assert_eq!(code(&ApiError::no_such_model("x")), "model_not_found");
        let overflow = ApiError::context_length("messages", 9031, 8191, 8192);
        assert_eq!(code(&overflow), "context_length_exceeded");
        let error = &overflow.body(Dialect::OpenAi)["error"];
        let begin = "This model's maximum context length is 8192 tokens.";
        assert!(error["message"].as_str().unwrap().starts_with(begin));
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], "messages");
        assert_eq!(overflow.body(Dialect::Native)["code"], "INVALID_REQUEST");
    }

    #[test]
    fn whose_fault_it_is_follows_the_status() {
        for code in ErrorCode::VARIANTS.iter().copied() {
            let error = ApiError::of_code(code, "why");
            let kind = error.body(Dialect::OpenAi)["error"]["type"].clone();
            assert_eq!(
                kind == "server_error",
                error.status.is_server_error(),
                "{code}"
            );
        }
    }
}
