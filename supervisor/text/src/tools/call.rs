//! Parser of one tool call: an object with a name and arguments, or a name followed by arguments.
//!
//! ```text
//! {"name": "add", "arguments": {"a": 1}}        add[ARGS]{"a": 1}
//! ```
//!
//! A call begins for the client once its name is complete and its arguments are seen to be an object. Until then no
//! event is emitted, and all of the text can still become content. Arguments are passed on character by character as
//! written, not parsed and serialized again.

use super::Event;
use super::json::{Broken, Json, Place};

/// Keys of the arguments. Llama 3 writes `parameters`.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Maximum length of a function's name, in bytes. A longer text is not a call.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// State of a call after one more character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// No event was emitted for the call yet.
    Unknown,
    /// All of the call so far was emitted.
    Sent,
    /// The call is complete and emitted.
    Whole,
}

/// Parser of `{"name": …, "arguments": {…}}`, with keys in any order. Other keys are ignored.
#[derive(Debug, Clone, Default)]
pub(super) struct CallObject {
    json: Json,
    reading: Reading,
    /// Key or name that is being read, with its quotes.
    quoted: String,
    name: Option<String>,
    arguments: Arguments,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Structure,
    Key,
    /// The value of `name` follows.
    NameFollows,
    ArgumentsFollow,
    Name,
    Arguments,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Arguments {
    #[default]
    NotSeen,
    /// Arguments that came before the name.
    Held { text: String, is_whole: bool },
    /// Arguments so far were emitted.
    Sent,
}

impl CallObject {
    pub(super) fn push(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        let (before, depth) = (self.json.place(), self.json.depth());
        self.json.push(c)?;
        let is_space = c.is_ascii_whitespace();
        match self.reading {
            Reading::Structure if depth == 1 && matches!(before, Place::Key { .. }) && c == '"' => {
                self.reading = Reading::Key;
                self.quoted.push(c);
            }
            Reading::Key => self.key(c)?,
            Reading::Name => self.name(c, out)?,
            Reading::NameFollows if matches!(before, Place::Value { .. }) && !is_space => {
                if c != '"' {
                    return Err(Broken);
                }
                self.reading = Reading::Name;
                self.quoted.push(c);
            }
            Reading::ArgumentsFollow if matches!(before, Place::Value { .. }) && !is_space => {
                if c != '{' {
                    return Err(Broken);
                }
                self.reading = Reading::Arguments;
                self.arguments = Arguments::Held {
                    text: String::new(),
                    is_whole: false,
                };
                self.argument(c, out);
            }
            Reading::Arguments => self.argument(c, out),
            Reading::Structure | Reading::NameFollows | Reading::ArgumentsFollow => {}
        }
        Ok(match (self.json.place(), &self.arguments) {
            (Place::End, Arguments::Sent) => Step::Whole,
            (Place::End, _) => return Err(Broken),
            (_, Arguments::Sent) => Step::Sent,
            _ => Step::Unknown,
        })
    }

    fn key(&mut self, c: char) -> Result<(), Broken> {
        self.quoted.push(c);
        if self.json.place() != Place::Colon {
            return Ok(());
        }
        let key = self.unquoted()?;
        self.reading = match key.as_str() {
            "name" if self.name.is_some() => return Err(Broken),
            "name" => Reading::NameFollows,
            key if ARGUMENTS.contains(&key) => match self.arguments {
                Arguments::NotSeen => Reading::ArgumentsFollow,
                Arguments::Held { .. } | Arguments::Sent => return Err(Broken),
            },
            _ => Reading::Structure,
        };
        Ok(())
    }

    fn name(&mut self, c: char, out: &mut Vec<Event>) -> Result<(), Broken> {
        self.quoted.push(c);
        if matches!(self.json.place(), Place::Text { .. }) {
            return match self.quoted.len() > MAX_NAME_BYTES {
                true => Err(Broken),
                false => Ok(()),
            };
        }
        let name = self.unquoted()?;
        if name.is_empty() {
            return Err(Broken);
        }
        self.name = Some(name);
        self.reading = Reading::Structure;
        self.begin(out);
        Ok(())
    }

    /// Handles a character of the arguments. The first one has opened the object.
    fn argument(&mut self, c: char, out: &mut Vec<Event>) {
        let ends = self.json.depth() == 1;
        match &mut self.arguments {
            Arguments::Held { text, is_whole } => {
                text.push(c);
                *is_whole = ends;
                self.begin(out);
            }
            Arguments::Sent => {
                push_arguments(out, c.encode_utf8(&mut [0; 4]));
                if ends {
                    out.push(Event::CallEnds);
                }
            }
            Arguments::NotSeen => {}
        }
        if ends {
            self.reading = Reading::Structure;
        }
    }

    /// Emits the held name and arguments, once both are known.
    fn begin(&mut self, out: &mut Vec<Event>) {
        if let (Some(name), Arguments::Held { text, is_whole }) = (&self.name, &self.arguments) {
            out.push(Event::CallBegins { name: name.clone() });
            push_arguments(out, text);
            if *is_whole {
                out.push(Event::CallEnds);
            }
            self.arguments = Arguments::Sent;
        }
    }

    fn unquoted(&mut self) -> Result<String, Broken> {
        let text = serde_json::from_str(&self.quoted).map_err(|_| Broken);
        self.quoted.clear();
        text
    }
}

/// Parser of Mistral's newer format: a name, `[ARGS]` and an object. `[CALL_ID]` and an id may stand between. Some
/// models omit `[ARGS]`.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedCall {
    name: String,
    /// Beginning of a mark after the name, such as `[ARGS`.
    mark: String,
    has_id: bool,
    json: Option<Json>,
}

const ARGS_MARK: &str = "[ARGS]";
const ID_MARK: &str = "[CALL_ID]";

impl NamedCall {
    /// True if a function's name may begin with this character.
    pub(super) fn may_begin(c: char) -> bool {
        c.is_ascii_alphanumeric() || c == '_'
    }

    pub(super) fn push(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        if let Some(json) = &mut self.json {
            json.push(c)?;
            push_arguments(out, c.encode_utf8(&mut [0; 4]));
            return Ok(match json.place() {
                Place::End => {
                    out.push(Event::CallEnds);
                    Step::Whole
                }
                _ => Step::Sent,
            });
        }
        match c {
            '{' if self.mark.is_empty() || self.mark == ARGS_MARK => {
                let mut json = Json::default();
                json.push(c)?;
                self.json = Some(json);
                let name = std::mem::take(&mut self.name);
                out.push(Event::CallBegins { name });
                push_arguments(out, "{");
                return Ok(Step::Sent);
            }
            ' ' | '\n' if self.mark == ARGS_MARK => {}
            '[' if self.mark == ID_MARK => {
                self.mark = "[".to_owned();
                self.has_id = true;
            }
            _ if self.mark == ID_MARK && c.is_ascii_alphanumeric() => {}
            '[' if self.mark.is_empty() => self.mark.push(c),
            _ if !self.mark.is_empty() => self.mark(c)?,
            _ if Self::may_begin(c) || matches!(c, '-' | '.') => {
                self.name.push(c);
                if self.name.len() > MAX_NAME_BYTES {
                    return Err(Broken);
                }
            }
            _ => return Err(Broken),
        }
        Ok(Step::Unknown)
    }

    fn mark(&mut self, c: char) -> Result<(), Broken> {
        self.mark.push(c);
        let is_id = !self.has_id && ID_MARK.starts_with(&self.mark);
        match is_id || ARGS_MARK.starts_with(&self.mark) {
            true => Ok(()),
            false => Err(Broken),
        }
    }
}

pub(super) fn push_arguments(out: &mut Vec<Event>, text: &str) {
    match out.last_mut() {
        Some(Event::CallArguments(before)) => before.push_str(text),
        _ => out.push(Event::CallArguments(text.to_owned())),
    }
}
