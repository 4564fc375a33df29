//! Parser of a parameter's value between tags, which becomes JSON:
//!
//! ```text
//! <parameter=city>       "New\nYork"       a string: one line end at either end is dropped
//! New
//! York
//! </parameter>
//! <parameter=days>       [1, 2]            another type: JSON as it is written, or a string if it is none
//! [1, 2]
//! </parameter>
//! ```
//!
//! A closing tag ends the value only where a call can continue or end behind it, because values quote tags. Within a
//! string of a JSON value it never does. A string is passed on while it grows. A value that may still be JSON is held
//! to its end.

use super::Event;
use super::call::push_arguments;
use super::json::{Json, MAX_DEPTH, Place};
use super::parameters::Types;

pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const CALL_END: &str = "</tool_call>";

/// Tags that end a value, and those that must follow. A model may omit `</parameter>`.
const CLOSERS: [(&str, &[&str]); 2] = [
    ("</parameter>", &[PARAMETER, FUNCTION_END, CALL_END]),
    (FUNCTION_END, &[CALL_END]),
];

/// Tags after a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Parameter,
    End,
}

#[derive(Debug, Clone)]
pub(super) struct Value {
    written: Written,
    /// Text that may be tags.
    tail: String,
    at: At,
    /// No character of the value was read yet.
    is_new: bool,
    /// A line end that is dropped if the value ends.
    has_line: bool,
}

/// Position in `tail`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In the closing tag.
    Closer,
    /// Behind this closing tag, of which white space is a part: in the next tag, which begins there.
    Behind { closer: usize, begins: usize },
}

/// JSON so far.
#[derive(Debug, Clone)]
enum Written {
    /// Within a string.
    Text,
    Nothing(Held),
}

/// Text of a value that may be JSON or a [word](WORDS) of other types than a string.
#[derive(Debug, Clone)]
struct Held {
    types: Types,
    text: String,
    has_begun: bool,
    json: Option<Json>,
    word: Option<String>,
    /// White space followed the word.
    is_word_over: bool,
}

impl Value {
    pub(super) fn new(types: Types, out: &mut Vec<Event>) -> Self {
        let written = match types {
            Types::STRING => {
                push_arguments(out, "\"");
                Written::Text
            }
            types => Written::Nothing(Held::new(types)),
        };
        Self {
            written,
            tail: String::new(),
            at: At::Closer,
            is_new: true,
            has_line: false,
        }
    }

    /// Returns the tags after the value, once they are read. The value is complete then.
    pub(super) fn push(&mut self, c: char, out: &mut Vec<Event>) -> Option<Behind> {
        if self.tail.is_empty() && (c != '<' || self.is_in_string()) {
            self.add(c, out);
            return None;
        }
        self.tail.push(c);
        let is_possible = match self.at {
            At::Closer => {
                let closer = CLOSERS.iter().position(|(closer, _)| *closer == self.tail);
                if let Some(closer) = closer {
                    let begins = self.tail.len();
                    self.at = At::Behind { closer, begins };
                }
                CLOSERS
                    .iter()
                    .any(|(closer, _)| closer.starts_with(&*self.tail))
            }
            At::Behind { closer, begins } => {
                let tag = &self.tail[begins..];
                if tag.len() == 1 && c.is_ascii_whitespace() {
                    let begins = self.tail.len();
                    self.at = At::Behind { closer, begins };
                    return None;
                }
                let following = CLOSERS[closer].1;
                if following.contains(&tag) {
                    let behind = match tag {
                        PARAMETER => Behind::Parameter,
                        _ => Behind::End,
                    };
                    self.end(out);
                    return Some(behind);
                }
                following.iter().any(|it| it.starts_with(tag))
            }
        };
        if !is_possible {
            self.release(out);
        }
        None
    }

    /// Reads the tail as a part of the value, up to the next possible tag in it.
    fn release(&mut self, out: &mut Vec<Event>) {
        self.at = At::Closer;
        let tail = std::mem::take(&mut self.tail);
        let next = tail.match_indices('<').map(|(at, _)| at).find(|at| *at > 0);
        let (head, rest) = tail.split_at(next.unwrap_or(tail.len()));
        head.chars().for_each(|c| self.add(c, out));
        for c in rest.chars() {
            // It is shorter than a closing tag and the next one.
            self.push(c, out);
        }
    }

    /// True if a closing tag was read, and nothing behind it.
    pub(super) fn is_closed(&self) -> bool {
        self.at
            == At::Behind {
                closer: 0,
                begins: self.tail.len(),
            }
    }

    pub(super) fn end(&mut self, out: &mut Vec<Event>) {
        match &mut self.written {
            Written::Text => push_arguments(out, "\""),
            Written::Nothing(held) => match held.json() {
                Some(json) => push_arguments(out, json),
                None => {
                    push_arguments(out, "\"");
                    push_escaped(&held.text, out);
                    push_arguments(out, "\"");
                }
            },
        }
    }

    /// True within a string of a value that may still be JSON. No tag begins there.
    fn is_in_string(&self) -> bool {
        let Written::Nothing(Held {
            json: Some(json), ..
        }) = &self.written
        else {
            return false;
        };
        !self.has_line && matches!(json.place(), Place::Text { .. })
    }

    /// Adds a character of the value.
    fn add(&mut self, c: char, out: &mut Vec<Event>) {
        let is_first = std::mem::replace(&mut self.is_new, false);
        if c == '\n' && is_first {
            return;
        }
        if std::mem::replace(&mut self.has_line, c == '\n') {
            self.write('\n', out);
        }
        if c != '\n' {
            self.write(c, out);
        }
    }

    fn write(&mut self, c: char, out: &mut Vec<Event>) {
        match &mut self.written {
            Written::Text => push_escaped(c.encode_utf8(&mut [0; 4]), out),
            Written::Nothing(held) => {
                if !held.push(c) {
                    push_arguments(out, "\"");
                    push_escaped(&held.text, out);
                    self.written = Written::Text;
                }
            }
        }
    }
}

/// Words of Python, which some templates write, with their JSON and their types.
const WORDS: [(&str, &str, Types); 3] = [
    ("True", "true", Types::BOOLEAN),
    ("False", "false", Types::BOOLEAN),
    ("None", "null", Types::NULL),
];

impl Held {
    fn new(types: Types) -> Self {
        Self {
            types,
            text: String::new(),
            has_begun: false,
            json: Some(Json::default()),
            word: Some(String::new()),
            is_word_over: false,
        }
    }

    /// Returns false if the value is a string.
    fn push(&mut self, c: char) -> bool {
        self.text.push(c);
        let is_space = c.is_ascii_whitespace();
        if !is_space && !std::mem::replace(&mut self.has_begun, true) && !self.may_begin(c) {
            self.json = None;
        }
        // The value is within the object of the arguments.
        let is_broken = |json: &mut Json| json.push(c).is_err() || json.depth() == MAX_DEPTH;
        if self.json.as_mut().is_some_and(is_broken) {
            self.json = None;
        }
        match &mut self.word {
            Some(word) if is_space => self.is_word_over = !word.is_empty(),
            Some(word) => {
                word.push(c);
                let is_begun = WORDS.iter().any(|(it, ..)| it.starts_with(&**word));
                if self.is_word_over || !is_begun {
                    self.word = None;
                }
            }
            None => {}
        }
        self.json.is_some() || self.word.is_some()
    }

    /// True if JSON of these types may begin with this character. A string is written without quotes, but any JSON is
    /// read if the value must not be a string.
    fn may_begin(&self, c: char) -> bool {
        let begun = Types::begun_by(c);
        match self.types.has(Types::STRING) {
            true => begun != Types::STRING && self.types.has(begun),
            false => true,
        }
    }

    /// The whole value as JSON. `None`: it is a string.
    fn json(&self) -> Option<&str> {
        let may_be_text = self.types.has(Types::STRING);
        if self.json.as_ref().is_some_and(Json::is_whole) {
            let text = self.text.trim_ascii();
            let is_number = text.starts_with(|c| Types::begun_by(c) == Types::NUMBER);
            let is_fraction = is_number && text.contains(['.', 'e', 'E']);
            let is_text = may_be_text && is_fraction && !self.types.has(Types::FRACTION);
            return (!is_text).then_some(text);
        }
        let word = self.word.as_deref()?;
        let (_, json, types) = WORDS.iter().find(|(it, ..)| *it == word)?;
        // Other values that must not be a string may be null, as in vLLM.
        let is_null = *types == Types::NULL && !may_be_text;
        (is_null || self.types.has(*types)).then_some(*json)
    }
}

/// Appends the inside of a JSON string.
pub(super) fn push_escaped(text: &str, out: &mut Vec<Event>) {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            '\0'..='\u{1f}' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => escaped.push(c),
        }
    }
    push_arguments(out, &escaped);
}
