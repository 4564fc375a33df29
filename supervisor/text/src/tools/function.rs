//! Parser of one tool call of Qwen3-Coder and its successors:
//!
//! ```text
//! <function=get_weather>
//! <parameter=city>
//! Paris
//! </parameter>
//! </function>
//! ```
//!
//! A call begins for the client with its first parameter, or with its end if it has none. Until then no event is
//! emitted, and all of the text can still become content. Parameters become members of a JSON object in the order of the
//! text, separated as by Python's `json.dumps`.

use super::Event;
use super::call::{MAX_NAME_BYTES, Step, push_arguments};
use super::json::Broken;
use super::parameters::{OfFunction, Parameters};
use super::value::{Behind, CALL_END, FUNCTION_END, PARAMETER, Value, push_escaped};
use std::sync::Arc;

pub(super) const FUNCTION: &str = "<function=";

#[derive(Debug, Clone)]
pub(super) struct FunctionCall {
    place: Place,
    /// Beginning of a tag or a name.
    begun: String,
    name: String,
    of_request: Parameters,
    types: Arc<OfFunction>,
    /// The function must be one of the request's.
    must_be_known: bool,
    has_parameters: bool,
}

#[derive(Debug, Clone)]
enum Place {
    /// In the opening tag, before the name.
    Opening,
    Name,
    /// Before the first parameter or the end.
    Opened,
    /// In the name of a parameter.
    Key,
    Value(Value),
}

impl FunctionCall {
    /// A call that begins with the next character.
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self {
            place: Place::Opening,
            begun: String::new(),
            name: String::new(),
            of_request: parameters.clone(),
            types: Arc::default(),
            must_be_known: false,
            has_parameters: false,
        }
    }

    /// A call behind its [opening tag](FUNCTION). Nothing else shows that it is one, so the function must be known.
    pub(super) fn begun(parameters: &Parameters) -> Self {
        Self {
            place: Place::Name,
            must_be_known: true,
            ..Self::new(parameters)
        }
    }

    pub(super) fn push(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        match &mut self.place {
            Place::Opening => {
                self.begun.push(c);
                match FUNCTION.strip_prefix(&*self.begun) {
                    Some("") => {
                        self.begun.clear();
                        self.place = Place::Name;
                    }
                    Some(_) => {}
                    None => return Err(Broken),
                }
                Ok(Step::Unknown)
            }
            Place::Name => {
                if let Some(name) = self.named(c)? {
                    let types = self.of_request.of_function(&name).cloned();
                    if name.is_empty() || (self.must_be_known && types.is_none()) {
                        return Err(Broken);
                    }
                    self.types = types.unwrap_or_default();
                    self.name = name;
                    self.place = Place::Opened;
                }
                Ok(Step::Unknown)
            }
            Place::Opened => self.opened(c, out),
            Place::Key => {
                if let Some(key) = self.named(c)? {
                    push_arguments(out, if self.has_parameters { ", \"" } else { "\"" });
                    push_escaped(&key, out);
                    push_arguments(out, "\": ");
                    self.has_parameters = true;
                    self.place = Place::Value(Value::new(self.types.types(&key), out));
                }
                Ok(Step::Sent)
            }
            Place::Value(value) => Ok(match value.push(c, out) {
                None => Step::Sent,
                Some(Behind::Parameter) => {
                    self.place = Place::Key;
                    Step::Sent
                }
                Some(Behind::End) => end(out),
            }),
        }
    }

    /// Ends the answer. A call without its last tags is complete behind a parameter. Returns false if it is not.
    pub(super) fn finish(&mut self, out: &mut Vec<Event>) -> bool {
        match &mut self.place {
            Place::Value(value) if value.is_closed() => {
                value.end(out);
                end(out);
                true
            }
            _ => false,
        }
    }

    /// A name, once its tag is complete.
    fn named(&mut self, c: char) -> Result<Option<String>, Broken> {
        match c {
            '>' => Ok(Some(std::mem::take(&mut self.begun))),
            _ if !is_of_name(c) || self.begun.len() >= MAX_NAME_BYTES => Err(Broken),
            _ => {
                self.begun.push(c);
                Ok(None)
            }
        }
    }

    fn opened(&mut self, c: char, out: &mut Vec<Event>) -> Result<Step, Broken> {
        if self.begun.is_empty() && c.is_ascii_whitespace() {
            return Ok(Step::Unknown);
        }
        self.begun.push(c);
        let tags = [PARAMETER, FUNCTION_END, CALL_END];
        if !tags.iter().any(|tag| tag.starts_with(&*self.begun)) {
            return Err(Broken);
        }
        if !tags.contains(&&*self.begun) {
            return Ok(Step::Unknown);
        }
        let name = std::mem::take(&mut self.name);
        out.push(Event::CallBegins { name });
        push_arguments(out, "{");
        if self.begun != PARAMETER {
            return Ok(end(out));
        }
        self.begun.clear();
        self.place = Place::Key;
        Ok(Step::Sent)
    }
}

fn end(out: &mut Vec<Event>) -> Step {
    push_arguments(out, "}");
    out.push(Event::CallEnds);
    Step::Whole
}

/// True for a character that may be in a name. Tags have no escapes.
pub(super) fn is_of_name(c: char) -> bool {
    !matches!(c, '<' | '>' | '\n')
}

#[cfg(test)]
#[path = "function_tests.rs"]
mod tests;
