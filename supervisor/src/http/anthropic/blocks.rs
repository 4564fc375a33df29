//! The content of an answer: blocks of thoughts, text and calls, one behind the other.
//!
//! One stream of [`BlockEvent`]s is made of the text, whatever becomes of it: a stream writes each of them down, and
//! a whole answer is their sum. A block begins with the first thing that is known of it and ends when the next
//! begins, or with the answer.

use crate::engine::StopReason;
use crate::http::call_ids::CallIds;
use crate::text::tools::{Event, Parser, Parsing};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BlockEvent {
    Begins(Kind),
    /// More of the block that began last: text, a thought, or JSON of a call.
    Adds(String),
    /// A thought is signed, by nobody. Clients wait for it.
    Signed,
    Ends,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
    ToolUse { id: String, name: String },
}

/// Takes one answer apart.
#[derive(Debug)]
pub(super) struct Blocks {
    parser: Parser,
    ids: CallIds,
    open: Option<Open>,
    begun_calls: usize,
    whole_calls: usize,
    /// Reused between pieces.
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    ToolUse,
}

impl Blocks {
    pub(super) fn new(parsing: Parsing, answer: &str) -> Self {
        Self {
            parser: Parser::new(parsing),
            ids: CallIds::new("toolu_", answer, parsing.calls),
            open: None,
            begun_calls: 0,
            whole_calls: 0,
            events: Vec::new(),
        }
    }

    /// Appends what this piece of text becomes.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<BlockEvent>) {
        self.parser.push(text, &mut self.events);
        self.tell(out);
    }

    /// Ends the answer: what was held back is told, and the last block ends.
    pub(super) fn finish(&mut self, out: &mut Vec<BlockEvent>) {
        self.parser.finish(&mut self.events);
        self.tell(out);
        self.end(out);
    }

    /// Why the answer ended, behind [`finish`](Self::finish).
    pub(super) fn stop_reason(&self, reason: StopReason) -> &'static str {
        match reason {
            StopReason::MaxTokens => "max_tokens",
            StopReason::StopSequence => "stop_sequence",
            StopReason::Eos if self.whole_calls > 0 => "tool_use",
            StopReason::Eos => "end_turn",
        }
    }

    fn tell(&mut self, out: &mut Vec<BlockEvent>) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Content(text) => {
                    self.begin(Open::Text, || Kind::Text, out);
                    out.push(BlockEvent::Adds(text));
                }
                Event::Reasoning(text) => {
                    self.begin(Open::Thinking, || Kind::Thinking, out);
                    out.push(BlockEvent::Adds(text));
                }
                Event::CallBegins { name } => {
                    self.end(out);
                    let id = self.ids.id(self.begun_calls);
                    self.begun_calls += 1;
                    self.begin(Open::ToolUse, || Kind::ToolUse { id, name }, out);
                }
                Event::CallArguments(text) => out.push(BlockEvent::Adds(text)),
                Event::CallEnds => {
                    self.whole_calls += 1;
                    self.end(out);
                }
            }
        }
        self.events = events;
    }

    fn begin(&mut self, open: Open, kind: impl FnOnce() -> Kind, out: &mut Vec<BlockEvent>) {
        if self.open != Some(open) {
            self.end(out);
            self.open = Some(open);
            out.push(BlockEvent::Begins(kind()));
        }
    }

    fn end(&mut self, out: &mut Vec<BlockEvent>) {
        match self.open.take() {
            Some(Open::Thinking) => out.extend([BlockEvent::Signed, BlockEvent::Ends]),
            Some(Open::Text | Open::ToolUse) => out.push(BlockEvent::Ends),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tools::{Syntax, Thoughts};

    fn blocks(syntax: Syntax) -> Blocks {
        let parsing = Parsing {
            calls: Some(syntax),
            thinking: Some(Thoughts::Tagged),
        };
        Blocks::new(parsing, "msg_1")
    }

    fn events(text: &str) -> (Vec<BlockEvent>, Blocks) {
        let (mut blocks, mut out) = (blocks(Syntax::Hermes), Vec::new());
        blocks.push(text, &mut out);
        blocks.finish(&mut out);
        (out, blocks)
    }

    #[test]
    fn blocks_follow_each_other_as_the_model_writes() {
        let call = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>";
        let (told, blocks) = events(&format!("<think>Hm</think>I look.{call}{call}"));
        let adds = |text: &str| BlockEvent::Adds(text.to_owned());
        let calls = |index| Kind::ToolUse {
            id: blocks.ids.id(index),
            name: "a".to_owned(),
        };
        let expected = [
            BlockEvent::Begins(Kind::Thinking),
            adds("Hm"),
            BlockEvent::Signed,
            BlockEvent::Ends,
            BlockEvent::Begins(Kind::Text),
            adds("I look."),
            BlockEvent::Ends,
            BlockEvent::Begins(calls(0)),
            adds("{\"x\": 1}"),
            BlockEvent::Ends,
            BlockEvent::Begins(calls(1)),
            adds("{\"x\": 1}"),
            BlockEvent::Ends,
        ];
        assert_eq!(told, expected);
        assert_ne!(blocks.ids.id(0), blocks.ids.id(1));
        assert_eq!(blocks.stop_reason(StopReason::Eos), "tool_use");
        assert_eq!(blocks.stop_reason(StopReason::MaxTokens), "max_tokens");
    }

    #[test]
    fn an_answer_without_text_has_no_blocks_and_one_without_a_whole_call_ends_its_turn() {
        assert_eq!(events("").0, []);
        let (told, blocks) = events("<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": ");
        assert_eq!(told.last(), Some(&BlockEvent::Ends));
        assert_eq!(blocks.stop_reason(StopReason::Eos), "end_turn");
        assert_eq!(
            blocks.stop_reason(StopReason::StopSequence),
            "stop_sequence"
        );
    }

    #[test]
    fn ids_of_calls_are_anthropic_s_but_for_mistral_s_templates() {
        let id = blocks(Syntax::Hermes).ids.id(0);
        assert!(id.starts_with("toolu_") && id.len() == 30, "{id}");
        let id = blocks(Syntax::Mistral).ids.id(0);
        assert!(
            id.len() == 9 && id.bytes().all(|it| it.is_ascii_alphanumeric()),
            "{id}"
        );
    }
}
