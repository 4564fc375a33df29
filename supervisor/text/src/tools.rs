//! Parser of an answer: splits the model's text into reasoning, content and tool calls.
//!
//! ```text
//! pieces of text ── thinking ──→ calls ──→ events ──→ a stream's deltas, or one message
//!              │    <think>      <tool_call> …   ↑
//!              └──────────── harmony ────────────┘
//! ```
//!
//! A [`Parser`] is a pure function of the text and of the tools' schemas: the boundaries of the pieces change only the
//! boundaries of the events.
//! So a stream that another supervisor continues has the same bytes, and a whole answer is the sum of the stream's
//! events. Time is linear in the text. Memory is bounded by the text that is still ambiguous.
//!
//! * [`Syntax`] is the tool call format of one model family. [`Choice`] selects it, by default from the model's chat
//!   template.
//! * [`CallRules`] are the tool calls that a model must or may write, as a grammar.
//! * Text that turns out not to be a tool call is content, to the last character. But a call that the client has
//!   already received stays a call without an end, and the following text is content.
//!
//! Deliberately absent: sockets, the JSON of an API, and execution of calls.

mod call;
mod choice;
mod dict;
mod function;
mod harmony;
mod harmony_rules;
pub(super) mod json;
pub(super) mod lark;
mod lookout;
#[cfg(test)]
mod message;
mod parameters;
mod syntax;
#[cfg(test)]
mod tests;
mod thinking;
mod tool_calls;
mod value;

pub use choice::{ChatTerms, Choice, Choices};
pub use harmony::ends_in_header;
pub use lark::{CallRules, Function};
pub use parameters::{MAX_SCHEMA_BYTES, Parameters};
pub use syntax::Syntax;
pub use thinking::{budget as thinking_budget, opens_thinking};

use harmony::Harmony;
use serde::{Deserialize, Serialize};
use thinking::Thinking;
use tool_calls::ToolCalls;

/// Parsers that one answer needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parsing {
    /// `None`: tool calls stay part of the content.
    pub calls: Option<Syntax>,
    /// `None`: reasoning stays part of the content.
    pub thinking: Option<ReasoningFormat>,
    /// Types of the functions' parameters, for a syntax that does not show them.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
}

/// Position at which reasoning begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReasoningFormat {
    /// Reasoning begins the answer, if the answer begins with the opening tag.
    Tagged,
    /// Reasoning begins the answer: the prompt ends with the opening tag.
    Opened,
    /// Reasoning is a message of its own, anywhere. The whole answer then consists of messages, tool calls included.
    Channels,
    /// Reasoning is between the marks of Gemma 4, anywhere.
    Gemma4,
}

impl ReasoningFormat {
    /// Value of `--reasoning-parser` for this format.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tagged | Self::Opened => "think",
            Self::Channels => "harmony",
            Self::Gemma4 => "gemma4",
        }
    }
}

impl Parsing {
    /// True if the answer needs a parser at all.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.calls.is_some() || self.thinking.is_some()
    }

    /// Records that the prompt [opens reasoning](opens_thinking).
    pub fn open_thinking(&mut self) {
        if self.thinking == Some(ReasoningFormat::Tagged) {
            self.thinking = Some(ReasoningFormat::Opened);
        }
    }

    /// Texts that delimit reasoning and tool calls. In some vocabularies they are special tokens.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let of_thinking: &[_] = match self.thinking {
            None => &[],
            Some(ReasoningFormat::Tagged | ReasoningFormat::Opened) => {
                &[thinking::OPEN, thinking::CLOSE]
            }
            Some(ReasoningFormat::Gemma4) => &[thinking::CHANNEL, thinking::CHANNEL_END],
            Some(ReasoningFormat::Channels) => harmony::MARKS,
        };
        let of_calls = self.calls.into_iter().flat_map(Syntax::texts);
        of_thinking.iter().copied().chain(of_calls)
    }
}

/// Part of an answer, or a continuation of the previous part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Content(String),
    Reasoning(String),
    CallBegins {
        name: String,
    },
    /// More of the arguments of the call that began last.
    CallArguments(String),
    /// The arguments of the call that began last are complete.
    CallEnds,
}

/// Parser of one answer.
#[derive(Debug, Clone)]
pub struct Parser(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// Reasoning first, then content and tool calls.
    Parts {
        thinking: Option<Thinking>,
        calls: Option<ToolCalls>,
    },
    Messages(Harmony),
}

impl Parser {
    #[must_use]
    pub fn new(parsing: &Parsing) -> Self {
        let thinking = match parsing.thinking {
            None => None,
            Some(ReasoningFormat::Channels) => {
                return Self(Kind::Messages(Harmony::new(parsing.calls.is_some())));
            }
            Some(reasoning) => Some(Thinking::new(reasoning)),
        };
        let calls = parsing.calls;
        let calls = calls.map(|syntax| ToolCalls::new(syntax, parsing.parameters.clone()));
        Self(Kind::Parts { thinking, calls })
    }

    /// Appends the events that this text makes certain.
    pub fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        match &mut self.0 {
            Kind::Messages(harmony) => harmony.push(text, out),
            Kind::Parts { thinking, calls } => match thinking {
                Some(thinking) => thinking.push(text, out, |text, out| answer(calls, text, out)),
                None => {
                    answer(calls, text, out);
                }
            },
        }
    }

    /// Ends the answer. Text that was held back becomes events. `is_cut`: a limit ended the answer, so a call without its
    /// last tags is incomplete.
    pub fn finish(&mut self, is_cut: bool, out: &mut Vec<Event>) {
        match &mut self.0 {
            Kind::Messages(harmony) => harmony.finish(out),
            Kind::Parts { thinking, calls } => {
                if let Some(thinking) = thinking {
                    let rest = thinking.finish(out);
                    answer(calls, &rest, out);
                }
                if let Some(calls) = calls {
                    calls.finish(is_cut, out);
                }
            }
        }
    }
}

/// Returns true if the text ends within a call.
fn answer(calls: &mut Option<ToolCalls>, text: &str, out: &mut Vec<Event>) -> bool {
    match calls {
        Some(calls) => {
            calls.push(text, out);
            calls.is_in_call()
        }
        None => {
            push_content(out, text);
            false
        }
    }
}

fn push_content(out: &mut Vec<Event>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Event::Content(before)) => before.push_str(text),
        _ => out.push(Event::Content(text.to_owned())),
    }
}

fn push_reasoning(out: &mut Vec<Event>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Event::Reasoning(before)) => before.push_str(text),
        _ => out.push(Event::Reasoning(text.to_owned())),
    }
}
