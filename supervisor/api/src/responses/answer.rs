//! The `response` object: the whole answer, and the data of a stream's first and last events.
//!
//! Sources: OpenAI's API reference, and the models of its Python package. `instructions` and `tools` are not repeated:
//! they are part of the prompt, and the record of an answer keeps only its tokens.

use super::output::{Item, Status};
use crate::timeline::Kind;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};
use std::collections::BTreeMap;
use worker_orcd_requests::{Completion, StopReason};
use worker_orcd_text::tools::Parsing;

/// Fields of the request that the answer repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    pub temperature: Option<Number>,
    pub top_p: Option<Number>,
    pub max_output_tokens: u32,
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
    pub effort: Option<String>,
    /// Format that constrains the answer. `None`: text.
    pub format: Option<Value>,
    pub verbosity: Option<String>,
    #[serde(default)]
    pub top_logprobs: u8,
    pub metadata: BTreeMap<String, String>,
}

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

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) input: u32,
    /// Input tokens that were cached.
    pub(super) cached: u32,
    pub(super) output: u32,
    pub(super) reasoning: u32,
}

/// The whole object.
#[derive(Debug, Serialize)]
pub(super) struct Response<'a> {
    #[serde(flatten)]
    fields: Value,
    output: Vec<Told<'a>>,
}

/// Item in its current state.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Told<'a> {
    Reasoning {
        id: String,
        summary: [(); 0],
        content: Vec<Part<'a>>,
        status: &'static str,
    },
    Message {
        id: String,
        role: &'static str,
        content: Vec<Part<'a>>,
        status: &'static str,
    },
    FunctionCall {
        id: String,
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
        status: &'static str,
    },
}

/// The only part of reasoning or of a message.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part<'a> {
    ReasoningText {
        text: &'a str,
    },
    OutputText {
        text: &'a str,
        annotations: [(); 0],
        logprobs: Box<RawValue>,
    },
}

impl Progress {
    pub(super) fn ended(completion: &Completion, reasoning_tokens: u32) -> Self {
        Self::Ends {
            is_cut: completion.stop_reason == StopReason::MaxTokens,
            usage: Usage {
                input: completion.tokens_in,
                cached: completion.cached_tokens,
                output: completion.tokens_out,
                reasoning: reasoning_tokens,
            },
        }
    }
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "input_tokens": self.input,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.input.saturating_add(self.output),
        })
    }
}

impl Header {
    pub(super) fn response<'a>(&self, items: &'a [Item], progress: &Progress) -> Response<'a> {
        let (status, incomplete, usage, error) = match progress {
            Progress::Runs => ("in_progress", Value::Null, Value::Null, Value::Null),
            Progress::Ends { is_cut, usage } => {
                let why = json!({"reason": "max_output_tokens"});
                let (status, why) = match is_cut {
                    true => ("incomplete", why),
                    false => ("completed", Value::Null),
                };
                (status, why, usage.to_json(), Value::Null)
            }
            Progress::Failed(message) => {
                // The only code in OpenAI's list that fits all failures of a worker.
                let error = json!({"code": "server_error", "message": message});
                ("failed", Value::Null, Value::Null, error)
            }
        };
        let echo = &self.echo;
        let format = echo
            .format
            .clone()
            .unwrap_or_else(|| json!({"type": "text"}));
        let output = items.iter().enumerate();
        let output = output.map(|(at, item)| self.item(at, item)).collect();
        let fields = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": incomplete,
            "max_output_tokens": echo.max_output_tokens,
            "metadata": echo.metadata,
            "model": self.model,
            "parallel_tool_calls": echo.parallel_tool_calls,
            "previous_response_id": null,
            "reasoning": {"effort": echo.effort, "summary": null},
            "store": false,
            "temperature": echo.temperature,
            "text": {"format": format, "verbosity": echo.verbosity},
            "tool_choice": echo.tool_choice,
            "tools": [],
            "top_logprobs": echo.top_logprobs,
            "top_p": echo.top_p,
            "truncation": "disabled",
            "usage": usage,
        });
        Response { fields, output }
    }

    pub(super) fn item<'a>(&self, at: usize, item: &'a Item) -> Told<'a> {
        let (id, status) = (self.item_id(at, &item.kind), item.status.name());
        let has_begun = !(item.text.is_empty() && item.status == Status::InProgress);
        let content = || has_begun.then(|| part(item)).into_iter().collect();
        match &item.kind {
            Kind::Reasoning => Told::Reasoning {
                id,
                summary: [],
                content: content(),
                status,
            },
            Kind::Text => Told::Message {
                id,
                role: "assistant",
                content: content(),
                status,
            },
            Kind::Call { name, id: call_id } => Told::FunctionCall {
                id,
                call_id,
                name,
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
            Kind::Call { .. } => "fc",
        };
        let own = self.id.trim_start_matches(super::ID_PREFIX);
        format!("{prefix}_{own}_{at}")
    }
}

pub(super) fn part(item: &Item) -> Part<'_> {
    let text = &item.text;
    match &item.kind {
        Kind::Reasoning => Part::ReasoningText { text },
        Kind::Text | Kind::Call { .. } => Part::OutputText {
            text,
            annotations: [],
            logprobs: item.logprobs.list(),
        },
    }
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}
