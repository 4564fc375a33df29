//! Operations of all routes, with their responses.

use super::answers::{
    ENDS, OF_BODIES, OF_GENERATION, Why, content, json, json_of, of_type, refused,
};
use super::requests;
use crate::http::App;
use crate::http::crashes::Crashes;
use crate::http::error::Dialect::{self, Anthropic, Native, OpenAi};
use crate::http::execute::Accepted;
use crate::http::health::Health;
use crate::http::ollama::models as of_ollama;
use crate::http::openai::models::{Model, Models};
use crate::http::routes::Root;
use crate::metrics::exposition::Format;
use schemars::JsonSchema;
use serde_json::{Map, Value};
use strum::VariantNames as _;
use utoipa::openapi::path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{Required, ResponseBuilder, Type};
use worker_orcd_api::answer;
use worker_orcd_api::anthropic::answer::{Message, MessageEvent, MessageTokens};
use worker_orcd_api::embeddings::written::Embeddings;
use worker_orcd_api::error::anthropic::AnthropicError;
use worker_orcd_api::error::{NativeError, OllamaError, OpenAiError};
use worker_orcd_api::execute::events::ExecuteEvent;
use worker_orcd_api::ollama::answer::Line;
use worker_orcd_api::ollama::embed::Embedded;
use worker_orcd_api::openai::Kind;
use worker_orcd_api::openai::stream::{ChatChunk, TextChunk};
use worker_orcd_api::openai::whole::{ChatAnswer, TextAnswer};
use worker_orcd_api::rerank::written::Ranking;
use worker_orcd_api::responses::answer::{Response, ResponseTokens};
use worker_orcd_api::responses::events::{EventName, ResponseEvent};
use worker_orcd_api::schema::{self, Shape, object, text, text_of};
use worker_orcd_api::texts::written::{DetokenizeAnswer, Templated, TokenizeAnswer};

const EVENTS: &str = "text/event-stream";

const EXECUTE: &str = "One job, streamed: `started`, `token` for each piece of text, `metrics` where \
    asked for, then one `end` or `error`. Comments in between say that somebody is there.";

const STREAM: &str = "With `stream`, chunks and then `data: [DONE]`. A stream that fails ends with an \
    error in place of a chunk, and without `[DONE]`. The shape of a stream is that of each event.";

const MESSAGES: &str = "With `stream`, named events from `message_start` to `message_stop`; one that fails ends \
    with `error`. The shape of a stream is that of each event.";

const RESPONSES: &str = "Without a memory: what refers to an earlier response is refused. With `stream`, named events, \
    of which the last is `response.completed`, `response.incomplete` or `response.failed`.";

pub(super) fn operation(id: &str, tag: &str, summary: &str) -> OperationBuilder {
    OperationBuilder::new()
        .operation_id(Some(id))
        .tag(tag)
        .summary(Some(summary))
}

pub fn root(_: &App) -> OperationBuilder {
    operation("root", "worker", "What there is to ask").response(
        "200",
        json::<Root<'_>>("Name, version and routes; the status page to who prefers HTML"),
    )
}

pub fn document(_: &App) -> OperationBuilder {
    let parts = ["info", "paths", "components"].map(|part| (part, schema::of_type(Type::Object)));
    let document = object(
        [("openapi", text())]
            .into_iter()
            .chain(parts)
            .chain([("tags", schema::list_of(schema::of_type(Type::Object)))]),
    );
    operation("openapi", "worker", "This document")
        .response("200", json_of("An OpenAPI document", document))
}

pub fn tokenize(app: &App) -> OperationBuilder {
    let operation = operation(
        "tokenize",
        "text",
        "The tokens of a text or of a conversation",
    )
    .request_body(Some(requests::tokenize(app)))
    .response("200", json::<TokenizeAnswer>("The tokens"));
    of_text(operation)
}

pub fn detokenize(app: &App) -> OperationBuilder {
    let operation = operation("detokenize", "text", "The text of tokens")
        .request_body(Some(requests::detokenize(app)))
        .response(
            "200",
            json::<DetokenizeAnswer>("The text, under both names"),
        );
    of_text(operation)
}

pub fn apply_template(app: &App) -> OperationBuilder {
    let operation = operation(
        "apply_template",
        "text",
        "The prompt that a conversation becomes",
    )
    .request_body(Some(requests::apply_template(app)))
    .response("200", json::<Templated>("The prompt"));
    of_text(operation)
}

fn of_text(operation: OperationBuilder) -> OperationBuilder {
    let operation = refused(operation, Native, OF_BODIES);
    // If the request names another model.
    refused(operation, Native, &[Why::NotFound, Why::Unhealthy])
}

pub fn execute(app: &App) -> OperationBuilder {
    let operation = operation("execute", "worker", "Generate text, streamed")
        .description(Some(EXECUTE))
        .request_body(Some(requests::execute(app)))
        .response("200", job_events());
    let operation = refused(operation, Native, OF_BODIES);
    let operation = refused(operation, Native, OF_GENERATION);
    refused(operation, Native, &[Why::DuplicateJob])
}

pub fn rest_of_job(_: &App) -> OperationBuilder {
    let operation = rest("rest_of_job", "worker", "job_id").response("200", job_events());
    refused(operation, Native, &[Why::NotFound])
}

pub fn rest_of_chat(_: &App) -> OperationBuilder {
    let operation = rest("rest_of_chat", "openai", "id");
    let operation = operation.response("200", answered::<ChatAnswer<'_>, ChatChunk<'_>>());
    let operation = refused(operation, OpenAi, ENDS);
    refused(operation, OpenAi, &[Why::NotFound])
}

pub fn rest_of_completion(_: &App) -> OperationBuilder {
    let operation = rest("rest_of_completion", "openai", "id");
    let operation = operation.response("200", answered::<TextAnswer<'_>, TextChunk<'_>>());
    let operation = refused(operation, OpenAi, ENDS);
    refused(operation, OpenAi, &[Why::NotFound])
}

pub fn responses(app: &App) -> OperationBuilder {
    let operation = operation("responses", "openai", "Answer a conversation, in items")
        .description(Some(RESPONSES))
        .request_body(Some(requests::responses(app)))
        .response("200", response());
    let operation = refused(operation, OpenAi, OF_BODIES);
    let operation = refused(operation, OpenAi, OF_GENERATION);
    let operation = refused(operation, OpenAi, ENDS);
    // If the request names another model.
    refused(operation, OpenAi, &[Why::NotFound])
}

pub fn count_input_tokens(app: &App) -> OperationBuilder {
    let operation = operation(
        "count_input_tokens",
        "openai",
        "The tokens of a conversation",
    )
    .request_body(Some(requests::responses(app)))
    .response("200", json::<ResponseTokens>("The count"));
    let operation = refused(operation, OpenAi, OF_BODIES);
    refused(operation, OpenAi, &[Why::NotFound, Why::Unhealthy])
}

pub fn rest_of_response(_: &App) -> OperationBuilder {
    let query = |name: &str, words: &str, shape: Shape| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .description(Some(words))
            .schema(Some(shape))
            .build()
    };
    let after = "sequence_number of the last event that the client has";
    let number = schema::integer(&(0..=u64::from(u32::MAX)));
    let summary = "The rest of a response whose connection was lost";
    let operation = operation("rest_of_response", "openai", summary)
        .parameter(part_of_path("id", None))
        .parameter(query("starting_after", after, number))
        .parameter(query("stream", "As OpenAI has it", schema::values([true])))
        .response("200", response());
    let operation = refused(operation, OpenAi, ENDS);
    refused(operation, OpenAi, &[Why::NotFound])
}

fn response() -> ResponseBuilder {
    let data = answer::text_of::<ResponseEvent<'_>>();
    let streamed = answer::event(EventName::VARIANTS.iter().copied(), data, false);
    json::<Response<'_>>("The response, whole or streamed").content(EVENTS, content(streamed))
}

/// Request for the rest of an answer, by id.
pub(super) fn rest(id: &str, tag: &str, parameter: &str) -> OperationBuilder {
    let place = |name: &str, place: ParameterIn, words: &str, shape: Shape| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .description(Some(words))
            .schema(Some(shape))
            .build()
    };
    let number = || schema::integer(&(0..=u64::from(u32::MAX)));
    let several = schema::pattern(r"^\d{1,9}(\.\d{1,9})+$");
    let from = place(
        "from",
        ParameterIn::Query,
        "Pieces of text that the client has; of several choices, chunks of each, with dots between them",
        schema::any_of([number(), several]),
    );
    let last = place(
        "Last-Event-ID",
        ParameterIn::Header,
        "`id` of the last event that the client has, where from is not given",
        number(),
    );
    operation(id, tag, "The rest of an answer whose connection was lost")
        .parameter(part_of_path(parameter, None))
        .parameter(from)
        .parameter(last)
}

pub fn cancel(_: &App) -> OperationBuilder {
    let operation = operation("cancel", "worker", "Cancel a job")
        .description(Some("A job that is unknown or finished is no error."))
        .request_body(Some(requests::cancel()))
        .response("202", done("The job is being cancelled, if it is there"));
    refused(operation, Native, OF_BODIES)
}

pub fn shutdown(_: &App) -> OperationBuilder {
    operation(
        "shutdown",
        "operator",
        "Finish what runs, take nothing new, and end",
    )
    .description(Some(OPERATORS))
    .response("202", done("The worker drains"))
}

pub fn restart(_: &App) -> OperationBuilder {
    let operation = operation(
        "restart",
        "operator",
        "Put a new child in the place of the one that serves",
    )
    .description(Some(OPERATORS))
    .response("202", done("A new child is started. No stream ends"));
    refused(operation, Native, &[Why::Unhealthy])
}

pub fn drain_device(_: &App) -> OperationBuilder {
    let summary = "Take a device out of use, while the others go on";
    let done = "Its streams move to the other devices, and its child ends";
    of_device("drain_device", summary, done)
}

pub fn readmit_device(_: &App) -> OperationBuilder {
    let summary = "Use a device again that is out of use";
    of_device("readmit_device", summary, "A child is started on it")
}

fn of_device(id: &str, summary: &str, words: &str) -> OperationBuilder {
    let operation = operation(id, "operator", summary)
        .description(Some(OPERATORS))
        .parameter(part_of_path("number", None))
        .response("202", done(words));
    refused(operation, Native, &[Why::NotFound, Why::Unhealthy])
}

const OPERATORS: &str = "For the operator: the first key of `--api-key-file`.";

fn done(words: &str) -> ResponseBuilder {
    json::<Accepted>(words)
}

pub fn chat(app: &App) -> OperationBuilder {
    let operation = operation("chat", "openai", "Answer a conversation");
    let answered = answered::<ChatAnswer<'_>, ChatChunk<'_>>();
    generation(operation, app, Kind::Chat, answered)
}

pub fn completion(app: &App) -> OperationBuilder {
    let operation = operation("completion", "openai", "Continue a text");
    let answered = answered::<TextAnswer<'_>, TextChunk<'_>>();
    generation(operation, app, Kind::Completion, answered)
}

pub fn messages(app: &App) -> OperationBuilder {
    let operation = operation("messages", "anthropic", "Answer a conversation")
        .description(Some(MESSAGES))
        .request_body(Some(requests::messages(app)))
        .response("200", message());
    let operation = refused(operation, Anthropic, OF_BODIES);
    let operation = refused(operation, Anthropic, OF_GENERATION);
    let operation = refused(operation, Anthropic, ENDS);
    // If the request names another model.
    refused(operation, Anthropic, &[Why::NotFound])
}

pub fn rest_of_message(_: &App) -> OperationBuilder {
    let operation = rest("rest_of_message", "anthropic", "id");
    let operation = operation.response("200", message());
    let operation = refused(operation, Anthropic, ENDS);
    refused(operation, Anthropic, &[Why::NotFound])
}

pub fn count_tokens(app: &App) -> OperationBuilder {
    let operation = operation("count_tokens", "anthropic", "The tokens of a conversation")
        .request_body(Some(requests::count_tokens(app)))
        .response("200", json::<MessageTokens>("The count"));
    let operation = refused(operation, Anthropic, OF_BODIES);
    refused(operation, Anthropic, &[Why::NotFound, Why::Unhealthy])
}

pub fn embeddings(app: &App) -> OperationBuilder {
    let operation = operation("embeddings", "openai", "The vectors of texts")
        .request_body(Some(requests::embeddings(app)))
        .response("200", json::<Embeddings>("The vectors"));
    let operation = refused(operation, OpenAi, OF_BODIES);
    let operation = refused(operation, OpenAi, OF_GENERATION);
    let operation = refused(operation, OpenAi, ENDS);
    // If the request names another model.
    refused(operation, OpenAi, &[Why::NotFound])
}

pub fn rerank(app: &App, id: &str) -> OperationBuilder {
    let operation = operation(id, "openai", "How well documents answer a query")
        .request_body(Some(requests::rerank(app)))
        .response("200", json::<Ranking>("The documents by their scores"));
    let operation = refused(operation, OpenAi, OF_BODIES);
    let operation = refused(operation, OpenAi, OF_GENERATION);
    let operation = refused(operation, OpenAi, ENDS);
    // If the request names another model, or the model is no reranker.
    refused(operation, OpenAi, &[Why::NotFound])
}

fn generation(
    operation: OperationBuilder,
    app: &App,
    kind: Kind,
    answered: ResponseBuilder,
) -> OperationBuilder {
    let operation = operation
        .description(Some(STREAM))
        .request_body(Some(requests::openai(app, kind)))
        .response("200", answered);
    let operation = refused(operation, OpenAi, OF_BODIES);
    let operation = refused(operation, OpenAi, OF_GENERATION);
    let operation = refused(operation, OpenAi, ENDS);
    // If the request names another model.
    refused(operation, OpenAi, &[Why::NotFound])
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

pub fn models(_: &App) -> OperationBuilder {
    operation("models", "openai", "The model, under each of its names")
        .response("200", json::<Models>("A list"))
}

pub fn model(app: &App) -> OperationBuilder {
    let operation = operation("model", "openai", "The model")
        .parameter(part_of_path("name", Some(&app.model_id)))
        .response("200", json::<Model>("The model"));
    refused(operation, OpenAi, &[Why::NotFound])
}

pub fn health(_: &App) -> OperationBuilder {
    let health = |words| json::<Health>(words);
    operation(
        "health",
        "probe",
        "The state of everything; null means unknown",
    )
    .description(Some("Without a key, where keys are asked for, an outline."))
    .response("200", health("The worker can serve"))
    .response("503", health("The worker cannot serve"))
}

pub fn livez(_: &App) -> OperationBuilder {
    operation("livez", "probe", "Whether the worker has not given up")
        .response("200", plain("It has not", schema::values(["ok"])))
        .response("503", plain("It has", schema::values(["failed"])))
}

pub fn readyz(_: &App) -> OperationBuilder {
    operation("readyz", "probe", "Whether new requests are taken")
        .response("200", plain("They are", schema::values(["ready"])))
        .response("503", plain("They are not; why, in a word", text()))
}

fn plain(words: &str, shape: Shape) -> ResponseBuilder {
    of_type(words, "text/plain; charset=utf-8", shape)
}

pub fn metrics(_: &App) -> OperationBuilder {
    let formats = [Format::Classic, Format::OpenMetrics];
    let response = ResponseBuilder::new().description("In the form that Accept asks for");
    let response = formats.iter().fold(response, |response, format| {
        response.content(format.content_type(), content(text()))
    });
    operation("metrics", "probe", "Prometheus metrics").response("200", response)
}

pub fn crashes(_: &App) -> OperationBuilder {
    operation(
        "crashes",
        "operator",
        "Reports of children that died, newest first",
    )
    .response("200", json::<Crashes>("Outlines of the reports"))
}

pub fn crash(app: &App) -> OperationBuilder {
    let newest = app.engine.crashes().list().into_iter().next();
    let newest = newest.map(|report| report.id);
    let report = schema::of_type(Type::Object);
    let operation = operation("crash", "operator", "One report")
        .parameter(part_of_path("id", newest.as_deref()))
        .response("200", json_of("The report", report));
    refused(operation, Dialect::Native, &[Why::NotFound])
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
