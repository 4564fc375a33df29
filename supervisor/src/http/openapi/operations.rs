//! Operations of all routes, with their responses.

use super::answers::{ENDS, OF_GENERATION, Why, content, json, json_of, of_type};
use super::described::Described;
use crate::http::App;
use crate::http::crashes::Crashes;
use crate::http::embeddings::pooling;
use crate::http::execute::Accepted;
use crate::http::health::Health;
use crate::http::ollama::models as of_ollama;
use crate::http::openai::models::{Model, Models};
use crate::http::rerank::template;
use crate::http::routes::Root;
use crate::metrics::exposition::Format;
use schemars::JsonSchema;
use serde_json::{Map, Value, json};
use strum::VariantNames as _;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{Required, ResponseBuilder, Type};
use worker_orcd_api::answer;
use worker_orcd_api::anthropic::answer::{Message, MessageEvent, MessageTokens};
use worker_orcd_api::anthropic::request::{COUNTED, MESSAGES};
use worker_orcd_api::embeddings::read::EMBEDDINGS;
use worker_orcd_api::embeddings::written::Embeddings;
use worker_orcd_api::error::anthropic::AnthropicError;
use worker_orcd_api::error::{NativeError, OllamaError, OpenAiError};
use worker_orcd_api::execute::events::ExecuteEvent;
use worker_orcd_api::execute::{CANCEL, EXECUTE};
use worker_orcd_api::ollama::answer::Line;
use worker_orcd_api::ollama::embed::Embedded;
use worker_orcd_api::openai::Kind;
use worker_orcd_api::openai::request::reader;
use worker_orcd_api::openai::stream::{ChatChunk, TextChunk};
use worker_orcd_api::openai::whole::{ChatAnswer, TextAnswer};
use worker_orcd_api::rerank::read::RERANK;
use worker_orcd_api::rerank::written::Ranking;
use worker_orcd_api::responses::answer::{Response, ResponseTokens};
use worker_orcd_api::responses::events::{EventName, ResponseEvent};
use worker_orcd_api::responses::request::RESPONSE;
use worker_orcd_api::schema::{self, Shape, object, text, text_of};
use worker_orcd_api::texts::read::{TEMPLATE, TOKENIZE, TOKENS};
use worker_orcd_api::texts::written::{DetokenizeAnswer, Templated, TokenizeAnswer};

const EVENTS: &str = "text/event-stream";

const OF_EXECUTE: &str = "One job, streamed: `started`, `token` for each piece of text, `metrics` where \
    asked for, then one `end` or `error`. Comments in between say that somebody is there.";

const STREAM: &str = "With `stream`, chunks and then `data: [DONE]`. A stream that fails ends with an \
    error in place of a chunk, and without `[DONE]`. The shape of a stream is that of each event.";

const OF_MESSAGES: &str = "With `stream`, named events from `message_start` to `message_stop`; one that fails ends \
    with `error`. The shape of a stream is that of each event.";

const RESPONSES: &str = "Without a memory: what refers to an earlier response is refused. With `stream`, named events, \
    of which the last is `response.completed`, `response.incomplete` or `response.failed`.";

pub fn root(_: &App) -> Described {
    Described::new("root", "worker", "What there is to ask")
        .answers::<Root<'_>>("Name, version and routes; the status page to who prefers HTML")
}

pub fn document(_: &App) -> Described {
    let parts = ["info", "paths", "components"].map(|part| (part, schema::of_type(Type::Object)));
    let document = object(
        [("openapi", text())]
            .into_iter()
            .chain(parts)
            .chain([("tags", schema::list_of(schema::of_type(Type::Object)))]),
    );
    Described::new("openapi", "worker", "This document")
        .responds("200", json_of("An OpenAPI document", document))
}

pub fn tokenize(app: &App) -> Described {
    let summary = "The tokens of a text or of a conversation";
    let text = json!({"content": "Once upon a time", "with_pieces": true});
    let conversation = json!({"messages": question(), "return_token_strs": true});
    Described::new("tokenize", "text", summary)
        .takes(
            app,
            &TOKENIZE,
            &[("text", text), ("conversation", conversation)],
        )
        .needs_model()
        .answers::<TokenizeAnswer>("The tokens")
}

pub fn detokenize(app: &App) -> Described {
    let tokens = json!({"tokens": [1, 2, 3]});
    Described::new("detokenize", "text", "The text of tokens")
        .takes(app, &TOKENS, &[("tokens", tokens)])
        .needs_model()
        .answers::<DetokenizeAnswer>("The text, under both names")
}

pub fn apply_template(app: &App) -> Described {
    let summary = "The prompt that a conversation becomes";
    let messages = json!({"messages": question()});
    Described::new("apply_template", "text", summary)
        .takes(app, &TEMPLATE, &[("conversation", messages)])
        .needs_model()
        .answers::<Templated>("The prompt")
}

pub fn execute(app: &App) -> Described {
    let tokens = few_tokens(app);
    let prompt = json!({
        "job_id": "a-1", "prompt": "Once upon a time", "max_tokens": tokens,
        "temperature": 0.8, "seed": 7,
    });
    let messages = json!({
        "job_id": "a-2", "max_tokens": tokens, "metrics": true, "stop": ["."],
        "messages": question(),
    });
    let examples = [("prompt", prompt), ("messages", messages)];
    Described::new("execute", "worker", "Generate text, streamed")
        .about(OF_EXECUTE)
        .takes(app, &EXECUTE, &examples)
        .refused(&[OF_GENERATION, &[Why::DuplicateJob]])
        .responds("200", job_events())
}

pub fn rest_of_job(_: &App) -> Described {
    rest("rest_of_job", "worker", "job_id")
        .refused(&[&[Why::NotFound]])
        .responds("200", job_events())
}

pub fn rest_of_chat(_: &App) -> Described {
    let answered = answered::<ChatAnswer<'_>, ChatChunk<'_>>();
    rest_of_answer("rest_of_chat", "openai", answered)
}

pub fn rest_of_completion(_: &App) -> Described {
    let answered = answered::<TextAnswer<'_>, TextChunk<'_>>();
    rest_of_answer("rest_of_completion", "openai", answered)
}

pub fn responses(app: &App) -> Described {
    takes_response(app, "responses", "Answer a conversation, in items")
        .about(RESPONSES)
        .computed()
        .responds("200", response())
}

pub fn count_input_tokens(app: &App) -> Described {
    takes_response(app, "count_input_tokens", "The tokens of a conversation")
        .needs_model()
        .answers::<ResponseTokens>("The count")
}

fn takes_response(app: &App, id: &str, summary: &str) -> Described {
    let tokens = few_tokens(app);
    let items = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Why is the sky blue?"}]},
    ]);
    let whole = json!({
        "model": app.model_id, "input": "Why is the sky blue?", "max_output_tokens": tokens,
    });
    let streamed = json!({
        "instructions": "Answer in one sentence.", "input": items,
        "max_output_tokens": tokens, "stream": true, "store": false,
    });
    let examples = [("whole", whole), ("streamed", streamed)];
    Described::new(id, "openai", summary).takes(app, &RESPONSE, &examples)
}

pub fn rest_of_response(_: &App) -> Described {
    let after = "sequence_number of the last event that the client has";
    let number = schema::integer(&(0..=u64::from(u32::MAX)));
    let (stream, only) = ("As OpenAI has it", schema::values([true]));
    let summary = "The rest of a response whose connection was lost";
    Described::new("rest_of_response", "openai", summary)
        .parameter(part_of_path("id", None))
        .parameter(optional(
            "starting_after",
            ParameterIn::Query,
            after,
            number,
        ))
        .parameter(optional("stream", ParameterIn::Query, stream, only))
        .refused(&[ENDS, &[Why::NotFound]])
        .responds("200", response())
}

fn response() -> ResponseBuilder {
    let data = answer::text_of::<ResponseEvent<'_>>();
    let streamed = answer::event(EventName::VARIANTS.iter().copied(), data, false);
    json::<Response<'_>>("The response, whole or streamed").content(EVENTS, content(streamed))
}

/// Request for the rest of an answer, by id.
pub(super) fn rest_of_answer(id: &str, tag: &str, answered: ResponseBuilder) -> Described {
    rest(id, tag, "id")
        .refused(&[ENDS, &[Why::NotFound]])
        .responds("200", answered)
}

fn rest(id: &str, tag: &str, parameter: &str) -> Described {
    let number = || schema::integer(&(0..=u64::from(u32::MAX)));
    let several = schema::pattern(r"^\d{1,9}(\.\d{1,9})+$");
    let from = optional(
        "from",
        ParameterIn::Query,
        "Pieces of text that the client has; of several choices, chunks of each, with dots between them",
        schema::any_of([number(), several]),
    );
    let last = optional(
        "Last-Event-ID",
        ParameterIn::Header,
        "`id` of the last event that the client has, where from is not given",
        number(),
    );
    Described::new(id, tag, "The rest of an answer whose connection was lost")
        .parameter(part_of_path(parameter, None))
        .parameter(from)
        .parameter(last)
}

pub fn cancel(app: &App) -> Described {
    let job = json!({"job_id": "a-1"});
    Described::new("cancel", "worker", "Cancel a job")
        .about("A job that is unknown or finished is no error.")
        .takes(app, &CANCEL, &[("job", job)])
        .responds("202", done("The job is being cancelled, if it is there"))
}

pub fn shutdown(_: &App) -> Described {
    let summary = "Finish what runs, take nothing new, and end";
    Described::new("shutdown", "operator", summary)
        .about(OPERATORS)
        .responds("202", done("The worker drains"))
}

pub fn restart(_: &App) -> Described {
    let summary = "Put a new child in the place of the one that serves";
    Described::new("restart", "operator", summary)
        .about(OPERATORS)
        .responds("202", done("A new child is started. No stream ends"))
        .refused(&[&[Why::Unhealthy]])
}

pub fn drain_device(_: &App) -> Described {
    let summary = "Take a device out of use, while the others go on";
    let done = "Its streams move to the other devices, and its child ends";
    of_device("drain_device", summary, done)
}

pub fn readmit_device(_: &App) -> Described {
    let summary = "Use a device again that is out of use";
    of_device("readmit_device", summary, "A child is started on it")
}

fn of_device(id: &str, summary: &str, words: &str) -> Described {
    Described::new(id, "operator", summary)
        .about(OPERATORS)
        .parameter(part_of_path("number", None))
        .responds("202", done(words))
        .refused(&[&[Why::NotFound, Why::Unhealthy]])
}

const OPERATORS: &str = "For the operator: the first key of `--api-key-file`.";

fn done(words: &str) -> ResponseBuilder {
    json::<Accepted>(words)
}

pub fn chat(app: &App) -> Described {
    let tokens = few_tokens(app);
    let messages = json!([
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": [{"type": "text", "text": "Why is the sky blue?"}]},
    ]);
    let whole = json!({
        "model": app.model_id, "messages": messages, "max_completion_tokens": tokens,
    });
    let streamed = json!({
        "messages": messages, "max_tokens": tokens, "stream": true,
        "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2,
    });
    let examples = [("whole", whole), ("streamed", streamed)];
    Described::new("chat", "openai", "Answer a conversation")
        .about(STREAM)
        .takes(app, &reader(Kind::Chat), &examples)
        .computed()
        .responds("200", answered::<ChatAnswer<'_>, ChatChunk<'_>>())
}

pub fn completion(app: &App) -> Described {
    let (prompt, tokens) = ("Once upon a time", few_tokens(app));
    let whole = json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2});
    let streamed = json!({"prompt": prompt, "max_tokens": tokens, "stream": true, "seed": 7});
    let examples = [("whole", whole), ("streamed", streamed)];
    Described::new("completion", "openai", "Continue a text")
        .about(STREAM)
        .takes(app, &reader(Kind::Completion), &examples)
        .computed()
        .responds("200", answered::<TextAnswer<'_>, TextChunk<'_>>())
}

pub fn messages(app: &App) -> Described {
    let (messages, tokens) = (question_in_blocks(), few_tokens(app));
    let whole = json!({
        "model": app.model_id, "max_tokens": tokens, "messages": messages,
        "system": "Answer in one sentence.",
    });
    let streamed = json!({
        "max_tokens": tokens, "messages": messages, "stream": true, "temperature": 0.5,
        "stop_sequences": ["."],
    });
    let examples = [("whole", whole), ("streamed", streamed)];
    Described::new("messages", "anthropic", "Answer a conversation")
        .about(OF_MESSAGES)
        .takes(app, &MESSAGES, &examples)
        .computed()
        .responds("200", message())
}

pub fn rest_of_message(_: &App) -> Described {
    rest_of_answer("rest_of_message", "anthropic", message())
}

pub fn count_tokens(app: &App) -> Described {
    let examples = [("conversation", json!({"messages": question_in_blocks()}))];
    Described::new("count_tokens", "anthropic", "The tokens of a conversation")
        .takes(app, &COUNTED, &examples)
        .needs_model()
        .answers::<MessageTokens>("The count")
}

pub fn embeddings(app: &App) -> Described {
    let text = json!({"model": app.model_id, "input": "A river"});
    let texts = json!({
        "input": ["A river", "A stream"], "encoding_format": "base64", "dimensions": 1,
    });
    let examples = [("text", text), ("texts", texts)];
    let examples = if can_embed(app) { &examples[..] } else { &[] };
    Described::new("embeddings", "openai", "The vectors of texts")
        .takes(app, &EMBEDDINGS, examples)
        .computed()
        .answers::<Embeddings>("The vectors")
}

pub fn rerank(app: &App, id: &str) -> Described {
    let documents = json!(["It is wide.", {"text": "It is blue."}]);
    let example = json!({
        "model": app.model_id, "query": "How wide?", "documents": documents, "top_n": 1,
        "return_documents": true,
    });
    // Without an example if the model is no reranker.
    let model = app.engine.model();
    let is_reranker = model.is_some_and(|model| template(&model).is_ok());
    let examples = is_reranker.then_some(("documents", example));
    Described::new(id, "openai", "How well documents answer a query")
        .takes(app, &RERANK, examples.as_slice())
        .computed()
        .answers::<Ranking>("The documents by their scores")
}

fn question() -> Value {
    json!([{"role": "user", "content": "Why is the sky blue?"}])
}

fn question_in_blocks() -> Value {
    let block = json!({"type": "text", "text": "Why is the sky blue?"});
    json!([{"role": "user", "content": [block]}])
}

/// Whether the model supports embeddings, so that examples of them work.
pub(super) fn can_embed(app: &App) -> bool {
    let of_file = app.engine.model().and_then(|it| it.facts.pooling_type);
    pooling(app.pooling, of_file).is_ok()
}

/// Tokens of an example's answer, within the operator's limit.
pub(super) fn few_tokens(app: &App) -> u32 {
    const FEW: u32 = 8;
    app.limits.max_tokens_out.map_or(FEW, |most| most.min(FEW))
}

/// Response of the OpenAI API.
fn answered<A: JsonSchema, C: JsonSchema>() -> ResponseBuilder {
    let (chunk, error) = (answer::text_of::<C>(), answer::text_of::<OpenAiError<'_>>());
    let data = schema::any_of([chunk, error, schema::values(["[DONE]"])]);
    json::<A>("The answer, whole or streamed").content(EVENTS, content(object([("data", data)])))
}

fn job_events() -> ResponseBuilder {
    let events = answer::events_of::<ExecuteEvent<'_>>();
    of_type("The job's events", EVENTS, events)
}

fn message() -> ResponseBuilder {
    let data = answer::text_of::<MessageEvent>();
    let event = answer::event(MessageEvent::VARIANTS.iter().copied(), data, true);
    json::<Message>("The answer, whole or streamed").content(EVENTS, content(event))
}

pub fn models(_: &App) -> Described {
    Described::new("models", "openai", "The model, under each of its names")
        .answers::<Models>("A list")
}

pub fn model(app: &App) -> Described {
    Described::new("model", "openai", "The model")
        .parameter(part_of_path("name", Some(&app.model_id)))
        .answers::<Model>("The model")
        .refused(&[&[Why::NotFound]])
}

pub fn health(_: &App) -> Described {
    let summary = "The state of everything; null means unknown";
    Described::new("health", "probe", summary)
        .about("Without a key, where keys are asked for, an outline.")
        .answers::<Health>("The worker can serve")
        .responds("503", json::<Health>("The worker cannot serve"))
}

pub fn livez(_: &App) -> Described {
    Described::new("livez", "probe", "Whether the worker has not given up")
        .responds("200", plain("It has not", schema::values(["ok"])))
        .responds("503", plain("It has", schema::values(["failed"])))
}

pub fn readyz(_: &App) -> Described {
    Described::new("readyz", "probe", "Whether new requests are taken")
        .responds("200", plain("They are", schema::values(["ready"])))
        .responds("503", plain("They are not; why, in a word", text()))
}

fn plain(words: &str, shape: Shape) -> ResponseBuilder {
    of_type(words, "text/plain; charset=utf-8", shape)
}

pub fn metrics(_: &App) -> Described {
    let formats = [Format::Classic, Format::OpenMetrics];
    let response = ResponseBuilder::new().description("In the form that Accept asks for");
    let response = formats.iter().fold(response, |response, format| {
        response.content(format.content_type(), content(text()))
    });
    Described::new("metrics", "probe", "Prometheus metrics").responds("200", response)
}

pub fn crashes(_: &App) -> Described {
    let summary = "Reports of children that died, newest first";
    Described::new("crashes", "operator", summary).answers::<Crashes>("Outlines of the reports")
}

pub fn crash(app: &App) -> Described {
    let newest = app.engine.crashes().list().into_iter().next();
    let newest = newest.map(|report| report.id);
    let report = schema::of_type(Type::Object);
    Described::new("crash", "operator", "One report")
        .parameter(part_of_path("id", newest.as_deref()))
        .responds("200", json_of("The report", report))
        .refused(&[&[Why::NotFound]])
}

fn part_of_path(name: &str, example: Option<&str>) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(text_of(&(1..=usize::MAX))))
        .example(example.map(Into::into))
        .build()
}

fn optional(name: &str, place: ParameterIn, words: &str, shape: Shape) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .description(Some(words))
        .schema(Some(shape))
        .build()
}

/// Schemas of types, and of those in them, by name.
macro_rules! components {
    ($($of:ty),+ $(,)?) => {{
        let mut generator = answer::generator();
        $(generator.subschema_for::<$of>();)+
        generator.take_definitions(true)
    }};
}

pub(super) fn components() -> Map<String, Value> {
    components![
        NativeError<'_>,
        OpenAiError<'_>,
        AnthropicError,
        OllamaError,
        Line<'_>,
        Embedded,
        of_ollama::Running,
        of_ollama::Tags,
        of_ollama::Version,
        ExecuteEvent<'_>,
        Accepted,
        TokenizeAnswer,
        DetokenizeAnswer,
        Templated,
        ChatAnswer<'_>,
        ChatChunk<'_>,
        TextAnswer<'_>,
        TextChunk<'_>,
        Embeddings,
        Ranking,
        Models,
        Response<'_>,
        ResponseEvent<'_>,
        ResponseTokens,
        Message,
        MessageEvent,
        MessageTokens,
        Root<'_>,
        Health,
        Crashes,
    ]
}
