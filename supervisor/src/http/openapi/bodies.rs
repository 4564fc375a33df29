//! Response schemas. Objects may gain fields: a client must ignore unknown ones.

use super::{health, responses};
use serde_json::{Value, json};
use strum::VariantArray as _;
use utoipa::openapi::Type;
use worker_orcd_api::choices::{MAX_N, MAX_PROMPTS};
use worker_orcd_api::mistakes::{Constraint, LISTED};
use worker_orcd_api::openai::logprobs::IMPOSSIBLE;
use worker_orcd_api::schema::{
    Shape, any_of, boolean, count, integer, json_text, list, list_of, map, named, null, number,
    object, object_with, of_type, or_null, text, values,
};
use worker_orcd_ipc::MAX_TOP_LOGPROBS;
use worker_orcd_requests::StopReason;
use worker_orcd_requests::error_code::{ErrorCode, OTHER_REFUSALS};

pub(super) type Named = (&'static str, fn() -> Shape);

/// Schemas with names.
pub(super) const NAMED: [Named; 19] = [
    ("Error", native_error),
    ("OpenAiError", openai_error),
    ("ExecuteStarted", started),
    ("ExecuteToken", token),
    ("ExecuteMetrics", metrics),
    ("ExecuteEnd", end),
    ("ExecuteError", failure),
    ("ChatCompletion", chat_completion),
    ("ChatCompletionChunk", chat_chunk),
    ("Completion", completion),
    ("CompletionChunk", completion_chunk),
    ("Embeddings", embeddings),
    ("Ranking", ranking),
    ("Usage", usage),
    ("Response", responses::response),
    ("ResponseItem", responses::item),
    ("ResponseEvent", responses::data),
    ("Model", model),
    ("Health", health::health),
];

/// Response of `/tokenize`.
pub(super) fn tokens() -> Shape {
    let piece = any_of([text(), list_of(count())]);
    let token = any_of([count(), object([("id", count()), ("piece", piece)])]);
    object([
        ("tokens", list_of(token)),
        ("count", count()),
        ("max_model_len", count()),
        ("token_strs", or_null(list_of(text()))),
    ])
}

/// One event of a job. A stream is described by the schema of its events.
pub(super) fn event() -> Shape {
    let event = |name: &str, schema: &str| {
        let data = [("event", values([name])), ("data", json_text(schema))];
        object_with(data, [("id", text())])
    };
    any_of([
        event("started", "ExecuteStarted"),
        event("token", "ExecuteToken"),
        event("metrics", "ExecuteMetrics"),
        event("end", "ExecuteEnd"),
        event("error", "ExecuteError"),
    ])
}

/// One event of a streamed answer, which has no name.
pub(super) fn chunk_event(chunk: &str) -> Shape {
    let data = any_of([json_text(chunk), values(["[DONE]"])]);
    object([("data", data)])
}

fn codes() -> Shape {
    let of_requests = ErrorCode::VARIANTS.iter().map(|code| code.as_str());
    values(of_requests.chain(OTHER_REFUSALS))
}

fn native_error() -> Shape {
    let mistake = object([
        ("field", text()),
        (
            "constraint",
            values(Constraint::VARIANTS.iter().map(|it| json!(it))),
        ),
        ("message", text()),
    ]);
    object_with(
        [
            ("code", codes()),
            ("message", text()),
            ("retriable", boolean()),
        ],
        [
            ("errors", list(mistake, &(1..=LISTED))),
            ("more_errors", count()),
        ],
    )
}

fn openai_error() -> Shape {
    let error = object_with(
        [
            ("message", text()),
            ("type", text()),
            ("param", or_null(text())),
            ("code", text()),
            ("retriable", boolean()),
        ],
        [("more_errors", count())],
    );
    object([("error", error)])
}

fn started() -> Shape {
    object([
        ("job_id", text()),
        ("model", text()),
        ("seed", count()),
        ("started_at", text()),
    ])
}

fn token() -> Shape {
    object([("t", text()), ("i", count())])
}

fn metrics() -> Shape {
    object([
        ("tokens_out", count()),
        ("decode_time_ms", count()),
        ("vram_bytes", or_null(count())),
    ])
}

fn end() -> Shape {
    object_with(
        [
            ("tokens_out", count()),
            ("tokens_in", count()),
            ("decode_time_ms", count()),
            (
                "stop_reason",
                values(StopReason::VARIANTS.iter().map(|it| it.name())),
            ),
            ("recoveries", count()),
        ],
        [("stop_sequence_matched", text())],
    )
}

fn failure() -> Shape {
    object([
        ("code", codes()),
        ("message", text()),
        ("retriable", boolean()),
    ])
}

const MOST_CHOICES: u64 = MAX_PROMPTS as u64 * MAX_N as u64;
const REASONS: &[&str] = &["stop", "length"];
const CHAT_REASONS: &[&str] = &["stop", "length", "tool_calls"];

fn chat_completion() -> Shape {
    let message = object_with(
        [
            ("role", values(["assistant"])),
            ("content", or_null(text())),
            ("refusal", null()),
        ],
        [
            ("reasoning_content", text()),
            ("reasoning", text()),
            ("tool_calls", list_of(called(&["id", "type", "function"]))),
        ],
    );
    let choice = choice(("message", message), chat_logprobs(), false, CHAT_REASONS);
    answer("chat.completion", choice, [("usage", named("Usage"))], [])
}

fn completion() -> Shape {
    let choice = choice(("text", text()), completion_logprobs(), false, REASONS);
    answer("text_completion", choice, [("usage", named("Usage"))], [])
}

/// A chunk may have an error instead of choices.
fn chat_chunk() -> Shape {
    let delta = object_with(
        [],
        [
            ("role", values(["assistant"])),
            ("content", or_null(text())),
            ("reasoning_content", text()),
            ("reasoning", text()),
            ("tool_calls", list_of(called(&["index", "function"]))),
        ],
    );
    let choice = choice(("delta", delta), chat_logprobs(), true, CHAT_REASONS);
    chunk("chat.completion.chunk", choice)
}

/// Tool call of a message or of a delta.
fn called(required: &[&str]) -> Shape {
    let function = object_with([("arguments", text())], [("name", text())]);
    let fields = [
        ("index", count()),
        ("id", text()),
        ("type", values(["function"])),
        ("function", function),
    ];
    let (required, optional): (Vec<_>, Vec<_>) = fields
        .into_iter()
        .partition(|(name, _)| required.contains(name));
    object_with(required, optional)
}

fn completion_chunk() -> Shape {
    let choice = choice(("text", text()), completion_logprobs(), true, REASONS);
    chunk("text_completion", choice)
}

fn chunk(object: &str, choice: Shape) -> Shape {
    let usage = [("usage", or_null(named("Usage")))];
    any_of([answer(object, choice, [], usage), named("OpenAiError")])
}

fn answer<const M: usize, const N: usize>(
    object: &str,
    choice: Shape,
    more: [(&'static str, Shape); M],
    optional: [(&'static str, Shape); N],
) -> Shape {
    let fields = [
        ("id", text()),
        ("object", values([object])),
        ("created", count()),
        ("model", text()),
        ("system_fingerprint", text()),
        ("choices", list(choice, &(0..=MOST_CHOICES as usize))),
    ];
    object_with(fields.into_iter().chain(more), optional)
}

/// Log probabilities of the tokens that begin in this text.
fn chat_logprobs() -> Shape {
    object([("content", chat_tokens()), ("refusal", null())])
}

/// List of log probabilities.
pub(super) fn chat_tokens() -> Shape {
    let name = || {
        [
            ("token", text()),
            ("logprob", logprob()),
            ("bytes", list_of(byte())),
        ]
    };
    let most_likely = list(object(name()), &(0..=usize::from(MAX_TOP_LOGPROBS)));
    let token = object(name().into_iter().chain([("top_logprobs", most_likely)]));
    list_of(token)
}

fn completion_logprobs() -> Shape {
    let most_likely = map(text(), logprob(), usize::from(MAX_TOP_LOGPROBS) + 1, &[]);
    object([
        ("tokens", list_of(text())),
        ("token_logprobs", list_of(or_null(logprob()))),
        ("top_logprobs", list_of(or_null(most_likely))),
        ("text_offset", list_of(count())),
    ])
}

fn logprob() -> Shape {
    number(&(f64::from(IMPOSSIBLE)..=0.0))
}

fn byte() -> Shape {
    integer(&(0..=255))
}

fn choice(
    said: (&'static str, Shape),
    logprobs: Shape,
    may_go_on: bool,
    reasons: &[&'static str],
) -> Shape {
    let reasons = values(reasons.iter().copied());
    object([
        ("index", integer(&(0..=MOST_CHOICES - 1))),
        said,
        ("logprobs", or_null(logprobs)),
        (
            "finish_reason",
            if may_go_on { or_null(reasons) } else { reasons },
        ),
    ])
}

fn embeddings() -> Shape {
    let numbers = list_of(number(&(-1.0..=1.0)));
    let datum = object([
        ("object", values(["embedding"])),
        ("index", count()),
        ("embedding", any_of([numbers, text()])),
    ]);
    let usage = object([("prompt_tokens", count()), ("total_tokens", count())]);
    object([
        ("object", values(["list"])),
        ("data", list_of(datum)),
        ("model", text()),
        ("usage", usage),
    ])
}

fn ranking() -> Shape {
    let result = object_with(
        [
            ("index", count()),
            ("relevance_score", number(&(0.0..=1.0))),
        ],
        [("document", object([("text", text())]))],
    );
    let usage = object([("prompt_tokens", count()), ("total_tokens", count())]);
    object([
        ("id", text()),
        ("object", values(["list"])),
        ("model", text()),
        ("results", list_of(result)),
        ("usage", usage),
    ])
}

fn usage() -> Shape {
    let details = object([("cached_tokens", count())]);
    object_with(
        [
            ("prompt_tokens", count()),
            ("completion_tokens", count()),
            ("total_tokens", count()),
        ],
        // Known at the end.
        [("prompt_tokens_details", details)],
    )
}

fn model() -> Shape {
    object_with(
        [
            ("id", text()),
            ("object", values(["model"])),
            ("created", count()),
            ("owned_by", text()),
        ],
        [("max_model_len", count())],
    )
}

pub(super) fn models() -> Shape {
    object([
        ("object", values(["list"])),
        ("data", list_of(named("Model"))),
    ])
}

pub(super) fn root() -> Shape {
    object([
        ("name", text()),
        ("version", text()),
        ("model", text()),
        ("routes", list_of(text())),
        ("openai_base_url", text()),
        ("status_page", text()),
    ])
}

pub(super) fn crashes() -> Shape {
    let known = |kind: Type| or_null(of_type(kind));
    let summary = object([
        ("id", text()),
        ("at", text()),
        ("label", text()),
        ("cause", text()),
        ("signal", known(Type::Integer)),
        ("exit_code", known(Type::Integer)),
        ("device", known(Type::String)),
        ("device_number", known(Type::Integer)),
        ("generation", count()),
        ("pid", known(Type::Integer)),
        ("requests", count()),
        ("ready_ms", known(Type::Number)),
        ("first_token_ms", known(Type::Number)),
    ]);
    object([("crashes", list_of(summary))])
}

pub(super) fn words<const N: usize>(words: [&'static str; N]) -> Shape {
    values(words.map(Value::from))
}
