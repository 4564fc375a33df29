//! Timeline of an answer: reasoning, texts and tool calls, as items that begin, grow and end, one after another.
//!
//! ```text
//! pieces of text ── Parser ──→ events ── Timeline ──→ steps ──→ events of an API, or their sum
//! ```
//!
//! Each API renders the same [`Step`]s. An item begins with its first event. It ends when the next one begins or the
//! answer ends. The steps are a pure function of the answer's id and text, so a stream that continues on another
//! connection or in another supervisor continues with the same items and ids.
//!
//! Deliberately absent: the JSON of an API, and sockets.

use crate::call_ids::CallIds;
use std::sync::Arc;
use worker_orcd_text::tools::{Event, Parser, Parsing};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Number of the item, counted from 0.
    pub(super) at: usize,
    pub(super) kind: Kind,
    pub(super) change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Begins,
    /// More text or reasoning, or arguments of a call.
    Adds(String),
    /// End of the item. It is incomplete if a limit cut it, or if a call has no end.
    Ends {
        is_whole: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
    Call(Arc<Call>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Number of the call, counted from 0.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) id: String,
}

/// Item that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// Text of the item. For a call, its arguments.
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct Timeline {
    parser: Parser,
    ids: CallIds,
    open: Option<Kind>,
    begun_items: usize,
    begun_calls: usize,
    whole_calls: usize,
    /// Drop all calls after the first.
    only_one_call: bool,
    /// The call that began last is dropped.
    is_left_out: bool,
    /// Buffer, reused between pieces.
    events: Vec<Event>,
}

impl Timeline {
    /// Timeline of the answer with this id. Ids of its calls begin with `prefix`.
    pub(super) fn new(answer: &str, prefix: &'static str, parsing: &Parsing) -> Self {
        Self {
            parser: Parser::new(parsing),
            ids: CallIds::new(prefix, answer, parsing.calls),
            open: None,
            begun_items: 0,
            begun_calls: 0,
            whole_calls: 0,
            only_one_call: false,
            is_left_out: false,
            events: Vec::new(),
        }
    }

    /// Drops all calls after the first.
    pub(super) fn with_one_call(self) -> Self {
        Self {
            only_one_call: true,
            ..self
        }
    }

    /// Appends the steps of this piece of text. Returns false if the parser held back all of the text.
    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Step>) -> bool {
        self.parser.push(text, &mut self.events);
        self.step(out)
    }

    /// Ends the answer: appends the steps of held text, and the end of the last item. `is_cut`: a limit ended the
    /// answer.
    pub(super) fn finish(&mut self, is_cut: bool, out: &mut Vec<Step>) {
        self.parser.finish(is_cut, &mut self.events);
        self.step(out);
        self.end(!is_cut, out);
    }

    pub(super) fn has_whole_calls(&self) -> bool {
        self.whole_calls > 0
    }

    fn step(&mut self, out: &mut Vec<Step>) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let is_known = !events.is_empty();
        events.drain(..).for_each(|event| self.add(event, out));
        self.events = events;
        is_known
    }

    fn add(&mut self, event: Event, out: &mut Vec<Step>) {
        match event {
            Event::Reasoning(text) => {
                self.begin(Kind::Reasoning, out);
                self.change(Change::Adds(text), out);
            }
            Event::Content(text) => {
                self.begin(Kind::Text, out);
                self.change(Change::Adds(text), out);
            }
            Event::CallBegins { name } => {
                let index = self.begun_calls;
                self.is_left_out = self.only_one_call && index > 0;
                if !self.is_left_out {
                    let id = self.ids.id(index);
                    self.begun_calls += 1;
                    self.begin(Kind::Call(Arc::new(Call { index, name, id })), out);
                }
            }
            Event::CallArguments(_) | Event::CallEnds if self.is_left_out => {}
            Event::CallArguments(text) => self.change(Change::Adds(text), out),
            Event::CallEnds => {
                self.whole_calls += 1;
                self.change(Change::Ends { is_whole: true }, out);
                self.open = None;
            }
        }
    }

    /// Begins an item, unless one of this kind is open.
    fn begin(&mut self, kind: Kind, out: &mut Vec<Step>) {
        if self.open.as_ref() != Some(&kind) {
            self.end(true, out);
            self.open = Some(kind);
            self.begun_items += 1;
            self.change(Change::Begins, out);
        }
    }

    /// Ends the open item. A call that is still open has no end, so it is incomplete.
    fn end(&mut self, is_whole: bool, out: &mut Vec<Step>) {
        let is_whole = is_whole && !matches!(self.open, Some(Kind::Call(_)));
        self.change(Change::Ends { is_whole }, out);
        self.open = None;
    }

    /// Appends a step of the open item.
    fn change(&self, change: Change, out: &mut Vec<Step>) {
        out.extend(self.open.clone().map(|kind| Step {
            at: self.begun_items - 1,
            kind,
            change,
        }));
    }
}

/// Items that the steps of an answer add up to.
pub(super) fn sum(steps: Vec<Step>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for Step { kind, change, .. } in steps {
        match (change, items.last_mut()) {
            (Change::Begins, _) => items.push(Item {
                kind,
                text: String::new(),
            }),
            (Change::Adds(more), Some(item)) => item.text.push_str(&more),
            // Before the first item, there is no item to add to.
            (Change::Adds(_), None) | (Change::Ends { .. }, _) => {}
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_text::tools::{Parameters, ReasoningFormat, Syntax};

    const PARSING: Parsing = Parsing {
        calls: Some(Syntax::Hermes),
        thinking: Some(ReasoningFormat::Tagged),
        parameters: Parameters::NONE,
    };
    const CALL: &str = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>";

    fn steps(timeline: &mut Timeline, text: &str, is_cut: bool) -> Vec<Step> {
        let mut out = Vec::new();
        timeline.push(text, &mut out);
        timeline.finish(is_cut, &mut out);
        out
    }

    fn timeline() -> Timeline {
        Timeline::new("msg_1", "toolu_", &PARSING)
    }

    fn call(timeline: &Timeline, index: usize) -> Kind {
        Kind::Call(Arc::new(Call {
            index,
            name: "a".to_owned(),
            id: timeline.ids.id(index),
        }))
    }

    #[test]
    fn items_follow_each_other_as_the_model_writes() {
        let mut timeline = timeline();
        let text = format!("<think>Hm</think>I look.{CALL}{CALL}");
        let steps = steps(&mut timeline, &text, false);
        let items = [
            (Kind::Reasoning, "Hm"),
            (Kind::Text, "I look."),
            (call(&timeline, 0), "{\"x\": 1}"),
            (call(&timeline, 1), "{\"x\": 1}"),
        ];
        let expected = items.iter().enumerate().flat_map(|(at, (kind, text))| {
            let adds = Change::Adds((*text).to_owned());
            let changes = [Change::Begins, adds, Change::Ends { is_whole: true }];
            changes.map(|change| Step {
                at,
                kind: kind.clone(),
                change,
            })
        });
        assert_eq!(steps, expected.collect::<Vec<_>>());
        assert_ne!(timeline.ids.id(0), timeline.ids.id(1));
        assert!(timeline.has_whole_calls());
    }

    #[test]
    fn what_is_cut_is_not_whole_and_a_call_without_an_end_never_is() {
        let unfinished = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": ";
        for (text, is_cut, is_whole) in [
            ("I look", true, false),
            ("I look", false, true),
            (unfinished, true, false),
            (unfinished, false, false),
        ] {
            let mut timeline = timeline();
            let steps = steps(&mut timeline, text, is_cut);
            let last = steps.last().map(|it| &it.change);
            assert_eq!(last, Some(&Change::Ends { is_whole }), "{text}");
            assert!(!timeline.has_whole_calls());
        }
        assert_eq!(steps(&mut timeline(), "", false), []);
    }

    #[test]
    fn where_the_text_is_cut_into_pieces_changes_no_item() {
        let text = format!("<think>Hm</think>I look.{CALL}And.{CALL}");
        let whole = sum(steps(&mut timeline(), &text, false));
        assert_eq!(whole.len(), 5);
        let chars: Vec<char> = text.chars().collect();
        for size in [1, 3, 7] {
            let (mut timeline, mut out) = (timeline(), Vec::new());
            for piece in chars.chunks(size) {
                timeline.push(&piece.iter().collect::<String>(), &mut out);
            }
            timeline.finish(false, &mut out);
            assert_eq!(sum(out), whole, "{size}");
        }
    }

    #[test]
    fn with_one_call_those_behind_the_first_are_left_out() {
        let text = format!("{CALL}And.{CALL}More.");
        let items = sum(steps(&mut timeline().with_one_call(), &text, false));
        let texts: Vec<_> = items.iter().map(|it| it.text.as_str()).collect();
        assert_eq!(texts, ["{\"x\": 1}", "And.More."]);
    }

    #[test]
    fn a_piece_is_known_when_it_is_text_or_a_part_of_a_call() {
        let (mut timeline, mut out) = (timeline(), Vec::new());
        assert!(!timeline.push("<tool", &mut out));
        assert!(!timeline.push("_call>", &mut out));
        assert!(timeline.push("{\"name\": \"a\", \"arguments\": {", &mut out));
    }
}
