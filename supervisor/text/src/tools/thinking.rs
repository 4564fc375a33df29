//! Parser of reasoning in `<think>` … `</think>`, or in Gemma 4's `<|channel>thought` … `<channel|>`.
//!
//! With `<think>`, reasoning comes only at the beginning of an answer: later tags are content, because answers may quote
//! them. Some templates write the opening tag in the prompt. Gemma 4's marks are control tokens, and its reasoning may come
//! anywhere but within a call; a closing mark alone is dropped. White space around marks is dropped, but for that between
//! text and a later mark.

use super::lookout::Lookout;
use super::{Event, ReasoningFormat, harmony, push_reasoning};
use crate::Text;
use worker_orcd_ipc::ThinkingBudget;

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Token that begins a channel of Gemma 4, before its name.
pub(super) const CHANNEL: &str = "<|channel>";
pub(super) const THOUGHT: &str = "thought";
pub(super) const CHANNEL_END: &str = "<channel|>";
const CHANNEL_THOUGHT: &str = "<|channel>thought";

/// Splitter of one answer into reasoning and the rest.
#[derive(Debug, Clone)]
pub(super) struct Thinking {
    state: State,
    lookout: Lookout,
    tags: &'static Tags,
    /// The answer has text, behind which white space before a mark counts.
    has_text: bool,
    /// The answer is within a call: strings there may quote marks.
    is_in_call: bool,
}

#[derive(Debug)]
struct Tags {
    open: &'static str,
    close: &'static str,
    /// Reasoning may also come later than at the beginning.
    is_anywhere: bool,
}

const THINK: Tags = Tags {
    open: OPEN,
    close: CLOSE,
    is_anywhere: false,
};

const GEMMA4: Tags = Tags {
    open: CHANNEL_THOUGHT,
    close: CHANNEL_END,
    is_anywhere: true,
};

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
    /// Not for [`ReasoningFormat::Channels`], which [`harmony`] parses.
    pub(super) fn new(format: ReasoningFormat) -> Self {
        let (state, tags) = match format {
            ReasoningFormat::Opened => (State::Opened, &THINK),
            ReasoningFormat::Tagged | ReasoningFormat::Channels => (State::Beginning, &THINK),
            ReasoningFormat::Gemma4 => (State::Answers, &GEMMA4),
        };
        Self {
            state,
            lookout: Lookout::default(),
            tags,
            has_text: false,
            is_in_call: false,
        }
    }

    /// Emits reasoning, and passes text of the answer to `answer`, in the order of the text. `answer` returns true if it
    /// ends within a call.
    pub(super) fn push(
        &mut self,
        text: &str,
        out: &mut Vec<Event>,
        mut answer: impl FnMut(&str, &mut Vec<Event>) -> bool,
    ) {
        for (at, c) in text.char_indices() {
            match self.state {
                State::Opened | State::Closed if c.is_whitespace() => {}
                State::Beginning => {
                    let text = self.beginning(c);
                    answer(&text, out);
                }
                State::Opened | State::Thinks => {
                    self.state = State::Thinks;
                    let tell = |text: &str| push_reasoning(out, text);
                    if self.lookout.push(c, &[self.tags.close], tell) {
                        // Discards the tag, and the white space before it.
                        self.lookout.take();
                        self.state = State::Closed;
                    }
                }
                State::Closed | State::Answers => {
                    self.state = State::Answers;
                    if !self.tags.is_anywhere {
                        answer(&text[at..], out);
                        return;
                    }
                    self.answers(c, out, &mut answer);
                }
            }
        }
    }

    /// A character of an answer that may have marks anywhere outside calls.
    fn answers(
        &mut self,
        c: char,
        out: &mut Vec<Event>,
        answer: &mut impl FnMut(&str, &mut Vec<Event>) -> bool,
    ) {
        if self.is_in_call {
            let mut text = self.lookout.take();
            text.push(c);
            self.is_in_call = answer(&text, out);
            return;
        }
        let Tags { open, close, .. } = self.tags;
        let (has_text, is_in_call) = (&mut self.has_text, &mut self.is_in_call);
        let is_mark = self.lookout.push(c, &[open, close], |text| {
            *has_text = true;
            *is_in_call = answer(text, out);
        });
        if !is_mark {
            return;
        }
        let held = self.lookout.take();
        let (space, state) = match held.strip_suffix(open) {
            Some(space) => (space, State::Opened),
            None => (held.strip_suffix(close).unwrap_or(&held), State::Answers),
        };
        if self.has_text {
            answer(space, out);
        }
        self.state = state;
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

    /// Returns text of the answer.
    fn beginning(&mut self, c: char) -> String {
        let mut text = String::new();
        if self
            .lookout
            .push(c, &[self.tags.open], |released| text.push_str(released))
        {
            self.lookout.take();
            self.state = State::Opened;
        } else if !text.is_empty() {
            // Text held by the lookout comes after that.
            text.push_str(&self.lookout.take());
            self.state = State::Answers;
        }
        text
    }
}

/// True if a prompt ends with the opening tag, so that the answer begins with reasoning.
#[must_use]
pub fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Bound of an answer's reasoning, in tokens. `None` if the vocabulary cannot express the closing tag.
#[must_use]
pub fn budget(tokens: u32, format: ReasoningFormat, text: &Text) -> Option<ThinkingBudget> {
    let (open, close) = match format {
        ReasoningFormat::Tagged => (Some(OPEN), CLOSE),
        ReasoningFormat::Opened => (None, CLOSE),
        // The first channel only.
        ReasoningFormat::Gemma4 => (Some(CHANNEL_THOUGHT), CHANNEL_END),
        // The first message only. Reasoning after other messages has no bound.
        ReasoningFormat::Channels => (Some(harmony::ANALYSIS), harmony::END),
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

/// Format of reasoning that a template mentions, but for [`harmony`]'s.
pub(super) fn of_template(jinja: &str) -> Option<ReasoningFormat> {
    if jinja.contains(CHANNEL) && jinja.contains(CHANNEL_END) {
        return Some(ReasoningFormat::Gemma4);
    }
    (jinja.contains(OPEN) || jinja.contains(CLOSE)).then_some(ReasoningFormat::Tagged)
}
