//! Answer: a message, or a stream of `message_start`, then for each block `content_block_start`, `content_block_delta` and
//! `content_block_stop`, then `message_delta` and `message_stop`.
//!
//! A piece of text becomes any number of events. The last of them has the `id:` of its token, as in `/execute`: a
//! client that reconnects with `Last-Event-ID` receives everything after that event. Anthropic's own clients use the
//! names of events and ignore ids, comments and `ping`.

use super::ID_PREFIX_OF_CALLS;
use super::answer::{Block, Delta, End, Message, MessageEvent, Usage};
use crate::error::ApiError;
use crate::error::anthropic::AnthropicError;
use crate::render::{Render, Whole, write_data, write_json};
use crate::timeline::{Change, Item, Kind, Step, Timeline, sum};
use worker_orcd_requests::{Completion, Failure, Piece};
use worker_orcd_text::tools::Parsing;

#[derive(Debug)]
pub struct MessageEvents {
    id: String,
    model: String,
    tokens_in: u32,
    timeline: Timeline,
    /// Buffer, reused between pieces.
    steps: Vec<Step>,
    /// Text of an answer in one piece.
    text: String,
}

impl MessageEvents {
    #[must_use]
    pub fn new(id: &str, model: &str, tokens_in: u32, parsing: &Parsing) -> Self {
        Self {
            id: id.to_owned(),
            model: model.to_owned(),
            tokens_in,
            timeline: Timeline::new(id, ID_PREFIX_OF_CALLS, parsing),
            steps: Vec::new(),
            text: String::new(),
        }
    }

    /// Writes the events of the steps. The last one has this id.
    fn write_steps(&mut self, id: Option<u32>, out: &mut Vec<u8>) {
        let events: Vec<_> = self.steps.drain(..).flat_map(events_of).collect();
        let count = events.len();
        for (number, event) in events.iter().enumerate() {
            write_named(out, id.filter(|_| number + 1 == count), event);
        }
    }
}

fn events_of(step: Step) -> Vec<MessageEvent> {
    let (index, kind) = (step.at, step.kind);
    let delta = |delta| MessageEvent::ContentBlockDelta { index, delta };
    match (step.change, kind) {
        (Change::Begins, kind) => {
            let text = String::new();
            let content_block = Item { kind, text }.into();
            vec![MessageEvent::ContentBlockStart {
                index,
                content_block,
            }]
        }
        (Change::Adds(text), Kind::Text) => vec![delta(Delta::TextDelta { text })],
        (Change::Adds(thinking), Kind::Reasoning) => vec![delta(Delta::ThinkingDelta { thinking })],
        (Change::Adds(partial_json), Kind::Call(_)) => {
            vec![delta(Delta::InputJsonDelta { partial_json })]
        }
        // Clients require a signature.
        (Change::Ends { .. }, Kind::Reasoning) => vec![
            delta(Delta::SignatureDelta { signature: "" }),
            MessageEvent::ContentBlockStop { index },
        ],
        (Change::Ends { .. }, _) => vec![MessageEvent::ContentBlockStop { index }],
    }
}

/// Writes an event under its name.
fn write_named(out: &mut Vec<u8>, id: Option<u32>, event: &MessageEvent) {
    let name: &str = event.into();
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        write_json(out, &id);
        out.push(b'\n');
    }
    write_data(out, event);
}

impl Render for MessageEvents {
    fn begin(&mut self, out: &mut Vec<u8>) {
        // The number of cached tokens is known only at the end.
        let usage = Usage::of(self.tokens_in, 0, 0);
        let message = Message::of(&self.id, &self.model, usage);
        write_named(out, None, &MessageEvent::MessageStart { message });
    }

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.timeline.push(&piece.text, &mut self.steps);
        self.write_steps(Some(piece.index), out);
    }

    fn known(&mut self, piece: &Piece) {
        self.timeline.push(&piece.text, &mut self.steps);
        self.write_steps(None, &mut Vec::new());
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        self.timeline.finish(completion.is_cut(), &mut self.steps);
        self.write_steps(None, out);
        let delta = End::of(completion, &self.timeline);
        let usage = completion.into();
        write_named(out, None, &MessageEvent::MessageDelta { delta, usage });
        write_named(out, None, &MessageEvent::MessageStop);
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        let AnthropicError { error, .. } = ApiError::of_failure(failure).for_anthropic();
        write_named(out, None, &MessageEvent::Error { error });
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        write_named(out, None, &MessageEvent::Ping);
    }
}

impl Whole for MessageEvents {
    fn gather(&mut self, piece: &Piece) {
        self.text.push_str(&piece.text);
    }

    fn whole(mut self, completion: &Completion) -> Vec<u8> {
        self.timeline.push(&self.text, &mut self.steps);
        self.timeline.finish(completion.is_cut(), &mut self.steps);
        let end = End::of(completion, &self.timeline);
        let content = sum(self.steps).into_iter().map(Block::from).collect();
        let message = Message::of(&self.id, &self.model, completion.into()).ended(content, end);
        let mut body = Vec::new();
        write_json(&mut body, &message);
        body
    }
}

#[cfg(test)]
mod tests;
