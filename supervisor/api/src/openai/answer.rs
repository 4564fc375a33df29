//! Objects of answers, whole and as chunks of a stream.

use super::Header;
use super::logprobs::{ChatLogprobs, Column, List, PromptTokensById, TextLogprobs};
use crate::answer::{OrNull, absent_not_null};
use crate::choices::{Layout, MAX_N, MAX_PROMPTS};
use crate::string_enums;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use worker_orcd_ipc::TokenId;
use worker_orcd_requests::stream::PromptIds;
use worker_orcd_requests::{self as requests, Drafts, StopReason};

const MOST_CHOICES: usize = MAX_PROMPTS * MAX_N as usize;

string_enums! {
    ChatCompletion: Object = "chat.completion";
    ChatCompletionChunk: Object = "chat.completion.chunk";
    Completion: Object = "text_completion";
    /// The older endpoint uses the same object name for its chunks.
    CompletionChunk: Object = "text_completion";
    Role: Assistant = "assistant";
    CallType: Function = "function";
    FinishReason: Stop = "stop" | Length = "length";
    ToolCalls: ToolCalls = "tool_calls";
}

/// First fields of an answer and of a chunk.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Opening<'a, O> {
    id: &'a str,
    object: O,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
}

/// Answer in one piece. `O`: the name of the object. `C`: a choice.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{O}", transform = absent_not_null)]
pub struct Answer<'a, O, C> {
    #[serde(flatten)]
    pub(super) opening: Opening<'a, O>,
    #[schemars(length(max = MOST_CHOICES))]
    pub(super) choices: Vec<C>,
    pub(super) usage: Usage,
    /// Ids of a chat's prompt, if they are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<u32>>")]
    pub(super) prompt_token_ids: Option<PromptIds>,
    /// Log probabilities of a chat's prompt, if they are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Option<PromptTokensById>>>")]
    pub(super) prompt_logprobs: Option<Column>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{O}", transform = absent_not_null)]
pub struct Chunk<'a, O, C> {
    #[serde(flatten)]
    pub(super) opening: Opening<'a, O>,
    #[schemars(length(max = MOST_CHOICES))]
    pub(super) choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<OrNull<Usage>>,
    /// Ids of a chat's prompt, if they are requested, in the first chunk of each choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<u32>>")]
    pub(super) prompt_token_ids: Option<PromptIds>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct ChatChoice {
    #[schemars(range(max = MOST_CHOICES - 1))]
    pub(super) index: usize,
    pub(super) message: Message,
    #[schemars(with = "Option<ChatLogprobs>")]
    pub(super) logprobs: Option<List>,
    pub(super) finish_reason: ChatFinishReason,
    /// Ids of all generated tokens, if they are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<u32>>")]
    pub(super) token_ids: Option<Vec<TokenId>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct ChatChunkChoice {
    #[schemars(range(max = MOST_CHOICES - 1))]
    pub(super) index: usize,
    pub(super) delta: Delta,
    #[schemars(with = "Option<ChatLogprobs>")]
    pub(super) logprobs: Option<List>,
    pub(super) finish_reason: Option<ChatFinishReason>,
    /// Ids of the tokens since the last chunk, if they are requested. The chunk of the role has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<u32>>")]
    pub(super) token_ids: Option<Vec<TokenId>>,
}

/// Choice of a completion. `R`: the finish reason, `null` before the end of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline, transform = absent_not_null)]
pub struct TextChoice<R> {
    #[schemars(range(max = MOST_CHOICES - 1))]
    pub(super) index: usize,
    pub(super) text: String,
    #[schemars(with = "Option<TextLogprobs>")]
    pub(super) logprobs: Option<List>,
    pub(super) finish_reason: R,
    /// Ids of the prompt, if they are requested. In a stream they are in the first chunk, and `null` in the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ids_or_null")]
    pub(super) prompt_token_ids: Option<OrNull<PromptIds>>,
    /// Ids of the generated tokens, if they are requested; in a stream, of those since the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<u32>>")]
    pub(super) token_ids: Option<Vec<TokenId>>,
    /// Log probabilities of the prompt, if they are requested. A stream has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Option<PromptTokensById>>>")]
    pub(super) prompt_logprobs: Option<Column>,
}

/// Schema of token ids or `null`, which [`absent_not_null`] leaves as it is.
fn ids_or_null(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"oneOf": [generator.subschema_for::<Vec<u32>>(), {"type": "null"}]})
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ChatFinishReason {
    Text(FinishReason),
    Calls(ToolCalls),
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage", transform = absent_not_null)]
pub struct Message {
    pub(super) role: Role,
    pub(super) content: Option<String>,
    pub(super) refusal: (),
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolCall {
    pub(super) id: String,
    pub(super) r#type: CallType,
    pub(super) function: Function,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Function {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Part of a message. Text is before or after reasoning, in the order of the answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<Role>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<OrNull<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning: Option<String>,
    #[serde(rename = "content", skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub(super) content_after: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<CallDelta>,
}

/// Part of a tool call. Only its first one has an id, a type and a name.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct CallDelta {
    pub(super) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) r#type: Option<CallType>,
    pub(super) function: FunctionDelta,
}

#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    /// Known at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    /// Known at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct PromptDetails {
    cached_tokens: u32,
}

/// Drafts of speculative decoding, from a prediction of the request or other text. Accepted ones are among the tokens of the
/// completion; rejected ones are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct CompletionDetails {
    accepted_prediction_tokens: u32,
    rejected_prediction_tokens: u32,
}

impl<'a, O> Opening<'a, O> {
    pub(super) fn of(header: &'a Header, object: O) -> Self {
        Self {
            id: &header.id,
            object,
            created: header.created,
            model: &header.model,
            system_fingerprint: &header.fingerprint,
        }
    }
}

impl From<StopReason> for FinishReason {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::MaxTokens => Self::Length,
            StopReason::Eos | StopReason::StopSequence => Self::Stop,
        }
    }
}

impl From<StopReason> for ChatFinishReason {
    fn from(reason: StopReason) -> Self {
        Self::Text(reason.into())
    }
}

impl Message {
    pub(super) fn of_text(text: String) -> Self {
        Self {
            role: Role::Assistant,
            content: Some(text),
            refusal: (),
            reasoning_content: None,
            reasoning: None,
            tool_calls: Vec::new(),
        }
    }
}

impl Delta {
    pub(super) fn of_text(text: String) -> Self {
        Self {
            content: Some(OrNull(Some(text))),
            ..Self::default()
        }
    }
}

impl Usage {
    /// Usage so far.
    pub(super) fn so_far(tokens_in: u32, tokens_out: u32) -> Self {
        Self {
            prompt_tokens: tokens_in,
            completion_tokens: tokens_out,
            total_tokens: tokens_in.saturating_add(tokens_out),
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// Usage of a complete answer, with the number of cached prompt tokens, and drafts.
    pub(super) fn whole(
        tokens_in: u32,
        tokens_out: u32,
        cached_tokens: u32,
        drafts: Drafts,
    ) -> Self {
        Self {
            prompt_tokens_details: Some(PromptDetails { cached_tokens }),
            completion_tokens_details: Some(CompletionDetails {
                accepted_prediction_tokens: drafts.accepted,
                rejected_prediction_tokens: drafts.rejected(),
            }),
            ..Self::so_far(tokens_in, tokens_out)
        }
    }

    /// Usage of an answer with these ends of its choices.
    pub(super) fn of_all(ends: &[requests::Completion], layout: Layout) -> Self {
        let tokens_out = ends.iter().map(|it| it.tokens_out);
        Self::whole(
            layout.prompt_tokens(ends.iter().map(|it| it.tokens_in)),
            tokens_out.fold(0, u32::saturating_add),
            layout.prompt_tokens(ends.iter().map(|it| it.cached_tokens)),
            ends.iter()
                .map(|it| it.drafts)
                .fold(Drafts::default(), Drafts::plus),
        )
    }
}

impl From<&requests::Completion> for Usage {
    fn from(completion: &requests::Completion) -> Self {
        let (all, cached) = (completion.tokens_in, completion.cached_tokens);
        Self::whole(all, completion.tokens_out, cached, completion.drafts)
    }
}
