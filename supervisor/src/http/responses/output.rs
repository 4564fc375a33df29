//! The items of one answer: thoughts, texts and calls, in the order in which the model writes them.
//!
//! ```text
//! pieces of text ── text::tools::Parser ──→ events ──→ items, and the steps by which they grow
//! ```
//!
//! Log probabilities are those of a message's tokens. While it is not known what a piece says its tokens wait; those of tags, thoughts
//! and calls are left out.
//!
//! At most one item is open, the last. A pure function of the answer's id and of its pieces, so a stream
//! that goes on elsewhere goes on with the same items and ids.

use crate::engine::{Piece, StopReason};
use crate::http::call_ids::CallIds;
use crate::http::openai::logprobs::Column;
use crate::text::tools::{Event, Parser, Parsing};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// Of a call: its arguments.
    pub(super) text: String,
    /// Of a message, where they are wanted.
    pub(super) logprobs: Column,
    pub(super) status: Status,
}

impl Item {
    /// In the place of an item that is elsewhere for a moment.
    pub(super) fn nothing() -> Self {
        Self {
            kind: Kind::Message,
            text: String::new(),
            logprobs: Column::default(),
            status: Status::InProgress,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Message,
    Call { name: String, call_id: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// How the items grow. Numbers are places among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Begins(usize),
    More(usize, String, Column),
    Ends(usize),
}

#[derive(Debug)]
pub(super) struct Output {
    pub(super) items: Vec<Item>,
    /// Tokens until the last one of the thoughts.
    pub(super) reasoning_tokens: u32,
    parser: Parser,
    ids: CallIds,
    calls: usize,
    /// Further calls are left out.
    only_one_call: bool,
    /// The call that began last is left out.
    is_left_out: bool,
    /// Log probabilities of pieces of which it is not known what they say, with the lengths of their texts in bytes.
    waiting: Vec<(usize, Column)>,
    /// Reused between pieces.
    events: Vec<Event>,
}

impl Output {
    pub(super) fn new(answer: &str, parsing: Parsing, only_one_call: bool) -> Self {
        Self {
            items: Vec::new(),
            reasoning_tokens: 0,
            parser: Parser::new(parsing),
            ids: CallIds::new("call_", answer, parsing.calls),
            calls: 0,
            only_one_call,
            is_left_out: false,
            waiting: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, piece: &Piece, steps: &mut Vec<Step>) {
        let mut events = std::mem::take(&mut self.events);
        self.parser.push(&piece.text, &mut events);
        if events.iter().any(|it| matches!(it, Event::Reasoning(_))) {
            self.reasoning_tokens = piece.index.saturating_add(1);
        }
        if let Some(listed) = &piece.logprobs {
            let mut of_piece = Column::default();
            of_piece.add_chat(listed);
            self.waiting.push((piece.text.len(), of_piece));
        }
        let is_known = !events.is_empty();
        events.drain(..).for_each(|event| self.add(event, steps));
        if is_known {
            self.waiting.clear();
        }
        self.events = events;
    }

    /// Tells what was held back, and ends the last item.
    pub(super) fn finish(&mut self, reason: StopReason, steps: &mut Vec<Step>) {
        let mut events = std::mem::take(&mut self.events);
        self.parser.finish(&mut events);
        events.drain(..).for_each(|event| self.add(event, steps));
        self.close(reason == StopReason::MaxTokens, steps);
    }

    /// Ends the last item, which nothing more comes of.
    pub(super) fn break_off(&mut self) {
        self.close(true, &mut Vec::new());
    }

    fn add(&mut self, event: Event, steps: &mut Vec<Step>) {
        match event {
            Event::Reasoning(text) => self.more(Kind::Reasoning, text, steps),
            Event::Content(text) => self.more(Kind::Message, text, steps),
            Event::CallBegins { name } => self.begin_call(name, steps),
            Event::CallArguments(text) => {
                if !self.is_left_out {
                    self.append(text, Column::default(), steps);
                }
            }
            Event::CallEnds => {
                if !self.is_left_out {
                    self.end(Status::Completed, steps);
                }
            }
        }
    }

    fn begin_call(&mut self, name: String, steps: &mut Vec<Step>) {
        self.is_left_out = self.only_one_call && self.calls > 0;
        if self.is_left_out {
            return;
        }
        self.close(false, steps);
        let call_id = self.ids.id(self.calls);
        self.calls += 1;
        self.begin(Kind::Call { name, call_id }, steps);
    }

    /// More of a thought or of a text.
    fn more(&mut self, kind: Kind, text: String, steps: &mut Vec<Step>) {
        if self.open().is_none_or(|item| item.kind != kind) {
            self.close(false, steps);
            self.begin(kind, steps);
        }
        let logprobs = match self.items.last().map(|item| &item.kind) {
            Some(Kind::Message) => self.take_logprobs(text.len()),
            _ => Column::default(),
        };
        self.append(text, logprobs, steps);
    }

    /// Those of the last pieces that so many bytes of text came of.
    fn take_logprobs(&mut self, bytes: usize) -> Column {
        let mut pieces = std::mem::take(&mut self.waiting);
        let (mut first, mut covered) = (pieces.len(), 0);
        while covered < bytes && first > 0 {
            first -= 1;
            covered += pieces[first].0;
        }
        let mut logprobs = Column::default();
        for (_, of_piece) in pieces.drain(first..) {
            logprobs.append(&of_piece);
        }
        logprobs
    }

    fn open(&mut self) -> Option<&mut Item> {
        let last = self.items.last_mut();
        last.filter(|item| item.status == Status::InProgress)
    }

    fn begin(&mut self, kind: Kind, steps: &mut Vec<Step>) {
        steps.push(Step::Begins(self.items.len()));
        self.items.push(Item {
            kind,
            text: String::new(),
            logprobs: Column::default(),
            status: Status::InProgress,
        });
    }

    fn append(&mut self, text: String, logprobs: Column, steps: &mut Vec<Step>) {
        let place = self.items.len().saturating_sub(1);
        if let Some(item) = self.open() {
            item.text.push_str(&text);
            item.logprobs.append(&logprobs);
            steps.push(Step::More(place, text, logprobs));
        }
    }

    /// Ends the open item. A call that something else follows, or nothing, is not whole.
    fn close(&mut self, is_cut: bool, steps: &mut Vec<Step>) {
        let is_call = |item: &Item| matches!(item.kind, Kind::Call { .. });
        let is_broken = is_cut || self.items.last().is_some_and(is_call);
        let status = match is_broken {
            true => Status::Incomplete,
            false => Status::Completed,
        };
        self.end(status, steps);
    }

    fn end(&mut self, status: Status, steps: &mut Vec<Step>) {
        let place = self.items.len().saturating_sub(1);
        if let Some(item) = self.open() {
            item.status = status;
            steps.push(Step::Ends(place));
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
