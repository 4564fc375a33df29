//! Tool calls within content, delimited by the marks of one [`Syntax`].
//!
//! ```text
//!          opener          {, name, [ or <               whole
//!  text ──────────→ between ──────────────→ in a call ─────────→ between ── closer ─→ text
//!    ↑                 │                        │
//!    └─ not a call: the held text is content ───┘
//! ```
//!
//! Text that may begin a call is held until the ambiguity is resolved. White space and marks around calls are dropped.
//! Each character is processed once, or a few times after an incomplete mark.

use super::Event;
use super::call::{CallObject, NamedCall, Step};
use super::dict::{self, DictCall};
use super::function::{FUNCTION, FunctionCall};
use super::json::Broken;
use super::lookout::{Lookout, is_begun};
use super::parameters::Parameters;
use super::push_content;
use super::syntax::{Format, Marks, Syntax};

#[derive(Debug, Clone)]
pub(super) struct ToolCalls {
    marks: &'static Marks,
    /// Types of the functions' parameters.
    parameters: Parameters,
    state: State,
    /// Finds openers in content.
    lookout: Lookout,
    /// Text that becomes content if there is no call: white space, marks, and the beginning of the call.
    held: String,
    /// Text after `held` that may be the beginning of a closer.
    closer: String,
    /// True after the first content: a call without an opener must come first.
    has_begun: bool,
    /// True while only white space has followed the last call.
    is_behind_call: bool,
}

#[derive(Debug, Clone)]
enum State {
    Text,
    Between(Between),
    Object(Box<CallObject>, Between),
    Named(Box<NamedCall>, Between),
    Function(Box<FunctionCall>),
    Dict(Box<DictCall>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Between {
    in_list: bool,
    expects: Expects,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// Start of a list, or a call.
    First,
    /// A call.
    Next,
    /// Separator or end, after a call.
    More,
    /// Closer, after the last call.
    Closer,
}

impl ToolCalls {
    pub(super) fn new(syntax: Syntax, parameters: Parameters) -> Self {
        Self {
            marks: syntax.marks(),
            parameters,
            state: State::Text,
            lookout: Lookout::default(),
            held: String::new(),
            closer: String::new(),
            has_begun: false,
            is_behind_call: false,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        for c in text.chars() {
            self.push_char(c, out);
        }
    }

    pub(super) fn is_in_call(&self) -> bool {
        !matches!(self.state, State::Text | State::Between(_))
    }

    /// Ends the answer. Held text becomes content, except marks and white space after a call. `is_cut`: a limit ended the
    /// answer.
    pub(super) fn finish(&mut self, is_cut: bool, out: &mut Vec<Event>) {
        let is_nobodys = match &mut self.state {
            State::Text => self.lookout.holds_space_only(),
            State::Between(_) => true,
            State::Function(call) => !is_cut && call.finish(out),
            State::Dict(call) => {
                call.finish(out);
                false
            }
            State::Object(..) | State::Named(..) => false,
        };
        let held = std::mem::take(&mut self.held) + &self.closer + &self.lookout.take();
        self.closer.clear();
        if !(self.is_behind_call && is_nobodys) {
            push_content(out, &held);
        }
    }

    fn push_char(&mut self, c: char, out: &mut Vec<Event>) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(c, out),
            State::Between(between) => self.between(c, between, out),
            State::Object(mut call, between) => {
                let step = call.push(c, out);
                let goes_on = State::Object(call, between);
                self.in_call(c, step, goes_on, between, out);
            }
            State::Named(mut call, between) => {
                let step = call.push(c, out);
                let goes_on = State::Named(call, between);
                self.in_call(c, step, goes_on, between, out);
            }
            State::Function(mut call) => {
                let step = call.push(c, out);
                self.in_call(c, step, State::Function(call), FIRST, out);
            }
            State::Dict(mut call) => {
                let step = call.push(c, out);
                if step.is_err() && self.held.is_empty() {
                    // The client has the beginning of the call, without these last characters.
                    push_content(out, &call.take_begun());
                }
                self.in_call(c, step, State::Dict(call), FIRST, out);
            }
        }
    }

    fn text(&mut self, c: char, out: &mut Vec<Event>) {
        let may_be_bare = self.marks.is_bare && !self.has_begun;
        if may_be_bare && c == '{' && self.lookout.holds_space_only() {
            self.held = self.lookout.take();
            return self.between(c, FIRST, out);
        }
        let mut is_text = false;
        let tell = |text: &str| {
            is_text = true;
            push_content(out, text);
        };
        if self.lookout.push(c, self.marks.openers, tell) {
            self.held = self.lookout.take();
            self.state = match self.held.ends_with(FUNCTION) {
                true => State::Function(Box::new(FunctionCall::begun(&self.parameters))),
                false => State::Between(FIRST),
            };
        }
        if is_text {
            self.has_begun = true;
            self.is_behind_call = false;
        }
    }

    fn between(&mut self, c: char, between: Between, out: &mut Vec<Event>) {
        let Between { in_list, expects } = between;
        if c.is_whitespace() && self.closer.is_empty() {
            self.held.push(c);
            self.state = State::Between(between);
            return;
        }
        let expects_call = matches!(expects, Expects::First | Expects::Next);
        let then = |in_list, expects| State::Between(Between { in_list, expects });
        let next = match c {
            '{' if expects_call => {
                let mut call = Box::<CallObject>::default();
                // An opening brace begins every object, so this push cannot fail.
                let _ = call.push(c, out);
                State::Object(call, between)
            }
            '[' if expects == Expects::First && self.marks.has_lists => then(true, Expects::Next),
            '<' if expects == Expects::First && self.marks.format == Format::Tags => {
                let mut call = Box::new(FunctionCall::new(&self.parameters));
                let _ = call.push(c, out);
                State::Function(call)
            }
            _ if expects == Expects::First
                && self.marks.format == Format::Dict
                && dict::CALL.starts_with(c) =>
            {
                let mut call = Box::<DictCall>::default();
                let _ = call.push(c, out);
                State::Dict(call)
            }
            _ if expects == Expects::First && self.marks.has_names && NamedCall::may_begin(c) => {
                let mut call = Box::<NamedCall>::default();
                let _ = call.push(c, out);
                State::Named(call, between)
            }
            ',' if expects == Expects::More && in_list => then(true, Expects::Next),
            ']' if expects == Expects::More && in_list => {
                self.held.clear();
                self.state = then(false, Expects::Closer);
                return;
            }
            _ if expects == Expects::More && !in_list && self.marks.separator == Some(c) => {
                then(false, Expects::Next)
            }
            _ if matches!(expects, Expects::More | Expects::Closer) && !in_list => {
                return self.closer(c, between, out);
            }
            _ => return self.fail(c, out),
        };
        self.held.push(c);
        self.state = next;
    }

    fn closer(&mut self, c: char, between: Between, out: &mut Vec<Event>) {
        self.closer.push(c);
        if self.marks.closers.contains(&self.closer.as_str()) {
            self.closer.clear();
            self.held.clear();
        } else if is_begun(self.marks.closers, &self.closer) {
            self.state = State::Between(between);
        } else {
            // Content, or the opener of further calls.
            let text = std::mem::take(&mut self.held) + &std::mem::take(&mut self.closer);
            self.push(&text, out);
        }
    }

    fn in_call(
        &mut self,
        c: char,
        step: Result<Step, Broken>,
        goes_on: State,
        between: Between,
        out: &mut Vec<Event>,
    ) {
        match step {
            Ok(Step::Unknown) => {
                self.held.push(c);
                self.state = goes_on;
            }
            Ok(Step::Sent) => {
                self.end_call();
                self.state = goes_on;
            }
            Ok(Step::Whole) => {
                self.end_call();
                self.state = State::Between(Between {
                    expects: Expects::More,
                    ..between
                });
            }
            Err(Broken) => self.fail(c, out),
        }
    }

    fn end_call(&mut self) {
        self.held.clear();
        self.has_begun = true;
        self.is_behind_call = true;
    }

    /// Not a call: the held text becomes content, and `c` is processed as content.
    fn fail(&mut self, c: char, out: &mut Vec<Event>) {
        if !self.held.is_empty() {
            push_content(out, &self.held);
            self.held.clear();
            self.is_behind_call = false;
        }
        self.has_begun = true;
        self.text(c, out);
    }
}

const FIRST: Between = Between {
    in_list: false,
    expects: Expects::First,
};
