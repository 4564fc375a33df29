//! The items of one answer, with the log probabilities of their tokens, and how they grow.
//!
//! Log probabilities are those of a message's tokens. While it is not known what a piece says its tokens wait; those of tags, thoughts
//! and calls are left out.
//!
use crate::engine::{Piece, StopReason};
use crate::http::openai::logprobs::Column;
use crate::http::timeline::{Kind, Step, Timeline};
use worker_orcd_text::tools::Parsing;

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
            kind: Kind::Text,
            text: String::new(),
            logprobs: Column::default(),
            status: Status::InProgress,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
}

/// How the items grow. Numbers are places among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Growth {
    Begins(usize),
    More(usize, String, Column),
    Ends(usize),
}

#[derive(Debug)]
pub(super) struct Output {
    pub(super) items: Vec<Item>,
    /// Tokens until the last one of the thoughts.
    pub(super) reasoning_tokens: u32,
    timeline: Timeline,
    /// Log probabilities of pieces of which it is not known what they say, with the lengths of their texts in bytes.
    waiting: Vec<(usize, Column)>,
    /// Reused between pieces.
    steps: Vec<Step>,
}

impl Output {
    pub(super) fn new(answer: &str, parsing: Parsing, only_one_call: bool) -> Self {
        let timeline = Timeline::new(answer, "call_", parsing);
        Self {
            items: Vec::new(),
            reasoning_tokens: 0,
            timeline: match only_one_call {
                true => timeline.with_one_call(),
                false => timeline,
            },
            waiting: Vec::new(),
            steps: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, piece: &Piece, growth: &mut Vec<Growth>) {
        if let Some(listed) = &piece.logprobs {
            let mut of_piece = Column::default();
            of_piece.add_chat(listed);
            self.waiting.push((piece.text.len(), of_piece));
        }
        let is_known = self.timeline.push(&piece.text, &mut self.steps);
        if self.grow(growth) {
            self.reasoning_tokens = piece.index.saturating_add(1);
        }
        if is_known {
            self.waiting.clear();
        }
    }

    /// Adds what was held back, and ends the last item.
    pub(super) fn finish(&mut self, reason: StopReason, growth: &mut Vec<Growth>) {
        let is_cut = reason == StopReason::MaxTokens;
        self.timeline.finish(is_cut, &mut self.steps);
        self.grow(growth);
    }

    /// Ends the last item, which nothing more comes of.
    pub(super) fn break_off(&mut self) {
        let open = self.items.last_mut();
        if let Some(item) = open.filter(|item| item.status == Status::InProgress) {
            item.status = Status::Incomplete;
        }
    }

    /// Adds all steps to the items. True when there was reasoning among them.
    fn grow(&mut self, growth: &mut Vec<Growth>) -> bool {
        let mut steps = std::mem::take(&mut self.steps);
        let mut has_reasoning = false;
        for step in steps.drain(..) {
            let last = self.items.len().saturating_sub(1);
            match step {
                Step::Begins(kind) => {
                    growth.push(Growth::Begins(self.items.len()));
                    self.items.push(Item {
                        kind,
                        ..Item::nothing()
                    });
                }
                Step::Adds(text) => {
                    let is_of = |kind| self.items.last().is_some_and(|item| item.kind == kind);
                    has_reasoning |= is_of(Kind::Reasoning);
                    let logprobs = match is_of(Kind::Text) {
                        true => self.take_logprobs(text.len()),
                        false => Column::default(),
                    };
                    if let Some(item) = self.items.last_mut() {
                        item.text.push_str(&text);
                        item.logprobs.append(&logprobs);
                    }
                    growth.push(Growth::More(last, text, logprobs));
                }
                Step::Ends { is_whole } => {
                    if let Some(item) = self.items.last_mut() {
                        item.status = match is_whole {
                            true => Status::Completed,
                            false => Status::Incomplete,
                        };
                    }
                    growth.push(Growth::Ends(last));
                }
            }
        }
        self.steps = steps;
        has_reasoning
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
}

#[cfg(test)]
pub(super) mod tests;
