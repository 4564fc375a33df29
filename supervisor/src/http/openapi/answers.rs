//! Responses by status: success, and reasons for refusals.

use crate::http::PROBES;
use crate::http::error::Dialect;
use schemars::JsonSchema;
use utoipa::openapi::path::OperationBuilder;
use utoipa::openapi::{ContentBuilder, Header, ResponseBuilder};
use worker_orcd_api::answer;
use worker_orcd_api::error::anthropic::AnthropicError;
use worker_orcd_api::error::{NativeError, OllamaError, OpenAiError};
use worker_orcd_api::schema::{Shape, count};

/// Reason of an error response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub(super) enum Why {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    BodyTimeout,
    DuplicateJob,
    TooLarge,
    NotJson,
    Quarantined,
    Full,
    Cancelled,
    Failed,
    Unhealthy,
    TimedOut,
}

/// Refusals of any request with a body.
pub(super) const OF_BODIES: &[Why] = &[
    Why::Invalid,
    Why::BodyTimeout,
    Why::TooLarge,
    Why::NotJson,
    Why::Full,
    Why::Failed,
];

/// Refusals of a generation request after it was read.
pub(super) const OF_GENERATION: &[Why] =
    &[Why::Quarantined, Why::Full, Why::Failed, Why::Unhealthy];

/// Failures of a generation request before its first text.
pub(super) const ENDS: &[Why] = &[Why::Cancelled, Why::Failed, Why::Unhealthy, Why::TimedOut];

impl Why {
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::BodyTimeout => 408,
            Self::DuplicateJob => 409,
            Self::TooLarge => 413,
            Self::NotJson => 415,
            Self::Quarantined => 422,
            Self::Full => 429,
            Self::Cancelled => 499,
            Self::Failed => 500,
            Self::Unhealthy => 503,
            Self::TimedOut => 504,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Invalid => "The request is wrong. Every mistake is named",
            Self::Unauthorized => "A key is needed, and the one given is not known",
            Self::Forbidden => {
                "This caller may not do that, or used a name that this worker does not answer to"
            }
            Self::NotFound => "There is no such thing here",
            Self::BodyTimeout => "The body did not arrive in time",
            Self::DuplicateJob => "A job of this id is running",
            Self::TooLarge => "The body is too large",
            Self::NotJson => "The body was not sent as JSON, or was encoded",
            Self::Quarantined => "This very request ended children, and is refused for a while",
            Self::Full => "Too much is under way",
            Self::Cancelled => "The job was cancelled",
            Self::Failed => "The request failed, on the device or in the worker",
            Self::Unhealthy => "No model is loaded, or the worker takes no new work",
            Self::TimedOut => "The request took longer than it may",
        }
    }
}

/// Operation with these refusals, in the format of an API.
pub(super) fn refused(
    operation: OperationBuilder,
    dialect: Dialect,
    whys: &[Why],
) -> OperationBuilder {
    whys.iter().fold(operation, |operation, why| {
        let words = why.words();
        let response = match dialect {
            Dialect::Native => json::<NativeError<'_>>(words),
            Dialect::OpenAi => json::<OpenAiError<'_>>(words),
            Dialect::Anthropic => json::<AnthropicError>(words),
            Dialect::Ollama => json::<OllamaError>(words),
        };
        let response = match why {
            Why::Full | Why::Unhealthy => response.header("Retry-After", retry_after()),
            Why::Unauthorized => response.header("WWW-Authenticate", Header::default()),
            _ => response,
        };
        operation.response(why.status().to_string(), response)
    })
}

fn retry_after() -> Header {
    Header::builder()
        .schema(Some(count()))
        .description(Some("Seconds, where they are known"))
        .build()
}

/// Refusals of every route.
pub(super) fn of_every_route(path: &str, needs_key: bool) -> Vec<Why> {
    let mut whys = vec![Why::Invalid, Why::Forbidden];
    if needs_key {
        whys.push(Why::Unauthorized);
    }
    if !PROBES.contains(&path) {
        whys.push(Why::Full);
    }
    whys
}

pub(super) fn json<T: JsonSchema>(words: &str) -> ResponseBuilder {
    json_of(words, answer::of::<T>())
}

pub(super) fn json_of(words: &str, shape: Shape) -> ResponseBuilder {
    of_type(words, "application/json", shape)
}

pub(super) fn of_type(words: &str, content_type: &str, shape: Shape) -> ResponseBuilder {
    ResponseBuilder::new()
        .description(words)
        .content(content_type, content(shape))
}

pub(super) fn content(shape: Shape) -> utoipa::openapi::Content {
    ContentBuilder::new().schema(Some(shape)).build()
}
