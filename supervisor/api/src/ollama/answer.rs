//! Answer as lines, one JSON object each, and as their sum.
//!
//! A tool call is one object, because its arguments are one: it follows when the call is complete. A call that is cut has
//! no object.

use super::Kind;
use crate::answer::absent_not_null;
use crate::error::ApiError;
use crate::render::{LINES, Render, SPACE, Whole, write_json};
use crate::string_enums;
use crate::timeline::{self, Change, Step, Timeline};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::time::{Duration, SystemTime};
use worker_orcd_requests::{Completion, Failure, Piece};
use worker_orcd_text::calendar::rfc3339;
use worker_orcd_text::tools::Parsing;

/// Prefix of tool call ids.
const ID_PREFIX_OF_CALLS: &str = "call_";

string_enums! {
    Role: Assistant = "assistant";
    DoneReason: Stop = "stop" | Length = "length";
}

/// Whole answer, or a line of one: with `message` from `/api/chat`, with `response` and `thinking` from `/api/generate`.
/// The last line has the end.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaAnswer", transform = absent_not_null)]
pub struct Line<'a> {
    model: &'a str,
    created_at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    done: bool,
    #[serde(flatten)]
    end: Option<End>,
}

/// End of an answer. Durations are in nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
struct End {
    done_reason: DoneReason,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u32,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

/// Message, or a part of one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaMessage", transform = absent_not_null)]
struct Message {
    role: Role,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaToolCall")]
struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaFunction")]
struct Function {
    index: usize,
    name: String,
    /// JSON object, as the model wrote it.
    #[schemars(with = "Map<String, Value>")]
    arguments: Box<RawValue>,
}

#[derive(Debug)]
pub struct Lines {
    model: String,
    endpoint: Kind,
    /// Time at which the answer began, RFC 3339. Each line has it, so that another supervisor continues with the same
    /// bytes.
    created_at: String,
    timeline: Timeline,
    /// Arguments of the open call.
    arguments: String,
    /// Text of an answer in one piece.
    text: String,
}

impl Lines {
    /// `id`: of the answer.
    #[must_use]
    pub fn new(
        id: &str,
        model: &str,
        endpoint: Kind,
        created: SystemTime,
        parsing: &Parsing,
    ) -> Self {
        Self {
            model: model.to_owned(),
            endpoint,
            created_at: rfc3339(created),
            timeline: Timeline::new(id, ID_PREFIX_OF_CALLS, parsing),
            arguments: String::new(),
            text: String::new(),
        }
    }

    /// Adds the content of a step to a message. Returns false if it has none.
    fn add(&mut self, step: Step, to: &mut Message) -> bool {
        match (step.change, step.kind) {
            (Change::Begins, _) => {
                self.arguments.clear();
                return false;
            }
            (Change::Adds(text), timeline::Kind::Text) => to.content.push_str(&text),
            (Change::Adds(text), timeline::Kind::Reasoning) => to.thinking.push_str(&text),
            (Change::Adds(text), timeline::Kind::Call(_)) => {
                self.arguments.push_str(&text);
                return false;
            }
            (Change::Ends { is_whole: true }, timeline::Kind::Call(call)) => {
                // The parser ends a call only behind an object.
                let Ok(arguments) = RawValue::from_string(std::mem::take(&mut self.arguments))
                else {
                    return false;
                };
                let function = Function {
                    index: call.index,
                    name: call.name.clone(),
                    arguments,
                };
                let id = call.id.clone();
                to.tool_calls.push(ToolCall { id, function });
            }
            (Change::Ends { .. }, _) => return false,
        }
        true
    }

    /// Writes an object without a line break.
    fn write(&self, message: Message, end: Option<End>, out: &mut Vec<u8>) {
        let mut line = Line {
            model: &self.model,
            created_at: &self.created_at,
            message: None,
            response: None,
            thinking: String::new(),
            done: end.is_some(),
            end,
        };
        match self.endpoint {
            Kind::Chat => line.message = Some(message),
            Kind::Generate => {
                line.response = Some(message.content);
                line.thinking = message.thinking;
            }
        }
        write_json(out, &line);
    }

    /// Writes a line for each step that has content.
    fn write_each(&mut self, steps: Vec<Step>, out: &mut Vec<u8>) {
        for step in steps {
            let mut message = Message::new();
            if self.add(step, &mut message) {
                self.write(message, None, out);
                out.push(b'\n');
            }
        }
    }
}

impl Message {
    fn new() -> Self {
        Self {
            role: Role::Assistant,
            content: String::new(),
            thinking: String::new(),
            tool_calls: Vec::new(),
        }
    }
}

impl From<&Completion> for End {
    fn from(completion: &Completion) -> Self {
        let queued = completion.queued_for.unwrap_or_default();
        let (prompt, decode) = (completion.first_token_after, completion.decode_time);
        Self {
            done_reason: match completion.is_cut() {
                true => DoneReason::Length,
                false => DoneReason::Stop,
            },
            total_duration: nanoseconds(prompt.saturating_add(decode)),
            // A request is accepted only with a loaded model.
            load_duration: 0,
            prompt_eval_count: completion.tokens_in,
            prompt_eval_duration: nanoseconds(prompt.saturating_sub(queued)),
            eval_count: completion.tokens_out,
            eval_duration: nanoseconds(decode),
        }
    }
}

/// Nanoseconds, up to those of 584 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Render for Lines {
    const CONTENT_TYPE: &'static str = LINES;

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let mut steps = Vec::new();
        self.timeline.push(&piece.text, &mut steps);
        self.write_each(steps, out);
    }

    fn known(&mut self, piece: &Piece) {
        self.text(piece, &mut Vec::new());
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let mut steps = Vec::new();
        self.timeline.finish(completion.is_cut(), &mut steps);
        self.write_each(steps, out);
        self.write(Message::new(), Some(completion.into()), out);
        out.push(b'\n');
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        write_json(out, &ApiError::of_failure(failure).for_ollama());
        out.push(b'\n');
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(SPACE);
    }

    fn recovering(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(SPACE);
    }
}

impl Whole for Lines {
    fn gather(&mut self, piece: &Piece) {
        self.text.push_str(&piece.text);
    }

    fn whole(mut self, completion: &Completion) -> Vec<u8> {
        let (mut steps, mut message, mut out) = (Vec::new(), Message::new(), Vec::new());
        self.timeline.push(&self.text, &mut steps);
        self.timeline.finish(completion.is_cut(), &mut steps);
        for step in steps {
            self.add(step, &mut message);
        }
        self.write(message, Some(completion.into()), &mut out);
        out
    }
}

#[cfg(test)]
mod tests;
