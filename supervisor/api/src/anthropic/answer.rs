//! Objects of answers: the message, and the events of its stream.

use crate::error::anthropic::ErrorDetails;
use crate::string_enums;
use crate::timeline::{Item, Kind, Timeline};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use worker_orcd_requests::{self as requests, Completion};

string_enums! {
    MessageType: Message = "message";
    Role: Assistant = "assistant";
    StopReason: EndTurn = "end_turn" | MaxTokens = "max_tokens" | StopSequence = "stop_sequence"
        | ToolUse = "tool_use";
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Message {
    id: String,
    r#type: MessageType,
    role: Role,
    model: String,
    content: Vec<Block>,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<String>,
    usage: Usage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlock")]
pub enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    ToolUse {
        id: String,
        name: String,
        /// JSON object, as the model wrote it.
        #[schemars(with = "Map<String, Value>")]
        input: Box<RawValue>,
    },
}

/// Data of an event. Its type is also its name.
#[derive(Debug, Serialize, JsonSchema, strum::IntoStaticStr, strum::VariantNames)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MessageEvent {
    MessageStart { message: Message },
    ContentBlockStart { index: usize, content_block: Block },
    ContentBlockDelta { index: usize, delta: Delta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: End, usage: Usage },
    MessageStop,
    Ping,
    Error { error: ErrorDetails },
}

/// Part of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "MessageBlockDelta")]
pub enum Delta {
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: &'static str },
    InputJsonDelta { partial_json: String },
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageEnd")]
pub struct End {
    stop_reason: StopReason,
    stop_sequence: Option<String>,
}

/// Prompt tokens from the prefix cache are cache reads, and are no input tokens.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageUsage")]
pub struct Usage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

/// Answer of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MessageTokens {
    pub input_tokens: usize,
}

impl Message {
    pub(super) fn of(id: &str, model: &str, usage: Usage) -> Self {
        Self {
            id: id.to_owned(),
            r#type: MessageType::Message,
            role: Role::Assistant,
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }

    pub(super) fn ended(self, content: Vec<Block>, end: End) -> Self {
        Self {
            content,
            stop_reason: Some(end.stop_reason),
            stop_sequence: end.stop_sequence,
            ..self
        }
    }
}

impl End {
    pub(super) fn of(completion: &Completion, timeline: &Timeline) -> Self {
        Self {
            stop_reason: StopReason::of(completion.stop_reason, timeline),
            stop_sequence: completion.stop_sequence.clone(),
        }
    }
}

impl StopReason {
    pub(super) fn of(reason: requests::StopReason, timeline: &Timeline) -> Self {
        match reason {
            requests::StopReason::MaxTokens => Self::MaxTokens,
            requests::StopReason::StopSequence => Self::StopSequence,
            requests::StopReason::Eos if timeline.has_whole_calls() => Self::ToolUse,
            requests::StopReason::Eos => Self::EndTurn,
        }
    }
}

impl Usage {
    pub(super) fn of(tokens_in: u32, cached: u32, tokens_out: u32) -> Self {
        Self {
            input_tokens: tokens_in.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: tokens_out,
        }
    }
}

impl From<&Completion> for Usage {
    fn from(completion: &Completion) -> Self {
        let (all, cached) = (completion.tokens_in, completion.cached_tokens);
        Self::of(all, cached, completion.tokens_out)
    }
}

impl From<Item> for Block {
    fn from(Item { kind, text }: Item) -> Self {
        match kind {
            Kind::Text => Self::Text { text },
            Kind::Reasoning => Self::Thinking {
                thinking: text,
                signature: "",
            },
            Kind::Call(call) => Self::ToolUse {
                id: call.id.clone(),
                name: call.name.clone(),
                input: input(text),
            },
        }
    }
}

/// Input of a call. Truncated arguments are not an object, and completing them would make another call than the model
/// intended, so they become `{}`.
fn input(text: String) -> Box<RawValue> {
    let nothing = |_| RawValue::from_string("{}".to_owned());
    let given = RawValue::from_string(text).or_else(nothing);
    given.unwrap_or_else(|_| RawValue::NULL.to_owned())
}
