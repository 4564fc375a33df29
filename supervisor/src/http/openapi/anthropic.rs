//! Response schemas of the Messages API.

use super::answers::{content, json};
use super::bodies::Named;
use utoipa::openapi::{ResponseBuilder, Type};
use worker_orcd_api::schema::{
    Shape, count, json_text, list_of, named, object, object_with, of_type, or_null, text, values,
};

/// Schemas with names.
pub(super) const NAMED: [Named; 3] = [
    ("Message", message),
    ("MessageEvent", event),
    ("AnthropicError", error),
];

const STOP_REASONS: [&str; 4] = ["end_turn", "max_tokens", "stop_sequence", "tool_use"];

/// Answer, whole or streamed.
pub(super) fn answered() -> ResponseBuilder {
    let event = object_with(
        [
            ("event", values(EVENTS)),
            ("data", json_text("MessageEvent")),
        ],
        [("id", text())],
    );
    json("The answer, whole or streamed", named("Message"))
        .content("text/event-stream", content(event))
}

const EVENTS: [&str; 8] = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
    "error",
];

fn error() -> Shape {
    let told = object([("type", text()), ("message", text())]);
    object([("type", values(["error"])), ("error", told)])
}

fn usage() -> Shape {
    object([
        ("input_tokens", count()),
        ("cache_creation_input_tokens", count()),
        ("cache_read_input_tokens", count()),
        ("output_tokens", count()),
    ])
}

fn block() -> Shape {
    object_with(
        [("type", values(["text", "thinking", "tool_use"]))],
        [
            ("text", text()),
            ("thinking", text()),
            ("signature", text()),
            ("id", text()),
            ("name", text()),
            ("input", of_type(Type::Object)),
        ],
    )
}

fn message() -> Shape {
    object([
        ("id", text()),
        ("type", values(["message"])),
        ("role", values(["assistant"])),
        ("model", text()),
        ("content", list_of(block())),
        ("stop_reason", or_null(values(STOP_REASONS))),
        ("stop_sequence", or_null(text())),
        ("usage", usage()),
    ])
}

/// Data of an event. Its `type` is the event's name.
fn event() -> Shape {
    let delta = object_with(
        [],
        [
            ("type", text()),
            ("text", text()),
            ("thinking", text()),
            ("signature", text()),
            ("partial_json", text()),
            ("stop_reason", or_null(values(STOP_REASONS))),
            ("stop_sequence", or_null(text())),
        ],
    );
    object_with(
        [("type", values(EVENTS))],
        [
            ("message", named("Message")),
            ("index", count()),
            ("content_block", block()),
            ("delta", delta),
            ("usage", usage()),
            ("error", object([("type", text()), ("message", text())])),
        ],
    )
}
