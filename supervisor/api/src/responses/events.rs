//! Stream of an answer: named events, numbered by `sequence_number`. The last one is `response.completed`,
//! `response.incomplete` or `response.failed`. As with OpenAI, no `[DONE]` follows.
//!
//! A piece of text becomes any number of events, none while the parser holds it back.
//!
//! Events have no `id:` line, for the same reason as chunks ([`stream`](crate::openai::stream)).

use super::answer::{Header, OutputItem, Part, Progress, Response, part};
use super::output::{Growth, Item, Output};
use crate::answer::absent_not_null;
use crate::openai::logprobs::{ChatToken, Column};
use crate::render::{Render, Whole, write_event, write_json};
use crate::string_enums;
use crate::timeline::Kind;
use schemars::JsonSchema;
use serde::Serialize;
use worker_orcd_requests::{Completion, Failure, Piece};

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

string_enums! {
    EventName: Created = "response.created"
        | InProgress = "response.in_progress"
        | ItemAdded = "response.output_item.added"
        | PartAdded = "response.content_part.added"
        | TextDelta = "response.output_text.delta"
        | TextDone = "response.output_text.done"
        | ReasoningDelta = "response.reasoning_text.delta"
        | ReasoningDone = "response.reasoning_text.done"
        | ArgumentsDelta = "response.function_call_arguments.delta"
        | ArgumentsDone = "response.function_call_arguments.done"
        | PartDone = "response.content_part.done"
        | ItemDone = "response.output_item.done"
        | Completed = "response.completed"
        | Incomplete = "response.incomplete"
        | Failed = "response.failed";
}

/// Data of an event.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ResponseEvent<'a> {
    r#type: EventName,
    sequence_number: u64,
    #[serde(flatten)]
    data: Data<'a>,
}

/// Fields that depend on the type: of a response, of an item, of a part, and of a text or a piece of it. Arguments of a
/// call have no index and no log probabilities. At its end, a call has a name.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Response<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<OutputItem<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 0))]
    content_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<ChatToken<'static>>>")]
    logprobs: Option<&'a Column>,
}

impl<'a> Data<'a> {
    fn of_item(at: usize, item: OutputItem<'a>) -> Self {
        Self {
            output_index: Some(at),
            item: Some(item),
            ..Self::default()
        }
    }

    fn of_text(id: &'a str, at: usize) -> Self {
        Self {
            item_id: Some(id),
            output_index: Some(at),
            ..Self::default()
        }
    }
}

impl Sequence {
    fn event(&mut self, name: EventName, out: &mut Vec<u8>, data: Data<'_>) {
        let event = ResponseEvent {
            r#type: name,
            sequence_number: self.next,
            data,
        };
        if self.next >= self.from {
            write_event(out, name.into(), &event);
        }
        self.next += 1;
    }
}

impl Events {
    #[must_use]
    pub fn new(header: Header, from: u64) -> Self {
        let only_one_call = !header.echo.parallel_tool_calls;
        let output = Output::new(&header.id, &header.parsing, only_one_call);
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
        let data = Data::of_item(at, self.header.item(at, &item));
        self.sequence.event(EventName::ItemAdded, out, data);
        self.of_part(EventName::PartAdded, at, &item, out);
    }

    fn of_part(&mut self, name: EventName, at: usize, item: &Item, out: &mut Vec<u8>) {
        if matches!(item.kind, Kind::Call(_)) {
            return;
        }
        let id = self.header.item_id(at, &item.kind);
        let data = Data {
            content_index: Some(0),
            part: Some(part(item)),
            ..Data::of_text(&id, at)
        };
        self.sequence.event(name, out, data);
    }

    fn more(&mut self, at: usize, text: &str, logprobs: &Column, out: &mut Vec<u8>) {
        let kind = &self.output.items[at].kind;
        let (name, content_index) = match kind {
            Kind::Reasoning => (EventName::ReasoningDelta, Some(0)),
            Kind::Text => (EventName::TextDelta, Some(0)),
            Kind::Call(_) => (EventName::ArgumentsDelta, None),
        };
        let id = self.header.item_id(at, kind);
        let data = Data {
            content_index,
            delta: Some(text),
            logprobs: (*kind == Kind::Text).then_some(logprobs),
            ..Data::of_text(&id, at)
        };
        self.sequence.event(name, out, data);
    }

    fn ends(&mut self, at: usize, out: &mut Vec<u8>) {
        // The item no longer grows. It is put back after its events.
        let item = std::mem::replace(&mut self.output.items[at], Item::nothing());
        let id = self.header.item_id(at, &item.kind);
        let (text, data) = (Some(item.text.as_str()), Data::of_text(&id, at));
        let (name, data) = match &item.kind {
            Kind::Reasoning => {
                let content_index = Some(0);
                let data = Data {
                    content_index,
                    text,
                    ..data
                };
                (EventName::ReasoningDone, data)
            }
            Kind::Text => {
                let data = Data {
                    content_index: Some(0),
                    text,
                    logprobs: Some(&item.logprobs),
                    ..data
                };
                (EventName::TextDone, data)
            }
            Kind::Call(call) => {
                let data = Data {
                    name: Some(&call.name),
                    arguments: text,
                    ..data
                };
                (EventName::ArgumentsDone, data)
            }
        };
        self.sequence.event(name, out, data);
        self.of_part(EventName::PartDone, at, &item, out);
        let data = Data::of_item(at, self.header.item(at, &item));
        self.sequence.event(EventName::ItemDone, out, data);
        self.output.items[at] = item;
    }

    fn response(&mut self, name: EventName, progress: &Progress, out: &mut Vec<u8>) {
        let data = Data {
            response: Some(self.header.response(&self.output.items, progress)),
            ..Data::default()
        };
        self.sequence.event(name, out, data);
    }
}

impl Render for Events {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.sequence.next = 0;
        for name in [EventName::Created, EventName::InProgress] {
            self.response(name, &Progress::Runs, out);
        }
    }

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.push(piece, out);
    }

    fn known(&mut self, piece: &Piece) {
        self.push(piece, &mut Vec::new());
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let mut growth = std::mem::take(&mut self.growth);
        self.output.finish(completion.is_cut(), &mut growth);
        growth.drain(..).for_each(|it| self.write_growth(it, out));
        let progress = Progress::ended(completion, self.output.reasoning_tokens);
        let name = match completion.is_cut() {
            true => EventName::Incomplete,
            false => EventName::Completed,
        };
        self.response(name, &progress, out);
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        self.output.break_off();
        let progress = Progress::Failed(failure.message.clone());
        self.response(EventName::Failed, &progress, out);
    }
}

impl Whole for Events {
    fn gather(&mut self, piece: &Piece) {
        self.output.push(piece, &mut Vec::new());
    }

    fn whole(mut self, completion: &Completion) -> Vec<u8> {
        self.output.finish(completion.is_cut(), &mut Vec::new());
        let ended = Progress::ended(completion, self.output.reasoning_tokens);
        let mut body = Vec::new();
        write_json(&mut body, &self.header.response(&self.output.items, &ended));
        body
    }
}

#[cfg(test)]
mod tests;
