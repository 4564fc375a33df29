//! Harmony: the answer format of gpt-oss, a sequence of messages with a channel each.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|>                                          reasoning
//! <|start|>assistant<|channel|>commentary<|message|>…<|end|>                      text before a call
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>…<|return|>                        the answer
//!
//!            <|message|>           <|end|>, <|call|>, <|return|>
//!   header ─────────────→ body ──────────────────────────────────→ header
//!     └── not a header: text ──→
//! ```
//!
//! Source: OpenAI's description of the format (`docs/format.md` of openai/harmony). The prompt ends with
//! `<|start|>assistant`, so an answer begins inside a header. The recipient may stand before or after the channel.
//!
//! Marks and headers are dropped. The text of each message is passed on unchanged, with a line break between two
//! messages of the same kind. A malformed header is text of the answer. So is a call, with its header, if its arguments
//! are not an object. No text of the model is lost.

use super::json::{Json, Place};
use super::lookout::Lookout;
use super::{Event, push_content, push_reasoning};

pub(super) const START: &str = "<|start|>";
pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
const CALL: &str = "<|call|>";
const RETURN: &str = "<|return|>";

pub(super) const MARKS: &[&str] = &[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];

/// Beginning of an answer with reasoning.
pub(super) const ANALYSIS: &str = "<|channel|>analysis<|message|>";

/// Marks that end a message.
const ENDS: &[&str] = &[END, CALL, RETURN];
/// Marks that end a message's text.
const BEHIND_BODY: &[&str] = &[END, CALL, RETURN, START, CHANNEL];
/// Texts that a message may begin with, after white space. The last one is a message without a header.
const BEGINNINGS: &[&str] = &[CHANNEL, START, "to=", END, CALL, RETURN, MESSAGE];

const ROLE: &str = "assistant";
const TO: &str = "to=";
/// Namespace of a client's functions.
pub(super) const FUNCTIONS: &str = "functions.";

/// Maximum length of a header, in bytes: a name has at most 128 characters, and the rest is short.
const MAX_HEADER_BYTES: usize = 640;

#[derive(Debug, Clone)]
pub(super) struct Harmony {
    /// Messages to functions become calls. If false, they are text.
    takes_calls: bool,
    state: State,
    lookout: Lookout,
    /// Channel of the last emitted text.
    last: Option<Channel>,
    /// A message began after the last emitted text.
    has_begun: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Beginning of a header, as written.
    Header {
        raw: String,
        is_first: bool,
    },
    Body(Channel),
    /// Header of a call is complete, and its arguments have not begun.
    Called {
        name: String,
        /// Header of the call, and white space.
        raw: String,
    },
    Arguments(Json),
    /// Arguments are complete.
    Whole,
}

/// Kind of a message's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Text,
}

impl Harmony {
    pub(super) fn new(takes_calls: bool) -> Self {
        Self {
            takes_calls,
            state: State::Header {
                raw: String::new(),
                is_first: true,
            },
            lookout: Lookout::default(),
            last: None,
            has_begun: false,
        }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Event>) {
        for c in text.chars() {
            self.push_char(c, out);
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        match self.next_header() {
            State::Header { raw, is_first } => {
                let is_of_marks = MARKS.iter().any(|mark| raw.contains(mark));
                let is_nobodys = is_of_marks || !is_first && raw.trim().is_empty();
                if !is_nobodys {
                    self.push_text(Channel::Text, &raw, out);
                }
            }
            State::Body(channel) => {
                let held = self.lookout.take();
                self.push_text(channel, &held, out);
            }
            // The answer was cut before the arguments, which are unknown.
            State::Called { name, .. } => out.push(Event::CallBegins { name }),
            State::Arguments(_) => {}
            State::Whole => {
                let held = self.lookout.take();
                if !held.trim().is_empty() {
                    self.push_text(Channel::Text, &held, out);
                }
            }
        }
    }

    /// Returns the current state and expects a header from now on.
    fn next_header(&mut self) -> State {
        let next = State::Header {
            raw: String::new(),
            is_first: false,
        };
        std::mem::replace(&mut self.state, next)
    }

    fn push_char(&mut self, c: char, out: &mut Vec<Event>) {
        match self.next_header() {
            State::Header { mut raw, is_first } => {
                raw.push(c);
                self.header(raw, is_first, out);
            }
            State::Body(channel) => self.body(c, channel, out),
            State::Called { name, raw } => self.called(c, name, raw, out),
            State::Arguments(json) => self.arguments(c, json, out),
            State::Whole => self.whole(c, out),
        }
    }

    fn header(&mut self, raw: String, is_first: bool, out: &mut Vec<Event>) {
        let begun = raw.trim_start();
        let fits = |it: &&str| begun.starts_with(it) || it.starts_with(begun);
        if !BEGINNINGS.iter().any(fits) || raw.len() > MAX_HEADER_BYTES {
            return self.is_text(&raw, out);
        }
        if let Some(header) = raw.strip_suffix(MESSAGE) {
            return match Header::read(header) {
                Some(header) => self.begin(&header, &raw, out),
                None => self.is_text(&raw, out),
            };
        }
        if ENDS.contains(&begun) {
            // Second end of a message.
            return;
        }
        let ends = |mark: &&&str| begun != START && raw.ends_with(**mark);
        if let Some(mark) = ENDS.iter().chain([&START]).find(ends) {
            let header = &raw[..raw.len() - mark.len()];
            let has_text = Header::read(header).is_none_or(|it| it.has_type);
            if has_text {
                // The `<|message|>` mark is missing.
                self.push_text(Channel::Text, header, out);
            }
            return self.behind(mark);
        }
        self.state = State::Header { raw, is_first };
    }

    /// Not a header: `raw` becomes text, and no message begins.
    fn is_text(&mut self, raw: &str, out: &mut Vec<Event>) {
        self.state = State::Body(Channel::Text);
        self.has_begun = false;
        for c in raw.chars() {
            self.body_text(c, Channel::Text, out);
        }
    }

    /// Begins the message of this header.
    fn begin(&mut self, header: &Header<'_>, raw: &str, out: &mut Vec<Event>) {
        let function = header.recipient.and_then(|it| it.strip_prefix(FUNCTIONS));
        let function = function.filter(|name| self.takes_calls && !name.is_empty());
        self.has_begun = true;
        match (function, header.channel) {
            (Some(name), _) => {
                let (name, raw) = (name.to_owned(), raw.to_owned());
                self.state = State::Called { name, raw };
            }
            (None, Some("analysis")) => self.state = State::Body(Channel::Reasoning),
            (None, Some("commentary" | "final") | None) => {
                self.state = State::Body(Channel::Text);
            }
            (None, Some(_)) => self.is_text(raw, out),
        }
    }

    fn body(&mut self, c: char, channel: Channel, out: &mut Vec<Event>) {
        self.state = State::Body(channel);
        if self.body_text(c, channel, out) {
            let held = self.lookout.take();
            let mark = BEHIND_BODY.iter().find(|mark| held.ends_with(**mark));
            let mark = mark.copied().unwrap_or_default();
            self.push_text(channel, &held[..held.len() - mark.len()], out);
            self.next_header();
            self.behind(mark);
        }
    }

    /// Handles a character of a message's text. Returns true after a mark, which is held.
    fn body_text(&mut self, c: char, channel: Channel, out: &mut Vec<Event>) -> bool {
        let mut text = String::new();
        let is_mark = self.lookout.push(c, BEHIND_BODY, |it| text.push_str(it));
        self.push_text(channel, &text, out);
        is_mark
    }

    /// Continues after `mark`, which belongs to the next header if it begins one.
    fn behind(&mut self, mark: &str) {
        if let State::Header { raw, .. } = &mut self.state
            && [START, CHANNEL].contains(&mark)
        {
            raw.push_str(mark);
        }
    }

    fn called(&mut self, c: char, name: String, mut raw: String, out: &mut Vec<Event>) {
        let mut json = Json::default();
        if c == '{' && json.push(c).is_ok() {
            out.push(Event::CallBegins { name });
            out.push(Event::CallArguments("{".to_owned()));
            self.state = State::Arguments(json);
            return;
        }
        raw.push(c);
        let arguments = raw
            .split_once(MESSAGE)
            .map_or("", |(_, it)| it.trim_start());
        if ENDS.contains(&arguments) {
            // A call without a text has no arguments.
            out.push(Event::CallBegins { name });
            out.push(Event::CallArguments("{}".to_owned()));
            out.push(Event::CallEnds);
            return;
        }
        let may_begin = raw.len() <= 2 * MAX_HEADER_BYTES;
        if may_begin && (arguments.is_empty() || ENDS.iter().any(|end| end.starts_with(arguments)))
        {
            self.state = State::Called { name, raw };
        } else {
            self.is_text(&raw, out);
        }
    }

    fn arguments(&mut self, c: char, mut json: Json, out: &mut Vec<Event>) {
        if json.push(c).is_err() {
            // The client already received the call's beginning, so it stays a call without an end.
            self.state = State::Body(Channel::Text);
            return self.body(c, Channel::Text, out);
        }
        match out.last_mut() {
            Some(Event::CallArguments(before)) => before.push(c),
            _ => out.push(Event::CallArguments(c.to_string())),
        }
        self.state = match json.place() {
            Place::End => {
                out.push(Event::CallEnds);
                State::Whole
            }
            _ => State::Arguments(json),
        };
    }

    /// Handles a character after the arguments: white space, an end mark, or text.
    fn whole(&mut self, c: char, out: &mut Vec<Event>) {
        let mut text = String::new();
        let is_mark = self.lookout.push(c, BEHIND_BODY, |it| text.push_str(it));
        if !text.is_empty() {
            self.push_text(Channel::Text, &text, out);
            self.state = State::Body(Channel::Text);
        } else if is_mark {
            let held = self.lookout.take();
            self.behind(held.trim_start());
        } else {
            self.state = State::Whole;
        }
    }

    fn push_text(&mut self, channel: Channel, text: &str, out: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        let push = match channel {
            Channel::Reasoning => push_reasoning,
            Channel::Text => push_content,
        };
        let is_next = std::mem::take(&mut self.has_begun);
        if is_next && self.last == Some(channel) {
            push(out, "\n");
        }
        self.last = Some(channel);
        push(out, text);
    }
}

/// Header of a message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header<'a> {
    channel: Option<&'a str>,
    recipient: Option<&'a str>,
    /// A content type follows.
    has_type: bool,
}

impl<'a> Header<'a> {
    /// Parses `[<|start|>assistant] [to=RECIPIENT] [<|channel|>CHANNEL] [to=RECIPIENT] [[<|constrain|>]TYPE]`. The last
    /// one of several channels or recipients counts: gpt-oss-20b writes `<|channel|>commentary to=assistant` before
    /// others.
    fn read(raw: &'a str) -> Option<Self> {
        let mut rest = raw.trim_start();
        if let Some(behind) = rest.strip_prefix(START) {
            rest = behind.trim_start().strip_prefix(ROLE)?;
        }
        let mut header = Self::default();
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                return Some(header);
            } else if let Some(behind) = rest.strip_prefix(TO) {
                let (recipient, behind) = word(behind)?;
                header.recipient = Some(recipient);
                rest = behind;
            } else if let Some(behind) = rest.strip_prefix(CHANNEL) {
                let (channel, behind) = word(behind)?;
                header.channel = Some(channel);
                rest = behind;
            } else {
                // The content type comes last.
                let behind = rest.strip_prefix(CONSTRAIN).unwrap_or(rest);
                let (_, behind) = word(behind.trim_start())?;
                header.has_type = true;
                return behind.trim().is_empty().then_some(header);
            }
        }
    }
}

/// Splits a word off the text.
fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (!word.is_empty()).then_some((word, rest))
}

/// True if a template writes messages in this format.
pub(super) fn is_taught_by(jinja: &str) -> bool {
    jinja.contains(CHANNEL) && jinja.contains(MESSAGE)
}

/// True if a prompt ends inside a header, so that no text can be appended to it.
#[must_use]
pub fn ends_in_header(prompt: &str) -> bool {
    prompt.trim_end().ends_with(&format!("{START}{ROLE}"))
}

#[cfg(test)]
#[path = "harmony_tests.rs"]
mod tests;
