//! Stream of an answer: named events, numbered by `sequence_number`. The last one is `response.completed`,
//! `response.incomplete` or `response.failed`. As with OpenAI, no `[DONE]` follows.
//!
//! A piece of text becomes any number of events, none while the parser holds it back.
//!
//! Events have no `id:` line, for the same reason as chunks ([`stream`](crate::openai::stream)).

use super::answer::{Header, Part, Progress, Response, Told, part};
use super::output::{Growth, Item, Output};
use crate::openai::logprobs::Column;
use crate::render::{Render, write_event};
use crate::timeline::Kind;
use serde::Serialize;
use serde_json::value::RawValue;
use worker_orcd_requests::{Completion, Failure, Piece, StopReason};

/// Number of events at the beginning of every stream: `response.created` and `response.in_progress`.
const BEGINNING: u64 = 2;

#[derive(Debug)]
pub struct Events {
    header: Header,
    output: Output,
    sequence: Sequence,
    /// Buffer, reused between pieces.
    growth: Vec<Growth>,
}

/// Counter of events. It skips events that the client already has.
#[derive(Debug)]
struct Sequence {
    /// Number of the next event.
    next: u64,
    /// Number of the first event to send: the client already has the earlier ones.
    from: u64,
}

/// Event, with the fields that all events share.
#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    data: T,
}

/// Data of an event about an item.
#[derive(Serialize)]
struct OfItem<'a> {
    output_index: usize,
    item: Told<'a>,
}

/// Data of an event about a part of an item.
#[derive(Serialize)]
struct OfPart<'a> {
    item_id: &'a str,
    output_index: usize,
    content_index: u32,
    part: Part<'a>,
}

/// Data of an event about a text or a piece of it. Most events have this form. Arguments of a call have no index and no
/// log probabilities. At its end, a call has a name.
#[derive(Default, Serialize)]
struct OfText<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct OfResponse<'a> {
    response: Response<'a>,
}

impl Sequence {
    fn event(&mut self, name: &str, out: &mut Vec<u8>, data: impl Serialize) {
        let event = Event {
            r#type: name,
            sequence_number: self.next,
            data,
        };
        if self.next >= self.from {
            write_event(out, name, &event);
        }
        self.next += 1;
    }
}

impl Events {
    #[must_use]
    pub fn new(header: Header, from: u64) -> Self {
        let only_one_call = !header.echo.parallel_tool_calls;
        let output = Output::new(&header.id, header.parsing, only_one_call);
        Self {
            header,
            output,
            sequence: Sequence {
                next: BEGINNING,
                from,
            },
            growth: Vec::new(),
        }
    }

    fn push(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let mut growth = std::mem::take(&mut self.growth);
        self.output.push(piece, &mut growth);
        growth.drain(..).for_each(|it| self.write_growth(it, out));
        self.growth = growth;
    }

    fn write_growth(&mut self, growth: Growth, out: &mut Vec<u8>) {
        match growth {
            Growth::Begins(at) => self.begins(at, out),
            Growth::More(at, text, logprobs) => self.more(at, &text, &logprobs, out),
            Growth::Ends(at) => self.ends(at, out),
        }
    }

    fn begins(&mut self, at: usize, out: &mut Vec<u8>) {
        // The item at its beginning, because the list already contains text that later events add.
        let item = Item {
            kind: self.output.items[at].kind.clone(),
            ..Item::nothing()
        };
        let told = OfItem {
            output_index: at,
            item: self.header.item(at, &item),
        };
        self.sequence.event("response.output_item.added", out, told);
        self.of_part("response.content_part.added", at, &item, out);
    }

    fn of_part(&mut self, name: &str, at: usize, item: &Item, out: &mut Vec<u8>) {
        if matches!(item.kind, Kind::Call { .. }) {
            return;
        }
        let told = OfPart {
            item_id: &self.header.item_id(at, &item.kind),
            output_index: at,
            content_index: 0,
            part: part(item),
        };
        self.sequence.event(name, out, told);
    }

    fn more(&mut self, at: usize, text: &str, logprobs: &Column, out: &mut Vec<u8>) {
        let kind = &self.output.items[at].kind;
        let (name, content_index) = match kind {
            Kind::Reasoning => ("response.reasoning_text.delta", Some(0)),
            Kind::Text => ("response.output_text.delta", Some(0)),
            Kind::Call { .. } => ("response.function_call_arguments.delta", None),
        };
        let told = OfText {
            item_id: &self.header.item_id(at, kind),
            output_index: at,
            content_index,
            delta: Some(text),
            logprobs: (*kind == Kind::Text).then(|| logprobs.list()),
            ..OfText::default()
        };
        self.sequence.event(name, out, told);
    }

    fn ends(&mut self, at: usize, out: &mut Vec<u8>) {
        // The item no longer grows. It is put back after its events.
        let item = std::mem::replace(&mut self.output.items[at], Item::nothing());
        let id = self.header.item_id(at, &item.kind);
        let text = item.text.as_str();
        let told = OfText {
            item_id: &id,
            output_index: at,
            content_index: Some(0),
            text: Some(text),
            ..OfText::default()
        };
        let (name, told) = match &item.kind {
            Kind::Reasoning => ("response.reasoning_text.done", told),
            Kind::Text => {
                let logprobs = Some(item.logprobs.list());
                ("response.output_text.done", OfText { logprobs, ..told })
            }
            Kind::Call { name, .. } => (
                "response.function_call_arguments.done",
                OfText {
                    content_index: None,
                    text: None,
                    name: Some(name),
                    arguments: Some(text),
                    ..told
                },
            ),
        };
        self.sequence.event(name, out, told);
        self.of_part("response.content_part.done", at, &item, out);
        let told = OfItem {
            output_index: at,
            item: self.header.item(at, &item),
        };
        self.sequence.event("response.output_item.done", out, told);
        self.output.items[at] = item;
    }

    fn response(&mut self, name: &'static str, progress: &Progress, out: &mut Vec<u8>) {
        let response = self.header.response(&self.output.items, progress);
        self.sequence.event(name, out, OfResponse { response });
    }
}

impl Render for Events {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.sequence.next = 0;
        for name in ["response.created", "response.in_progress"] {
            self.response(name, &Progress::Runs, out);
        }
    }

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.push(piece, out);
    }

    fn known(&mut self, piece: &Piece) {
        self.push(piece, &mut Vec::new());
    }

    fn progress(&mut self, _tokens_out: u32, _out: &mut Vec<u8>) {}

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let mut growth = std::mem::take(&mut self.growth);
        self.output.finish(completion.stop_reason, &mut growth);
        growth.drain(..).for_each(|it| self.write_growth(it, out));
        let progress = Progress::ended(completion, self.output.reasoning_tokens);
        let name = match completion.stop_reason {
            StopReason::MaxTokens => "response.incomplete",
            StopReason::Eos | StopReason::StopSequence => "response.completed",
        };
        self.response(name, &progress, out);
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        self.output.break_off();
        let progress = Progress::Failed(failure.message.clone());
        self.response("response.failed", &progress, out);
    }
}

#[cfg(test)]
mod tests;
