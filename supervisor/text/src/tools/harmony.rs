//! Harmony: gpt-oss's answers, which are messages of their own, each with a channel.
//!
//! ```text
//! <|channel|>analysis<|message|>…<|end|>                                          thoughts
//! <|start|>assistant<|channel|>commentary<|message|>…<|end|>                      text, before a call
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>…<|return|>                        the answer
//!
//!            <|message|>           <|end|>, <|call|>, <|return|>
//!   header ─────────────→ body ──────────────────────────────────→ header
//!     └── no header: text ──→
//! ```
//!
//! After OpenAI's description of the format (`docs/format.md` of openai/harmony). The prompt ends with
//! `<|start|>assistant`, so an answer begins inside of a header. The recipient may stand before the channel or behind it.
//! Marks and headers are nobody's text; the text of each message is told as it is, and a line is ended between two
//! messages of one kind. What is no header is text of the answer, and so is the call of a function whose arguments are no
//! object, with its header: nothing that a model writes is lost.

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

/// How an answer begins with thoughts.
pub(super) const ANALYSIS: &str = "<|channel|>analysis<|message|>";

/// Texts that end a message.
const ENDS: &[&str] = &[END, CALL, RETURN];
/// Texts behind which a message's text goes on no more.
const BEHIND_BODY: &[&str] = &[END, CALL, RETURN, START, CHANNEL];
/// Texts that a message may begin with, behind white space; the last is one that has lost its header.
const BEGINNINGS: &[&str] = &[CHANNEL, START, "to=", END, CALL, RETURN, MESSAGE];

const ROLE: &str = "assistant";
const TO: &str = "to=";
/// Where the functions of a client are.
pub(super) const FUNCTIONS: &str = "functions.";

/// A longer header is none: a name has 128 characters at most, and there is little else.
const MAX_HEADER_BYTES: usize = 640;

#[derive(Debug, Clone)]
pub(super) struct Harmony {
    /// Messages to functions are calls, and not text.
    takes_calls: bool,
    state: State,
    lookout: Lookout,
    /// The channel of what was told last.
    last: Option<Channel>,
    /// A message has begun behind that.
    has_begun: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// What came of a header, as it was written.
    Header {
        raw: String,
        is_first: bool,
    },
    Body(Channel),
    /// Before the arguments of a call.
    Called {
        name: String,
        /// Its header, and white space.
        raw: String,
    },
    Arguments(Json),
    /// Behind them.
    Whole,
}

/// What a message's text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Thoughts,
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
                    self.tell(Channel::Text, &raw, out);
                }
            }
            State::Body(channel) => {
                let held = self.lookout.take();
                self.tell(channel, &held, out);
            }
            // It was cut: nobody knows what the arguments would have been.
            State::Called { name, .. } => out.push(Event::CallBegins { name }),
            State::Arguments(_) => {}
            State::Whole => {
                let held = self.lookout.take();
                if !held.trim().is_empty() {
                    self.tell(Channel::Text, &held, out);
                }
            }
        }
    }

    /// What there was, in place of which a header is expected now.
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
            // Behind the end of another message.
            return;
        }
        let ends = |mark: &&&str| begun != START && raw.ends_with(**mark);
        if let Some(mark) = ENDS.iter().chain([&START]).find(ends) {
            let header = &raw[..raw.len() - mark.len()];
            let has_text = Header::read(header).is_none_or(|it| it.has_type);
            if has_text {
                // Its mark was forgotten.
                self.tell(Channel::Text, header, out);
            }
            return self.behind(mark);
        }
        self.state = State::Header { raw, is_first };
    }

    /// It was no header, and no message begins.
    fn is_text(&mut self, raw: &str, out: &mut Vec<Event>) {
        self.state = State::Body(Channel::Text);
        self.has_begun = false;
        for c in raw.chars() {
            self.body_text(c, Channel::Text, out);
        }
    }

    /// A message begins.
    fn begin(&mut self, header: &Header<'_>, raw: &str, out: &mut Vec<Event>) {
        let function = header.recipient.and_then(|it| it.strip_prefix(FUNCTIONS));
        let function = function.filter(|name| self.takes_calls && !name.is_empty());
        self.has_begun = true;
        match (function, header.channel) {
            (Some(name), _) => {
                let (name, raw) = (name.to_owned(), raw.to_owned());
                self.state = State::Called { name, raw };
            }
            (None, Some("analysis")) => self.state = State::Body(Channel::Thoughts),
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
            self.tell(channel, &held[..held.len() - mark.len()], out);
            self.next_header();
            self.behind(mark);
        }
    }

    /// True behind a mark, which is held.
    fn body_text(&mut self, c: char, channel: Channel, out: &mut Vec<Event>) -> bool {
        let mut text = String::new();
        let is_mark = self.lookout.push(c, BEHIND_BODY, |it| text.push_str(it));
        self.tell(channel, &text, out);
        is_mark
    }

    /// What begins a header is a part of it.
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
            // A call that says nothing of arguments has none.
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
            // The client knows of the call already: it stays one that never ends.
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

    /// Behind a call's arguments: white space and an end, or text.
    fn whole(&mut self, c: char, out: &mut Vec<Event>) {
        let mut text = String::new();
        let is_mark = self.lookout.push(c, BEHIND_BODY, |it| text.push_str(it));
        if !text.is_empty() {
            self.tell(Channel::Text, &text, out);
            self.state = State::Body(Channel::Text);
        } else if is_mark {
            let held = self.lookout.take();
            self.behind(held.trim_start());
        } else {
            self.state = State::Whole;
        }
    }

    fn tell(&mut self, channel: Channel, text: &str, out: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        let push = match channel {
            Channel::Thoughts => push_reasoning,
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

/// What stands before a message's text.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header<'a> {
    channel: Option<&'a str>,
    recipient: Option<&'a str>,
    /// Behind them stands a word.
    has_type: bool,
}

impl<'a> Header<'a> {
    /// `[<|start|>assistant] [to=RECIPIENT] [<|channel|>CHANNEL] [to=RECIPIENT] [[<|constrain|>]TYPE]`. Of several channels
    /// and recipients the last one counts: gpt-oss-20b writes `<|channel|>commentary to=assistant` before others.
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
                // The type of the text is the last.
                let behind = rest.strip_prefix(CONSTRAIN).unwrap_or(rest);
                let (_, behind) = word(behind.trim_start())?;
                header.has_type = true;
                return behind.trim().is_empty().then_some(header);
            }
        }
    }
}

/// A word, and what is behind it.
fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (!word.is_empty()).then_some((word, rest))
}

/// True if a template writes such messages.
pub(super) fn is_taught_by(jinja: &str) -> bool {
    jinja.contains(CHANNEL) && jinja.contains(MESSAGE)
}

/// True for a prompt that ends inside of a header, so that no text can be put behind it.
#[must_use]
pub fn ends_in_header(prompt: &str) -> bool {
    prompt.trim_end().ends_with(&format!("{START}{ROLE}"))
}

#[cfg(test)]
#[path = "harmony_tests.rs"]
mod tests;
