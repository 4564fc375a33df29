//! Parser of reasoning in `<think>` … `</think>`.
//!
//! Reasoning comes only at the beginning of an answer: later tags are content, because answers may quote them. Some
//! templates write the opening tag in the prompt. White space around both tags is dropped.

use super::lookout::Lookout;
use super::{Event, Thoughts, harmony, push_reasoning};
use crate::Text;
use worker_orcd_ipc::ThinkingBudget;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Splitter of one answer into reasoning and the rest.
#[derive(Debug, Clone)]
pub(super) struct Thinking {
    state: State,
    lookout: Lookout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only white space or the beginning of the tag so far.
    Beginning,
    /// White space after the opening tag, which is dropped.
    Opened,
    Thinks,
    /// White space after the closing tag, which is dropped.
    Closed,
    Answers,
}

impl Thinking {
    /// `is_opened`: the prompt ends with the opening tag.
    pub(super) fn new(is_opened: bool) -> Self {
        let state = match is_opened {
            true => State::Opened,
            false => State::Beginning,
        };
        Self {
            state,
            lookout: Lookout::default(),
        }
    }

    /// Emits reasoning, and returns text of the answer.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) -> String {
        let mut answer = String::new();
        for (at, c) in text.char_indices() {
            match self.state {
                State::Opened | State::Closed if c.is_whitespace() => {}
                State::Beginning => self.beginning(c, &mut answer),
                State::Opened | State::Thinks => {
                    self.state = State::Thinks;
                    let tell = |text: &str| push_reasoning(out, text);
                    if self.lookout.push(c, &[CLOSE], tell) {
                        // Discards the tag, and the white space before it.
                        self.lookout.take();
                        self.state = State::Closed;
                    }
                }
                State::Closed | State::Answers => {
                    self.state = State::Answers;
                    answer.push_str(&text[at..]);
                    break;
                }
            }
        }
        answer
    }

    /// Ends the answer. Held text belongs to the part before it.
    pub(super) fn finish(&mut self, out: &mut Vec<Event>) -> String {
        let held = self.lookout.take();
        match self.state {
            State::Opened | State::Thinks => {
                push_reasoning(out, held.trim_end());
                String::new()
            }
            State::Beginning | State::Closed | State::Answers => held,
        }
    }

    fn beginning(&mut self, c: char, answer: &mut String) {
        let mut is_text = false;
        if self.lookout.push(c, &[OPEN], |text| {
            is_text = true;
            answer.push_str(text);
        }) {
            self.lookout.take();
            self.state = State::Opened;
        } else if is_text {
            // Text held by the lookout comes after that.
            answer.push_str(&self.lookout.take());
            self.state = State::Answers;
        }
    }
}

/// True if a prompt ends with the opening tag, so that the answer begins with reasoning.
#[must_use]
pub fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Bound of an answer's reasoning, in tokens. `None` if the vocabulary cannot express the closing tag.
#[must_use]
pub fn budget(tokens: u32, thoughts: Thoughts, text: &Text) -> Option<ThinkingBudget> {
    let (open, close) = match thoughts {
        Thoughts::Tagged => (Some(OPEN), CLOSE),
        Thoughts::Opened => (None, CLOSE),
        // The first message only. Reasoning after other messages has no bound.
        Thoughts::Channels => (Some(harmony::ANALYSIS), harmony::END),
    };
    let closing = text.tokenizer().encode_plain(close).ok()?;
    let written = closing.iter().flat_map(|token| text.bytes_written(*token));
    let written: Vec<u8> = written.copied().collect();
    let budget = ThinkingBudget {
        tokens,
        open: open.map(str::to_owned),
        close: close.to_owned(),
        closing,
    };
    let is_tag = written.trim_ascii_start() == close.as_bytes();
    (is_tag && budget.is_sound(u32::MAX)).then_some(budget)
}

/// True if a template mentions the tags.
pub(super) fn is_taught_by(jinja: &str) -> bool {
    jinja.contains(OPEN) || jinja.contains(CLOSE)
}
