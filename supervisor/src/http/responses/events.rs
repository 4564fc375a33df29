//! A streamed answer: named events, each with the next `sequence_number`. The last one is
//! `response.completed`, `response.incomplete` or `response.failed`; no `[DONE]` follows, as with OpenAI.
//!
//! A piece of text may become several events, or none as long as it is not known what it is.
//!
//! Events have no `id:` line, for the reason that chunks have none ([`stream`](crate::http::openai::stream)).

use super::answer::{Header, Progress, part};
use super::output::{Kind, Output, Status, Step};
use crate::engine::{Completion, Failure, Piece, StopReason};
use crate::http::sse::{Render, write_event};
use serde::Serialize;
use serde_json::{Value, json};

/// Of `response.created` and `response.in_progress`, with which every stream begins.
const BEGINNING: u64 = 2;

#[derive(Debug)]
pub(super) struct Events {
    header: Header,
    output: Output,
    /// Number of the next event.
    sequence: u64,
    /// Events before this one are not told: the client has them.
    from: u64,
    /// Reused between pieces.
    steps: Vec<Step>,
}

/// More of a text; most events are these.
#[derive(Serialize)]
struct Delta<'a> {
    r#type: &'a str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    delta: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<[(); 0]>,
}

impl Events {
    pub(super) fn new(header: Header, from: u64) -> Self {
        let only_one_call = !header.echo.parallel_tool_calls;
        let output = Output::new(&header.id, header.parsing, only_one_call);
        Self {
            header,
            output,
            sequence: BEGINNING,
            from,
            steps: Vec::new(),
        }
    }

    fn push(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let mut steps = std::mem::take(&mut self.steps);
        self.output.push(piece, &mut steps);
        steps.drain(..).for_each(|step| self.tell(step, out));
        self.steps = steps;
    }

    fn tell(&mut self, step: Step, out: &mut Vec<u8>) {
        match step {
            Step::Begins(at) => self.begins(at, out),
            Step::More(at, text) => self.more(at, &text, out),
            Step::Ends(at) => self.ends(at, out),
        }
    }

    fn begins(&mut self, at: usize, out: &mut Vec<u8>) {
        let mut item = self.output.items[at].clone();
        // What has come since is told behind it.
        item.text.clear();
        item.status = Status::InProgress;
        let told = self.header.item(at, &item);
        self.event(
            "response.output_item.added",
            out,
            json!({"output_index": at, "item": told}),
        );
        if !matches!(item.kind, Kind::Call { .. }) {
            let id = self.header.item_id(at, &item.kind);
            self.event("response.content_part.added", out, json!({"item_id": id, "output_index": at, "content_index": 0, "part": part(&item.kind, "")}));
        }
    }

    fn more(&mut self, at: usize, text: &str, out: &mut Vec<u8>) {
        let kind = &self.output.items[at].kind;
        let (name, content_index) = match kind {
            Kind::Reasoning => ("response.reasoning_text.delta", Some(0)),
            Kind::Message => ("response.output_text.delta", Some(0)),
            Kind::Call { .. } => ("response.function_call_arguments.delta", None),
        };
        let delta = Delta {
            r#type: name,
            sequence_number: self.sequence,
            item_id: &self.header.item_id(at, kind),
            output_index: at,
            content_index,
            delta: text,
            logprobs: (*kind == Kind::Message).then_some([]),
        };
        if self.sequence >= self.from {
            write_event(out, name, &delta);
        }
        self.sequence += 1;
    }

    fn ends(&mut self, at: usize, out: &mut Vec<u8>) {
        let item = self.output.items[at].clone();
        let (id, text) = (self.header.item_id(at, &item.kind), item.text.as_str());
        let (name, done) = match &item.kind {
            Kind::Reasoning => (
                "response.reasoning_text.done",
                json!({"item_id": id, "output_index": at, "content_index": 0, "text": text}),
            ),
            Kind::Message => (
                "response.output_text.done",
                json!({
                    "item_id": id, "output_index": at, "content_index": 0, "text": text,
                    "logprobs": [],
                }),
            ),
            Kind::Call { name, .. } => (
                "response.function_call_arguments.done",
                json!({"item_id": id, "output_index": at, "name": name, "arguments": text}),
            ),
        };
        self.event(name, out, done);
        if !matches!(item.kind, Kind::Call { .. }) {
            self.event("response.content_part.done", out, json!({"item_id": id, "output_index": at, "content_index": 0, "part": part(&item.kind, text)}));
        }
        let told = self.header.item(at, &item);
        self.event(
            "response.output_item.done",
            out,
            json!({"output_index": at, "item": told}),
        );
    }

    fn response(&mut self, name: &'static str, progress: &Progress, out: &mut Vec<u8>) {
        let response = self.header.response(&self.output.items, progress);
        self.event(name, out, json!({"response": response}));
    }

    /// One event, with the fields that every event has.
    fn event(&mut self, name: &str, out: &mut Vec<u8>, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        if self.sequence >= self.from {
            write_event(out, name, &data);
        }
        self.sequence += 1;
    }
}

impl Render for Events {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.sequence = 0;
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
        let mut steps = std::mem::take(&mut self.steps);
        self.output.finish(completion.stop_reason, &mut steps);
        steps.drain(..).for_each(|step| self.tell(step, out));
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
