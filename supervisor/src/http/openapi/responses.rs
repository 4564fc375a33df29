//! Response schemas of `/v1/responses`. Items are one shape, and events are one shape: the `type` determines the
//! fields.

use super::bodies::chat_tokens;
use utoipa::openapi::Type;
use worker_orcd_api::schema::{
    Shape, boolean, count, json_text, list, list_of, named, null, number, object, object_with,
    of_type, or_null, text, values,
};

/// Every event of a stream.
const NAMES: [&str; 15] = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
    "response.incomplete",
    "response.failed",
];

/// One event. A stream is described by the schema of its events.
pub(super) fn event() -> Shape {
    object([
        ("event", values(NAMES)),
        ("data", json_text("ResponseEvent")),
    ])
}

pub(super) fn data() -> Shape {
    object_with(
        [("type", values(NAMES)), ("sequence_number", count())],
        [
            ("response", named("Response")),
            ("item", named("ResponseItem")),
            ("item_id", text()),
            ("output_index", count()),
            ("content_index", values([0])),
            ("part", part()),
            ("delta", text()),
            ("text", text()),
            ("name", text()),
            ("arguments", text()),
            ("logprobs", chat_tokens()),
        ],
    )
}

pub(super) fn response() -> Shape {
    let error = object([("code", values(["server_error"])), ("message", text())]);
    let why = object([("reason", values(["max_output_tokens"]))]);
    let format = object([("type", values(["text", "json_object", "json_schema"]))]);
    let statuses = ["in_progress", "completed", "incomplete", "failed"];
    object([
        ("id", text()),
        ("object", values(["response"])),
        ("created_at", count()),
        ("status", values(statuses)),
        ("background", values([false])),
        ("error", or_null(error)),
        ("incomplete_details", or_null(why)),
        ("max_output_tokens", count()),
        ("metadata", of_type(Type::Object)),
        ("model", text()),
        ("output", list_of(named("ResponseItem"))),
        ("parallel_tool_calls", boolean()),
        ("previous_response_id", null()),
        (
            "reasoning",
            object([("effort", or_null(text())), ("summary", null())]),
        ),
        ("store", values([false])),
        ("temperature", number(&(0.0..=2.0))),
        (
            "text",
            object([("format", format), ("verbosity", or_null(text()))]),
        ),
        ("tool_choice", worker_orcd_api::schema::anything()),
        ("tools", nothing()),
        ("top_logprobs", count()),
        ("top_p", number(&(0.0..=1.0))),
        ("truncation", values(["disabled"])),
        ("usage", or_null(usage())),
    ])
}

/// Reasoning, text or tool call.
pub(super) fn item() -> Shape {
    object_with(
        [
            ("id", text()),
            ("type", values(["reasoning", "message", "function_call"])),
            ("status", values(["in_progress", "completed", "incomplete"])),
        ],
        [
            ("role", values(["assistant"])),
            ("content", list(part(), &(0..=1))),
            ("summary", nothing()),
            ("call_id", text()),
            ("name", text()),
            ("arguments", text()),
        ],
    )
}

fn part() -> Shape {
    object_with(
        [
            ("type", values(["reasoning_text", "output_text"])),
            ("text", text()),
        ],
        [("annotations", nothing()), ("logprobs", chat_tokens())],
    )
}

fn usage() -> Shape {
    object([
        ("input_tokens", count()),
        (
            "input_tokens_details",
            object([("cached_tokens", count()), ("cache_write_tokens", count())]),
        ),
        ("output_tokens", count()),
        (
            "output_tokens_details",
            object([("reasoning_tokens", count())]),
        ),
        ("total_tokens", count()),
    ])
}

/// A list that is always empty.
fn nothing() -> Shape {
    list(text(), &(0..=0))
}
