//! Stream of an answer: `message_start`, then for each block `content_block_start`, `content_block_delta` and
//! `content_block_stop`, then `message_delta` and `message_stop`.
//!
//! A piece of text becomes any number of events. The last of them has the `id:` of its token, as in `/execute`: a
//! client that reconnects with `Last-Event-ID` receives everything after that event. Anthropic's own clients use the
//! names of events and ignore ids, comments and `ping`.

use super::{ID_PREFIX_OF_CALLS, stop_reason, usage, usage_of};
use crate::error::{ApiError, Dialect};
use crate::render::{Render, write_data, write_event, write_json};
use crate::timeline::{Kind, Step, Timeline};
use serde_json::{Value, json};
use worker_orcd_requests::{Completion, Failure, Piece, StopReason};
use worker_orcd_text::tools::Parsing;

#[derive(Debug)]
pub struct MessageEvents {
    id: String,
    model: String,
    tokens_in: u32,
    timeline: Timeline,
    /// Number of blocks that have begun.
    begun: usize,
    /// Form of deltas of the block that began last.
    delta: Delta,
    /// Buffer, reused between pieces.
    steps: Vec<Step>,
}

/// Type of a delta, and the key of its text.
#[derive(Debug, Clone, Copy)]
struct Delta {
    kind: &'static str,
    field: &'static str,
}

const TEXT: Delta = Delta {
    kind: "text_delta",
    field: "text",
};
const THINKING: Delta = Delta {
    kind: "thinking_delta",
    field: "thinking",
};
const INPUT: Delta = Delta {
    kind: "input_json_delta",
    field: "partial_json",
};

impl MessageEvents {
    #[must_use]
    pub fn new(id: &str, model: &str, tokens_in: u32, parsing: Parsing) -> Self {
        Self {
            id: id.to_owned(),
            model: model.to_owned(),
            tokens_in,
            timeline: Timeline::new(id, ID_PREFIX_OF_CALLS, parsing),
            begun: 0,
            delta: TEXT,
            steps: Vec::new(),
        }
    }

    /// Writes the events of the steps. The last one has this id.
    fn write_steps(&mut self, id: Option<u32>, out: &mut Vec<u8>) {
        let (mut steps, mut events) = (std::mem::take(&mut self.steps), Vec::new());
        steps
            .drain(..)
            .for_each(|step| self.events_of(step, &mut events));
        self.steps = steps;
        let count = events.len();
        for (number, event) in events.iter().enumerate() {
            write_named(out, id.filter(|_| number + 1 == count), event);
        }
    }

    fn events_of(&mut self, step: Step, events: &mut Vec<Value>) {
        if let Step::Begins(kind) = &step {
            self.begun += 1;
            self.delta = match kind {
                Kind::Text => TEXT,
                Kind::Reasoning => THINKING,
                Kind::Call { .. } => INPUT,
            };
        }
        let index = self.begun.saturating_sub(1);
        let delta =
            |delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
        let Delta { kind, field } = self.delta;
        match step {
            Step::Begins(kind) => events.push(json!({
                "type": "content_block_start", "index": index, "content_block": beginning(kind),
            })),
            Step::Adds(text) => events.push(delta(json!({"type": kind, field: text}))),
            Step::Ends { .. } => {
                // Clients require a signature.
                if kind == THINKING.kind {
                    events.push(delta(json!({"type": "signature_delta", "signature": ""})));
                }
                events.push(json!({"type": "content_block_stop", "index": index}));
            }
        }
    }
}

fn beginning(kind: Kind) -> Value {
    match kind {
        Kind::Text => json!({"type": "text", "text": ""}),
        Kind::Reasoning => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Kind::Call { id, name } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": {}})
        }
    }
}

/// Writes an event. Its type is also its name.
fn write_named(out: &mut Vec<u8>, id: Option<u32>, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
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
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            // The number of cached tokens is known only at the end.
            "usage": usage(self.tokens_in, 0, 0),
        });
        let event = json!({"type": "message_start", "message": message});
        write_named(out, None, &event);
    }

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.timeline.push(&piece.text, &mut self.steps);
        self.write_steps(Some(piece.index), out);
    }

    fn known(&mut self, piece: &Piece) {
        self.timeline.push(&piece.text, &mut self.steps);
        self.write_steps(None, &mut Vec::new());
    }

    fn progress(&mut self, _tokens_out: u32, _out: &mut Vec<u8>) {}

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let is_cut = completion.stop_reason == StopReason::MaxTokens;
        self.timeline.finish(is_cut, &mut self.steps);
        self.write_steps(None, out);
        let delta = json!({
            "stop_reason": stop_reason(completion.stop_reason, &self.timeline),
            "stop_sequence": completion.stop_sequence,
        });
        let usage = usage_of(completion);
        let event = json!({"type": "message_delta", "delta": delta, "usage": usage});
        write_named(out, None, &event);
        write_named(out, None, &json!({"type": "message_stop"}));
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        let error = ApiError::of_failure(failure).body(Dialect::Anthropic);
        write_event(out, "error", &error);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        write_named(out, None, &json!({"type": "ping"}));
    }
}

#[cfg(test)]
mod tests;
