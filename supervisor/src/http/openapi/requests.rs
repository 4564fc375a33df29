//! Request bodies, as their readers describe them, with working examples.

use crate::http::App;
use crate::http::{embeddings, rerank};
use serde_json::{Value, json};
use utoipa::openapi::example::Example;
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::{ContentBuilder, Required};
use worker_orcd_api::anthropic;
use worker_orcd_api::embeddings::read as of_embeddings;
use worker_orcd_api::execute;
use worker_orcd_api::fields::{Fields, Names};
use worker_orcd_api::openai::{Kind, request};
use worker_orcd_api::request::Read;
use worker_orcd_api::rerank::read as of_rerank;
use worker_orcd_api::responses;
use worker_orcd_api::schema::Shape;
use worker_orcd_api::texts;

pub(super) fn execute(app: &App) -> RequestBody {
    let tokens = few_tokens(app);
    body(
        described(app, execute::NAMES, execute::read_request),
        &[
            (
                "prompt",
                json!({
                    "job_id": "a-1", "prompt": "Once upon a time", "max_tokens": tokens,
                    "temperature": 0.8, "seed": 7,
                }),
            ),
            (
                "messages",
                json!({
                    "job_id": "a-2", "max_tokens": tokens, "metrics": true, "stop": ["."],
                    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
                }),
            ),
        ],
    )
}

pub(super) fn cancel() -> RequestBody {
    let read = |fields: Fields<'_>| drop(execute::read_cancellation(fields));
    let shape = Fields::described(execute::CANCEL_NAMES, read).into_shape();
    body(shape, &[("job", json!({"job_id": "a-1"}))])
}

pub(super) fn tokenize(app: &App) -> RequestBody {
    let shape = described(app, texts::read::TOKENIZE_NAMES, texts::read::read_tokenize);
    let messages = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    body(
        shape,
        &[
            (
                "text",
                json!({"content": "Once upon a time", "with_pieces": true}),
            ),
            (
                "conversation",
                json!({"messages": messages, "return_token_strs": true}),
            ),
        ],
    )
}

pub(super) fn detokenize(app: &App) -> RequestBody {
    let shape = described(app, texts::read::TOKENS_NAMES, texts::read::read_tokens);
    body(shape, &[("tokens", json!({"tokens": [1, 2, 3]}))])
}

pub(super) fn apply_template(app: &App) -> RequestBody {
    let shape = described(app, texts::read::TEMPLATE_NAMES, texts::read::read_template);
    let messages = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    body(shape, &[("conversation", json!({"messages": messages}))])
}

pub(super) fn messages(app: &App) -> RequestBody {
    let shape = described(app, anthropic::request::NAMES, anthropic::request::read);
    let (messages, tokens) = (asked(), few_tokens(app));
    let whole = json!({
        "model": app.model_id, "max_tokens": tokens, "messages": messages,
        "system": "Answer in one sentence.",
    });
    let streamed = json!({
        "max_tokens": tokens, "messages": messages, "stream": true, "temperature": 0.5,
        "stop_sequences": ["."],
    });
    body(shape, &[("whole", whole), ("streamed", streamed)])
}

pub(super) fn count_tokens(app: &App) -> RequestBody {
    let read = anthropic::request::read_counted;
    let shape = described(app, anthropic::request::COUNT_NAMES, read);
    body(shape, &[("conversation", json!({"messages": asked()}))])
}

fn asked() -> Value {
    let block = json!({"type": "text", "text": "Why is the sky blue?"});
    json!([{"role": "user", "content": [block]}])
}

/// Has no example if the model does not support embeddings.
pub(super) fn embeddings(app: &App) -> RequestBody {
    let shape = described(app, of_embeddings::NAMES, of_embeddings::read_embeddings);
    let examples = [
        ("text", json!({"model": app.model_id, "input": "A river"})),
        (
            "texts",
            json!({"input": ["A river", "A stream"], "encoding_format": "base64", "dimensions": 1}),
        ),
    ];
    let of_file = app.engine.model().and_then(|it| it.facts.pooling_type);
    match embeddings::pooling(app.pooling, of_file) {
        Ok(_) => body(shape, &examples),
        Err(_) => body(shape, &[]),
    }
}

/// Has no example if the model is no reranker.
pub(super) fn rerank(app: &App) -> RequestBody {
    let shape = described(app, of_rerank::NAMES, of_rerank::read_rerank);
    let documents = json!(["It is wide.", {"text": "It is blue."}]);
    let example = json!({
        "model": app.model_id, "query": "How wide?", "documents": documents, "top_n": 1,
        "return_documents": true,
    });
    let model = app.engine.model();
    match model.as_deref().map(rerank::template) {
        Some(Ok(_)) => body(shape, &[("documents", example)]),
        Some(Err(_)) | None => body(shape, &[]),
    }
}

pub(super) fn described<T>(app: &App, names: Names, read: impl Read<T>) -> Shape {
    let model = app.engine.model();
    let read = |fields: Fields<'_>| drop(app.read_named(fields, model.as_deref(), &read));
    Fields::described(names, read).into_shape()
}

pub(super) fn openai(app: &App, kind: Kind) -> RequestBody {
    let shape = described(app, request::names(kind), request::read_of(kind));
    match kind {
        Kind::Chat => body(shape, &chats(app)),
        Kind::Completion => body(shape, &completions(app)),
    }
}

pub(super) fn responses(app: &App) -> RequestBody {
    let tokens = few_tokens(app);
    let shape = described(app, responses::request::NAMES, responses::request::read);
    let items = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Why is the sky blue?"}]},
    ]);
    body(
        shape,
        &[
            (
                "whole",
                json!({"model": app.model_id, "input": "Why is the sky blue?", "max_output_tokens": tokens}),
            ),
            (
                "streamed",
                json!({
                    "instructions": "Answer in one sentence.", "input": items,
                    "max_output_tokens": tokens, "stream": true, "store": false,
                }),
            ),
        ],
    )
}

fn chats(app: &App) -> [(&'static str, Value); 2] {
    let tokens = few_tokens(app);
    let messages = json!([
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": [{"type": "text", "text": "Why is the sky blue?"}]},
    ]);
    [
        (
            "whole",
            json!({"model": app.model_id, "messages": messages, "max_completion_tokens": tokens}),
        ),
        (
            "streamed",
            json!({
                "messages": messages, "max_tokens": tokens, "stream": true,
                "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2,
            }),
        ),
    ]
}

fn completions(app: &App) -> [(&'static str, Value); 2] {
    let (prompt, tokens) = ("Once upon a time", few_tokens(app));
    [
        (
            "whole",
            json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2}),
        ),
        (
            "streamed",
            json!({"prompt": prompt, "max_tokens": tokens, "stream": true, "seed": 7}),
        ),
    ]
}

/// Tokens of an example's answer, within the operator's limit.
pub(super) fn few_tokens(app: &App) -> u32 {
    const FEW: u32 = 8;
    app.limits.max_tokens_out.map_or(FEW, |most| most.min(FEW))
}

pub(super) fn body(shape: Shape, examples: &[(&str, Value)]) -> RequestBody {
    let examples = examples.iter().map(|(name, value)| {
        let example = Example::builder().value(Some(value.clone()));
        (*name, example)
    });
    let content = ContentBuilder::new()
        .schema(Some(shape))
        .examples_from_iter(examples)
        .build();
    RequestBodyBuilder::new()
        .content("application/json", content)
        .required(Some(Required::True))
        .build()
}
