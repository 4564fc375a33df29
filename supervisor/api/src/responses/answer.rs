//! The `response` object: the whole answer, and the data of a stream's first and last events.
//!
//! Sources: OpenAI's API reference, and the models of its Python package. `instructions` and `tools` are not repeated:
//! they are part of the prompt, and the record of an answer keeps only its tokens.

use super::output::Item;
use crate::answer_format::Echo;
use crate::openai::logprobs::{ChatToken, Column};
use crate::string_enums;
use crate::timeline::Kind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Number, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use worker_orcd_requests::Completion;
use worker_orcd_text::tools::Parsing;

#[derive(Debug, Clone)]
pub struct Header {
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    pub model: String,
    /// Parsers of the answer's text.
    pub parsing: Parsing,
    pub echo: Echo,
}

/// Progress of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Runs,
    Ends { is_cut: bool, usage: Usage },
    Failed(String),
}

string_enums! {
    ResponseObject: Response = "response";
    Status: InProgress = "in_progress" | Completed = "completed" | Incomplete = "incomplete" | Failed = "failed";
    ItemStatus: InProgress = "in_progress" | Completed = "completed" | Incomplete = "incomplete";
    Role: Assistant = "assistant";
    Truncation: Disabled = "disabled";
    IncompleteReason: MaxOutputTokens = "max_output_tokens";
    /// The only code in OpenAI's list that fits all failures of a worker.
    FailureCode: ServerError = "server_error";
    TokensObject: Tokens = "response.input_tokens";
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Response<'a> {
    id: &'a str,
    object: ResponseObject,
    created_at: u64,
    status: Status,
    #[schemars(extend("const" = false))]
    background: bool,
    error: Option<ResponseFailure<'a>>,
    incomplete_details: Option<IncompleteDetails>,
    max_output_tokens: u32,
    metadata: &'a BTreeMap<String, String>,
    model: &'a str,
    parallel_tool_calls: bool,
    previous_response_id: (),
    reasoning: ReasoningSettings<'a>,
    #[schemars(extend("const" = false))]
    store: bool,
    #[schemars(with = "f64", range(min = 0.0, max = 2.0))]
    temperature: &'a Option<Number>,
    text: ResponseText<'a>,
    /// As in the request.
    tool_choice: &'a Value,
    tools: [(); 0],
    top_logprobs: u8,
    #[schemars(with = "f64", range(min = 0.0, max = 1.0))]
    top_p: &'a Option<Number>,
    truncation: Truncation,
    usage: Option<Usage>,
    output: Vec<OutputItem<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ResponseFailure<'a> {
    code: FailureCode,
    message: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct IncompleteDetails {
    reason: IncompleteReason,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ReasoningSettings<'a> {
    effort: Option<&'a str>,
    summary: (),
}

#[derive(Debug, Serialize, JsonSchema)]
struct ResponseText<'a> {
    #[schemars(schema_with = "format")]
    format: Cow<'a, Value>,
    verbosity: Option<&'a str>,
}

/// Format of the request, or text.
fn format(_: &mut SchemaGenerator) -> Schema {
    let kind = json!({"enum": ["text", "json_object", "json_schema"]});
    json_schema!({"type": "object", "properties": {"type": kind}, "required": ["type"]})
}

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub(super) struct Usage {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
struct InputDetails {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
struct OutputDetails {
    reasoning_tokens: u32,
}

/// Item in its current state.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum OutputItem<'a> {
    Reasoning {
        id: String,
        summary: [(); 0],
        #[schemars(length(max = 1))]
        content: Vec<Part<'a>>,
        status: ItemStatus,
    },
    Message {
        id: String,
        role: Role,
        #[schemars(length(max = 1))]
        content: Vec<Part<'a>>,
        status: ItemStatus,
    },
    FunctionCall {
        id: String,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
        status: ItemStatus,
    },
}

/// The only part of reasoning or of a message.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponsePart")]
pub enum Part<'a> {
    ReasoningText {
        text: &'a str,
    },
    OutputText {
        text: &'a str,
        annotations: [(); 0],
        #[schemars(with = "Vec<ChatToken<'static>>")]
        logprobs: &'a Column,
    },
}

/// Answer of `/v1/responses/input_tokens`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ResponseTokens {
    object: TokensObject,
    input_tokens: usize,
}

impl ResponseTokens {
    #[must_use]
    pub fn new(input_tokens: usize) -> Self {
        let object = TokensObject::Tokens;
        Self {
            object,
            input_tokens,
        }
    }
}

impl Progress {
    pub(super) fn ended(completion: &Completion, reasoning_tokens: u32) -> Self {
        Self::Ends {
            is_cut: completion.is_cut(),
            usage: Usage {
                input_tokens: completion.tokens_in,
                input_tokens_details: InputDetails {
                    cached_tokens: completion.cached_tokens,
                    cache_write_tokens: 0,
                },
                output_tokens: completion.tokens_out,
                output_tokens_details: OutputDetails { reasoning_tokens },
                total_tokens: completion.tokens_in.saturating_add(completion.tokens_out),
            },
        }
    }
}

impl Header {
    pub(super) fn response<'a>(
        &'a self,
        items: &'a [Item],
        progress: &'a Progress,
    ) -> Response<'a> {
        let (status, incomplete_details, usage, error) = match progress {
            Progress::Runs => (Status::InProgress, None, None, None),
            Progress::Ends { is_cut, usage } => match is_cut {
                true => {
                    let reason = IncompleteReason::MaxOutputTokens;
                    let why = IncompleteDetails { reason };
                    (Status::Incomplete, Some(why), Some(*usage), None)
                }
                false => (Status::Completed, None, Some(*usage), None),
            },
            Progress::Failed(message) => {
                let code = FailureCode::ServerError;
                let error = ResponseFailure { code, message };
                (Status::Failed, None, None, Some(error))
            }
        };
        let echo = &self.echo;
        let plain = || Cow::Owned(json!({"type": "text"}));
        let output = items.iter().enumerate();
        Response {
            id: &self.id,
            object: ResponseObject::Response,
            created_at: self.created,
            status,
            background: false,
            error,
            incomplete_details,
            max_output_tokens: echo.max_output_tokens,
            metadata: &echo.metadata,
            model: &self.model,
            parallel_tool_calls: echo.parallel_tool_calls,
            previous_response_id: (),
            reasoning: ReasoningSettings {
                effort: echo.effort.as_deref(),
                summary: (),
            },
            store: false,
            temperature: &echo.temperature,
            text: ResponseText {
                format: echo.format.as_ref().map_or_else(plain, Cow::Borrowed),
                verbosity: echo.verbosity.as_deref(),
            },
            tool_choice: &echo.tool_choice,
            tools: [],
            top_logprobs: echo.top_logprobs,
            top_p: &echo.top_p,
            truncation: Truncation::Disabled,
            usage,
            output: output.map(|(at, item)| self.item(at, item)).collect(),
        }
    }

    pub(super) fn item<'a>(&self, at: usize, item: &'a Item) -> OutputItem<'a> {
        let (id, status) = (self.item_id(at, &item.kind), item.status);
        let has_begun = !(item.text.is_empty() && item.status == ItemStatus::InProgress);
        let content = || has_begun.then(|| part(item)).into_iter().collect();
        match &item.kind {
            Kind::Reasoning => OutputItem::Reasoning {
                id,
                summary: [],
                content: content(),
                status,
            },
            Kind::Text => OutputItem::Message {
                id,
                role: Role::Assistant,
                content: content(),
                status,
            },
            Kind::Call(call) => OutputItem::FunctionCall {
                id,
                call_id: &call.id,
                name: &call.name,
                arguments: &item.text,
                status,
            },
        }
    }

    /// Id of an item: a pure function of the answer's id, and of the item's index and kind.
    pub(super) fn item_id(&self, at: usize, kind: &Kind) -> String {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Text => "msg",
            Kind::Call(_) => "fc",
        };
        let own = self.id.trim_start_matches(super::ID_PREFIX);
        format!("{prefix}_{own}_{at}")
    }
}

pub(super) fn part(item: &Item) -> Part<'_> {
    let text = &item.text;
    match &item.kind {
        Kind::Reasoning => Part::ReasoningText { text },
        Kind::Text | Kind::Call(_) => Part::OutputText {
            text,
            annotations: [],
            logprobs: &item.logprobs,
        },
    }
}
