//! Parser of one tool call of Gemma 4, as its chat template writes it:
//!
//! ```text
//! call:get_weather{city:<|"|>Paris<|"|>,days:2,at:{lat:48.9,lon:2.4}}
//! ```
//!
//! Strings are between marks, without escapes. Keys are bare, or between the same marks. A bare value is a number, `true`,
//! `false`, `null` or `None`, which the template writes for a null; any other is a string, as in vLLM's parser.
//!
//! A call begins for the client with its opening brace. Until then no event is emitted, and all of the text can still
//! become content. The arguments become a JSON object, separated as by Python's `json.dumps`.

use super::Event;
use super::call::{MAX_NAME_BYTES, Step, push_arguments};
use super::json::{Broken, MAX_DEPTH};
use super::value::push_escaped;
use serde_json::Value;

pub(super) const CALL: &str = "call:";

/// Mark at both ends of a string.
pub(super) const QUOTE: &str = "<|\"|>";

/// Maximum length of a bare value, in bytes. A longer text is not a call.
const MAX_BARE_BYTES: usize = 4096;

#[derive(Debug, Clone)]
pub(super) struct DictCall {
    place: Place,
    /// Beginning of a mark, a name, a key or a bare value.
    begun: String,
    nests: Vec<Nest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nest {
    Object,
    List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In [`CALL`].
    Opening,
    Name,
    /// Before a key. `may_close`: the object is still empty and may end here.
    Key {
        may_close: bool,
    },
    BareKey,
    /// Behind a key between marks.
    Colon,
    /// Before a value. `may_close`: the list is still empty and may end here.
    Value {
        may_close: bool,
    },
    Bare,
    /// In the mark that begins a string, which is a key or a value.
    Quote {
        is_key: bool,
    },
    Text {
        is_key: bool,
    },
    /// Behind a value.
    Separator,
}

impl Default for DictCall {
    /// A call that begins with the next character.
    fn default() -> Self {
        Self {
            place: Place::Opening,
            begun: String::new(),
            nests: Vec::new(),
        }
    }
}

impl DictCall {
    pub(super) fn push(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        match self.place {
            Place::Opening | Place::Name => return self.begin(c, out),
            Place::Text { is_key } => self.text(c, is_key, out),
            Place::Bare => match c {
                ',' | '}' | ']' => {
                    push_bare(&std::mem::take(&mut self.begun), out);
                    self.separator(c, out)?;
                }
                _ => self.hold(c, MAX_BARE_BYTES)?,
            },
            Place::BareKey => match c {
                ':' => {
                    let key = std::mem::take(&mut self.begun);
                    push_string(key.trim_end(), out);
                    self.colon(out);
                }
                _ if is_of_key(c) => self.hold(c, MAX_NAME_BYTES)?,
                _ => return Err(Broken),
            },
            Place::Quote { is_key } => {
                if !QUOTE[self.begun.len()..].starts_with(c) {
                    return Err(Broken);
                }
                self.begun.push(c);
                if self.begun == QUOTE {
                    self.begun.clear();
                    push_arguments(out, "\"");
                    self.place = Place::Text { is_key };
                }
            }
            _ if c.is_ascii_whitespace() => {}
            Place::Key { may_close } => match c {
                '}' if may_close => self.close(out),
                '<' => self.quote(true),
                _ if is_of_key(c) => {
                    self.begun.push(c);
                    self.place = Place::BareKey;
                }
                _ => return Err(Broken),
            },
            Place::Colon if c == ':' => self.colon(out),
            Place::Colon => return Err(Broken),
            Place::Value { may_close } => match c {
                '{' => self.open(Nest::Object, out)?,
                '[' => self.open(Nest::List, out)?,
                ']' if may_close => self.close(out),
                '<' => self.quote(false),
                ',' | ':' | '}' | ']' | '"' => return Err(Broken),
                _ => {
                    self.begun.push(c);
                    self.place = Place::Bare;
                }
            },
            Place::Separator => self.separator(c, out)?,
        }
        Ok(match self.nests.is_empty() {
            true => Step::Whole,
            false => Step::Sent,
        })
    }

    /// A character before the arguments, or their opening brace.
    fn begin(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        if self.place == Place::Opening {
            self.begun.push(c);
            match CALL.strip_prefix(&*self.begun) {
                Some("") => {
                    self.begun.clear();
                    self.place = Place::Name;
                }
                Some(_) => {}
                None => return Err(Broken),
            }
            return Ok(Step::Unknown);
        }
        if c != '{' {
            self.hold(c, MAX_NAME_BYTES)?;
            return match is_of_name(c) {
                true => Ok(Step::Unknown),
                false => Err(Broken),
            };
        }
        let name = std::mem::take(&mut self.begun);
        if name.is_empty() {
            return Err(Broken);
        }
        out.push(Event::CallBegins { name });
        self.open(Nest::Object, out)?;
        Ok(Step::Sent)
    }

    /// Ends the answer within the call: a bare value that the client does not have yet is complete.
    pub(super) fn finish(&mut self, out: &mut Vec<Event>) {
        if self.place == Place::Bare {
            push_bare(&self.take_begun(), out);
        }
    }

    /// Text that was read and not passed on.
    pub(super) fn take_begun(&mut self) -> String {
        std::mem::take(&mut self.begun)
    }

    fn hold(&mut self, c: char, most: usize) -> Result<(), Broken> {
        if self.begun.len() >= most {
            return Err(Broken);
        }
        self.begun.push(c);
        Ok(())
    }

    fn open(&mut self, nest: Nest, out: &mut Vec<Event>) -> Result<(), Broken> {
        if self.nests.len() == MAX_DEPTH {
            return Err(Broken);
        }
        self.nests.push(nest);
        let (bracket, place) = match nest {
            Nest::Object => ("{", Place::Key { may_close: true }),
            Nest::List => ("[", Place::Value { may_close: true }),
        };
        push_arguments(out, bracket);
        self.place = place;
        Ok(())
    }

    /// Ends the innermost object or list.
    fn close(&mut self, out: &mut Vec<Event>) {
        let bracket = match self.nests.pop() {
            Some(Nest::List) => "]",
            _ => "}",
        };
        push_arguments(out, bracket);
        if self.nests.is_empty() {
            out.push(Event::CallEnds);
        }
        self.place = Place::Separator;
    }

    fn quote(&mut self, is_key: bool) {
        self.begun.push('<');
        self.place = Place::Quote { is_key };
    }

    fn colon(&mut self, out: &mut Vec<Event>) {
        push_arguments(out, ": ");
        self.place = Place::Value { may_close: false };
    }

    /// A character of a string, or of the mark behind it.
    fn text(&mut self, c: char, is_key: bool, out: &mut Vec<Event>) {
        self.begun.push(c);
        if !QUOTE.starts_with(&*self.begun) {
            // Only the last character may begin another mark: no other character of a mark is its first.
            let last = self.begun.pop().filter(|last| QUOTE.starts_with(*last));
            let text = std::mem::take(&mut self.begun);
            push_escaped(&text, out);
            match last {
                Some(last) => self.begun.push(last),
                None => push_escaped(c.encode_utf8(&mut [0; 4]), out),
            }
        } else if self.begun == QUOTE {
            self.begun.clear();
            push_arguments(out, "\"");
            self.place = match is_key {
                true => Place::Colon,
                false => Place::Separator,
            };
        }
    }

    fn separator(&mut self, c: char, out: &mut Vec<Event>) -> Result<(), Broken> {
        match (c, self.nests.last()) {
            (',', Some(nest)) => {
                push_arguments(out, ", ");
                self.place = match nest {
                    Nest::Object => Place::Key { may_close: false },
                    Nest::List => Place::Value { may_close: false },
                };
            }
            ('}', Some(Nest::Object)) | (']', Some(Nest::List)) => self.close(out),
            _ => return Err(Broken),
        }
        Ok(())
    }
}

fn push_string(text: &str, out: &mut Vec<Event>) {
    push_arguments(out, "\"");
    push_escaped(text, out);
    push_arguments(out, "\"");
}

fn push_bare(text: &str, out: &mut Vec<Event>) {
    let text = text.trim_end();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(_) | Value::Bool(_) | Value::Null) => push_arguments(out, text),
        _ if text == "None" => push_arguments(out, "null"),
        _ => push_string(text, out),
    }
}

/// True for a character that may be in a function's name. Calls have no escapes.
pub(super) fn is_of_name(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, '{' | '}' | '<' | '>' | ':')
}

/// True for a character that may be in a bare key.
fn is_of_key(c: char) -> bool {
    !matches!(
        c,
        '{' | '}' | '[' | ']' | '<' | '>' | ':' | ',' | '"' | '\n'
    )
}

#[cfg(test)]
#[path = "dict_tests.rs"]
mod tests;
