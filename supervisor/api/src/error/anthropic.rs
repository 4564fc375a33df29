//! Errors in the Messages API's form: `{"type": "error", "error": {"type", "message"}}`.
//!
//! The status code stays the worker's. Anthropic's 529 is sent as 503: proxies know that code, and Anthropic's clients
//! retry after either.

use crate::answer::absent_not_null;
use crate::mistakes::Mistakes;
use crate::string_enums;
use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

/// Text by which clients detect that the conversation must be shortened.
pub(super) const TOO_LONG: &str = "prompt is too long";

/// Field for a conversation that the server stores. Anthropic's tool runners send it first, and continue without it
/// after an error that it is not supported.
pub(crate) const THREAD: &str = "thread";

string_enums! {
    ErrorType: Error = "error";
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AnthropicError {
    r#type: ErrorType,
    pub(crate) error: ErrorDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorDetails")]
#[schemars(transform = absent_not_null)]
pub struct ErrorDetails {
    r#type: &'static str,
    message: String,
    /// Only for a field that Anthropic's tool runners try first.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Unsupported>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Unsupported {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

impl AnthropicError {
    pub(super) fn new(status: StatusCode, message: String, mistakes: &Mistakes) -> Self {
        let is_thread = mistakes.listed().iter().any(|it| it.field == THREAD);
        Self {
            r#type: ErrorType::Error,
            error: ErrorDetails {
                r#type: kind(status),
                message,
                details: is_thread.then_some(Unsupported {
                    error_code: "thread_unsupported_request",
                    unsupported: [THREAD],
                }),
            },
        }
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use crate::error::{ApiError, Dialect};
    use crate::mistakes::{Constraint, FieldError, Mistakes};
    use strum::VariantArray as _;
    use worker_orcd_requests::error_code::ErrorCode;

    fn kind_and_message(error: &ApiError) -> (String, String) {
        let body = error.body(Dialect::Anthropic);
        assert_eq!(body["type"], "error");
        let word = |key: &str| body["error"][key].as_str().unwrap().to_owned();
        (word("type"), word("message"))
    }

    #[test]
    fn every_mistake_is_told_in_one_sentence() {
        let mut mistakes = Mistakes::default();
        mistakes.note(|| FieldError::new("max_tokens", Constraint::Required, "is required"));
        mistakes.note(|| FieldError::new("top_p", Constraint::Range, "must be from 0 to 1"));
        let (kind, message) = kind_and_message(&ApiError::invalid(mistakes));
        assert_eq!(kind, "invalid_request_error");
        assert_eq!(message, "max_tokens is required; top_p must be from 0 to 1");
    }

    #[test]
    fn clients_are_told_that_a_conversation_is_not_kept_in_the_words_that_they_read() {
        let refused = |field: &'static str| {
            let mistake = FieldError::new(field, Constraint::Unsupported, "is not supported");
            ApiError::invalid(mistake.into()).body(Dialect::Anthropic)
        };
        let details = &refused("thread")["error"]["details"];
        assert_eq!(details["error_code"], "thread_unsupported_request");
        assert_eq!(details["unsupported"], serde_json::json!(["thread"]));
        assert!(refused("container")["error"].get("details").is_none());
    }

    #[test]
    fn clients_find_the_words_that_they_look_for() {
        let overflow = ApiError::context_length("messages", 9031, 8191, 8192);
        let (kind, message) = kind_and_message(&overflow);
        assert_eq!(kind, "invalid_request_error");
        assert!(message.starts_with("prompt is too long: "), "{message}");
        assert_eq!(
            kind_and_message(&ApiError::unauthorized()).0,
            "authentication_error"
        );
        assert_eq!(
            kind_and_message(&ApiError::no_such_model("x")).0,
            "not_found_error"
        );
        assert_eq!(kind_and_message(&ApiError::no_room()).0, "rate_limit_error");
        assert_eq!(
            kind_and_message(&ApiError::too_large(1)).0,
            "request_too_large"
        );
    }

    #[test]
    fn whose_fault_it_is_follows_the_status() {
        let of_the_worker = ["api_error", "overloaded_error", "timeout_error"];
        for code in ErrorCode::VARIANTS.iter().copied() {
            let error = ApiError::of_code(code, "why");
            let (kind, _) = kind_and_message(&error);
            let is_ours = of_the_worker.contains(&kind.as_str());
            assert_eq!(is_ours, error.status().is_server_error(), "{code}: {kind}");
        }
    }
}
