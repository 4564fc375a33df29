//! Chat template: renders messages to a prompt by the Jinja template of the model file.
//!
//! Templates are written for Python's Jinja with `trim_blocks` and `lstrip_blocks`. So Python's string and dictionary
//! methods work here, `tojson` is Python's, and `raise_exception` and `strftime_now` exist.
//!
//! The template is untrusted. It can access only its arguments, its steps are counted, and its prompt is bounded. It
//! can still overflow the stack, fill memory and take long, so the supervisor never interprets it: a separate process
//! does, and may die of it (`supervisor/engine/src/interpreter.rs`).

use super::conversation::{Conversation, MessageFormat, value_of, value_of_json};
use super::generation_tags;
use super::python_json::tojson;
use super::python_number;
use crate::date::strftime_now;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use thiserror::Error as ThisError;
use worker_orcd_ipc::{TokenId, TokenizerFacts};

/// Steps of one rendering: about a second. A long conversation takes a thousandth of it.
const FUEL: u64 = 5_000_000;

const NAME: &str = "chat";

/// Maximum length of a template's own error messages, in characters. They reach clients and the log.
const MAX_SAID_CHARS: usize = 1000;

/// Chat template and sequence tokens of a model file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSource {
    pub jinja: String,
    /// Texts of the begin- and end-of-sequence tokens.
    pub begin: String,
    pub end: String,
}

/// Names that every template receives. A client cannot set them.
pub const OWN_NAMES: &[&str] = &[
    "messages",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "tools",
    "documents",
];

/// Value of a template variable that a client sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TemplateSetting {
    Flag(bool),
    Number(i64),
    Word(String),
}

/// Conversation to render, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendering {
    pub conversation: Conversation,
    /// Variables by name. No name is in [`OWN_NAMES`].
    pub settings: Vec<(String, TemplateSetting)>,
    /// Bound of the prompt, in bytes. A longer prompt fits no context; rendering stops there.
    pub max_bytes: usize,
}

/// Reason for which messages cannot be rendered. Contains no message text, except in errors that the template itself
/// raises.
#[derive(Debug, Clone, PartialEq, Eq, ThisError, Serialize, Deserialize)]
pub enum TemplateError {
    #[error("the model has no chat template; send a prompt instead of messages")]
    Missing,
    #[error(
        "the model's chat template cannot be compiled ({0}); send a prompt instead of messages"
    )]
    Broken(String),
    /// The template called `raise_exception`: it rejects these messages.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the model's chat template failed on these messages: {0}")]
    Failed(String),
    #[error("the model's chat template makes more than {0} bytes of these messages")]
    TooLong(usize),
    /// Failure of the machine, not of the template or the messages.
    #[error("the model's chat template cannot be interpreted now: {0}")]
    Unavailable(String),
}

#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
    form: MessageFormat,
}

impl TemplateSource {
    /// # Errors
    /// If the model has no template.
    pub fn from_facts(facts: &TokenizerFacts) -> Result<Self, TemplateError> {
        let text = |token: Option<TokenId>| {
            token
                .and_then(|token| facts.tokens.get(token.index()).cloned())
                .unwrap_or_default()
        };
        Ok(Self {
            jinja: facts.chat_template.clone().ok_or(TemplateError::Missing)?,
            begin: text(facts.bos),
            end: text(facts.eos),
        })
    }
}

impl ChatTemplate {
    /// # Errors
    /// If the template is not valid Jinja.
    pub fn compile(source: TemplateSource) -> Result<Self, TemplateError> {
        let mut environment = environment();
        let form = MessageFormat::of_template(&source.jinja);
        environment
            .add_template_owned(NAME, generation_tags::replaced(&source.jinja))
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        Ok(Self {
            environment,
            begin: source.begin,
            end: source.end,
            form,
        })
    }

    /// Renders the prompt for the assistant's next turn.
    ///
    /// # Errors
    /// If the template rejects the messages, fails on them, takes too many steps, or writes too long a prompt.
    pub fn render(&self, rendering: &Rendering) -> Result<String, TemplateError> {
        let rendered = self.render_in_form(rendering, self.form);
        let Err(TemplateError::Failed(_)) = rendered else {
            return rendered;
        };
        if !rendering.conversation.has_calls() {
            return rendered;
        }
        // DeepSeek's templates concatenate arguments with other text, and need them as text.
        match self.render_in_form(rendering, self.form.with_arguments_as_text()) {
            Err(TemplateError::Failed(_)) => rendered,
            other => other,
        }
    }

    fn render_in_form(
        &self,
        rendering: &Rendering,
        form: MessageFormat,
    ) -> Result<String, TemplateError> {
        let rendered = self.render_as_it_is(rendering, form);
        let Err(TemplateError::Failed(_)) = rendered else {
            return rendered;
        };
        // Many templates require a text as content, but clients omit it beside tool calls. gpt-oss's requires
        // descriptions in the same way.
        match rendering.conversation.with_missing_texts() {
            Some(conversation) => {
                let rendering = Rendering {
                    conversation,
                    ..rendering.clone()
                };
                self.render_as_it_is(&rendering, form)
            }
            None => rendered,
        }
    }

    fn render_as_it_is(
        &self,
        rendering: &Rendering,
        form: MessageFormat,
    ) -> Result<String, TemplateError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| TemplateError::Broken(describe(&error)))?;
        let Conversation { messages, tools } = &rendering.conversation;
        let messages = messages.iter();
        let messages = messages.map(|it| value_of(it, form));
        let values = context! {
            messages => messages.collect::<Result<Vec<Value>, _>>()?,
            add_generation_prompt => true,
            bos_token => &self.begin,
            eos_token => &self.end,
            tools => tools.as_deref().map(value_of_json).transpose()?,
            documents => (),
            ..rendering.settings.iter().map(setting_of).collect::<BTreeMap<_, _>>()
        };
        let mut prompt = Bounded::new(rendering.max_bytes);
        match template.render_captured_to(values, &mut prompt) {
            Err(_) if prompt.overflowed => Err(TemplateError::TooLong(rendering.max_bytes)),
            Err(error) => Err(refusal(&error)),
            Ok(_) => String::from_utf8(prompt.bytes)
                .map_err(|error| TemplateError::Failed(error.to_string())),
        }
    }
}

/// Writer of a prompt with a bounded length.
#[derive(Debug)]
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    overflowed: bool,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            max,
            overflowed: false,
        }
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max - self.bytes.len() {
            self.overflowed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn setting_of((name, setting): &(String, TemplateSetting)) -> (String, Value) {
    let value = match setting {
        TemplateSetting::Flag(flag) => Value::from(*flag),
        TemplateSetting::Number(number) => Value::from(*number),
        TemplateSetting::Word(word) => Value::from(word.as_str()),
    };
    (name.clone(), value)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only names that end in `.html` are escaped, and `NAME` does not. No other template is loaded.
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .unwrap_or_default(),
    );
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(python_number::print);
    environment.add_filter("string", python_number::string);
    environment.add_filter("tojson", tojson);
    // In Python `None` is not iterable, and templates test `tools` for it.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        strftime_now(format).map_err(|why| Error::new(ErrorKind::InvalidOperation, why))
    });
    environment
}

/// Error raised by the template itself.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn refusal(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Refused(presentable(message));
        }
        cause = current.source();
    }
    TemplateError::Failed(describe(error))
}

/// Kind, detail and line of an error, without source text.
fn describe(error: &Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text.push_str(": ");
        text.push_str(detail);
    }
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    presentable(&text)
}

/// Makes untrusted text short, and replaces control characters, which could affect a terminal.
fn presentable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(MAX_SAID_CHARS).map(shown).collect()
}

#[cfg(test)]
mod tests;
