//! Items of an answer, with the log probabilities of their tokens, and their growth.
//!
//! Log probabilities are listed for tokens of messages. While the parser holds text back, its tokens wait. Tokens of
//! tags, reasoning and calls are dropped.

use super::answer::ItemStatus as Status;
use crate::openai::logprobs::Column;
use crate::timeline::{Change, Kind, Step, Timeline};
use worker_orcd_requests::Piece;
use worker_orcd_text::tools::Parsing;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// Text of the item. For a call, its arguments.
    pub(super) text: String,
    /// Log probabilities of a message, if requested.
    pub(super) logprobs: Column,
    pub(super) status: Status,
}

impl Item {
    /// Placeholder while an item is taken out of the list.
    pub(super) fn nothing() -> Self {
        Self {
            kind: Kind::Text,
            text: String::new(),
            logprobs: Column::default(),
            status: Status::InProgress,
        }
    }
}

/// Change of the items. Numbers are indices of items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Growth {
    Begins(usize),
    More(usize, String, Column),
    Ends(usize),
}

#[derive(Debug)]
pub(super) struct Output {
    pub(super) items: Vec<Item>,
    /// Number of tokens up to the last one of the reasoning.
    pub(super) reasoning_tokens: u32,
    timeline: Timeline,
    /// Log probabilities of pieces that the parser holds back, each with the length of its text in bytes.
    waiting: Vec<(usize, Column)>,
    /// Buffer, reused between pieces.
    steps: Vec<Step>,
}

impl Output {
    pub(super) fn new(answer: &str, parsing: &Parsing, only_one_call: bool) -> Self {
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

    /// Adds the held text, and ends the last item. `is_cut`: a limit ended the answer.
    pub(super) fn finish(&mut self, is_cut: bool, growth: &mut Vec<Growth>) {
        self.timeline.finish(is_cut, &mut self.steps);
        self.grow(growth);
    }

    /// Ends the open item as incomplete.
    pub(super) fn break_off(&mut self) {
        let open = self.items.last_mut();
        if let Some(item) = open.filter(|item| item.status == Status::InProgress) {
            item.status = Status::Incomplete;
        }
    }

    /// Adds all steps to the items. Returns true if there was reasoning among them.
    fn grow(&mut self, growth: &mut Vec<Growth>) -> bool {
        let mut steps = std::mem::take(&mut self.steps);
        let mut has_reasoning = false;
        for Step { at, kind, change } in steps.drain(..) {
            match change {
                Change::Begins => {
                    growth.push(Growth::Begins(at));
                    self.items.push(Item {
                        kind,
                        ..Item::nothing()
                    });
                }
                Change::Adds(text) => {
                    has_reasoning |= kind == Kind::Reasoning;
                    let logprobs = match kind {
                        Kind::Text => self.take_logprobs(text.len()),
                        Kind::Reasoning | Kind::Call(_) => Column::default(),
                    };
                    if let Some(item) = self.items.last_mut() {
                        item.text.push_str(&text);
                        item.logprobs.append(&logprobs);
                    }
                    growth.push(Growth::More(at, text, logprobs));
                }
                Change::Ends { is_whole } => {
                    if let Some(item) = self.items.last_mut() {
                        item.status = match is_whole {
                            true => Status::Completed,
                            false => Status::Incomplete,
                        };
                    }
                    growth.push(Growth::Ends(at));
                }
            }
        }
        self.steps = steps;
        has_reasoning
    }

    /// Takes the log probabilities of the last pieces, which cover `bytes` bytes of text. Earlier ones are dropped.
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
