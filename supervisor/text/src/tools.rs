//! The parts of an answer: what a model thinks, says and calls, told apart in the text that it writes.
//!
//! ```text
//! pieces of text ── thinking ──→ calls ──→ events ──→ a stream's deltas, or one message
//!              │    <think>      <tool_call> …   ↑
//!              └──────────── harmony ────────────┘
//! ```
//!
//! A [`Parser`] is a pure function of the text: where it was cut into pieces changes nothing but where its
//! events are cut. So a stream that goes on elsewhere goes on with the same bytes, and a whole answer
//! is what the events of the stream add up to. Time grows with the text's length, memory with
//! what cannot be told yet.
//!
//! * [`Syntax`] is how one family of models writes calls, [`Choice`] which one a model's template teaches.
//! * [`CallRules`] are calls that a model must or may write, as a grammar.
//! * Text that turns out to be no call is content, to the last character; but a call of which the client
//!   knows already stays one that never ends, and what follows is content.
//!
//! Deliberately absent: sockets, JSON of an API, and what a call is good for.

mod call;
mod calls;
mod choice;
mod harmony;
mod harmony_rules;
pub(super) mod json;
pub(super) mod lark;
mod lookout;
#[cfg(test)]
mod message;
mod syntax;
#[cfg(test)]
mod tests;
mod thinking;

pub use choice::{ChatTerms, Choice, Choices};
pub use harmony::ends_in_header;
pub use lark::{CallRules, Function};
pub use syntax::Syntax;
pub use thinking::{budget as thinking_budget, opens_thinking};

use calls::Calls;
use harmony::Harmony;
use serde::{Deserialize, Serialize};
use thinking::Thinking;

/// How one answer is taken apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parsing {
    /// `None`: calls are text.
    pub calls: Option<Syntax>,
    /// `None`: thinking is text.
    pub thinking: Option<Thoughts>,
}

/// Where thinking begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Thoughts {
    /// With the answer's own tag, if there is one.
    Tagged,
    /// With the answer: its prompt has the tag.
    Opened,
    /// Anywhere: they are messages of their own. All of an answer is messages then, and calls are, too.
    Channels,
}

impl Thoughts {
    /// `--reasoning-parser`'s.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tagged | Self::Opened => "think",
            Self::Channels => "harmony",
        }
    }
}

impl Parsing {
    /// True if there is something to take apart.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.calls.is_some() || self.thinking.is_some()
    }

    /// Says that the prompt [opens thinking](opens_thinking).
    pub fn open_thinking(&mut self) {
        if self.thinking == Some(Thoughts::Tagged) {
            self.thinking = Some(Thoughts::Opened);
        }
    }

    /// The texts by which parts are told apart, some of which may be special tokens.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let of_thinking: &[_] = match self.thinking {
            None => &[],
            Some(Thoughts::Tagged | Thoughts::Opened) => &[thinking::OPEN, thinking::CLOSE],
            Some(Thoughts::Channels) => harmony::MARKS,
        };
        let of_calls = self.calls.into_iter().flat_map(Syntax::texts);
        of_thinking.iter().copied().chain(of_calls)
    }
}

/// A part of an answer, or more of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Content(String),
    Reasoning(String),
    CallBegins {
        name: String,
    },
    /// More text of the arguments of the call that began last.
    CallArguments(String),
    /// Its arguments are whole.
    CallEnds,
}

/// Takes one answer apart.
#[derive(Debug, Clone)]
pub struct Parser(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// Thoughts first, then text and calls.
    Parts {
        thinking: Option<Thinking>,
        calls: Option<Calls>,
    },
    Messages(Harmony),
}

impl Parser {
    #[must_use]
    pub fn new(parsing: Parsing) -> Self {
        let thinking = match parsing.thinking {
            None => None,
            Some(Thoughts::Tagged) => Some(Thinking::new(false)),
            Some(Thoughts::Opened) => Some(Thinking::new(true)),
            Some(Thoughts::Channels) => {
                return Self(Kind::Messages(Harmony::new(parsing.calls.is_some())));
            }
        };
        let calls = parsing.calls.map(Calls::new);
        Self(Kind::Parts { thinking, calls })
    }

    /// Appends what is certain after this text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        match &mut self.0 {
            Kind::Messages(harmony) => harmony.push(text, out),
            Kind::Parts { thinking, calls } => match thinking {
                Some(thinking) => {
                    let rest = thinking.push(text, out);
                    answer(calls, &rest, out);
                }
                None => answer(calls, text, out),
            },
        }
    }

    /// Ends the answer: what was held back is told.
    pub fn finish(&mut self, out: &mut Vec<Event>) {
        match &mut self.0 {
            Kind::Messages(harmony) => harmony.finish(out),
            Kind::Parts { thinking, calls } => {
                if let Some(thinking) = thinking {
                    let rest = thinking.finish(out);
                    answer(calls, &rest, out);
                }
                if let Some(calls) = calls {
                    calls.finish(out);
                }
            }
        }
    }
}

fn answer(calls: &mut Option<Calls>, text: &str, out: &mut Vec<Event>) {
    match calls {
        Some(calls) => calls.push(text, out),
        None => push_content(out, text),
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
