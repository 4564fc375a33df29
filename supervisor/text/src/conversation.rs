//! What clients write for a chat template: messages, calls, their results, and tools.
//!
//! Tools and arguments are JSON, and stay text as [`json_texts`] has it until the interpreter makes values
//! of it.

use super::json_texts;
use super::python_json;
use super::template::TemplateError;
use minijinja::{Value, context};
use serde::{Deserialize, Serialize};

/// Bytes that a message costs beside its text: two names and their places.
const MESSAGE_BYTES: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    /// `None` of an assistant that only called.
    pub content: Option<String>,
    /// The name of the speaker, where several play one role.
    pub name: Option<String>,
    /// What an assistant thought before it said this.
    pub reasoning: Option<String>,
    /// Calls that an assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// The call that this message is the result of.
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    /// A JSON object, as [`json_texts`] has it.
    pub arguments: String,
}

/// All that clients write for a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub messages: Vec<ChatMessage>,
    /// A JSON list of what the model may call, as [`json_texts`] has it.
    pub tools: Option<String>,
}

impl Conversation {
    /// Bytes that it takes of whoever handles it: all of its own, and something for each message and call.
    #[must_use]
    pub fn cost(&self) -> usize {
        let of_messages = self.messages.iter().map(ChatMessage::cost);
        of_messages.sum::<usize>() + self.tools.as_ref().map_or(0, String::len)
    }

    pub(super) fn has_calls(&self) -> bool {
        let mut messages = self.messages.iter();
        messages.any(|message| !message.tool_calls.is_empty())
    }

    /// The same with an empty text where a message has none, not even an empty one, and where a function has no
    /// description; `None` where nothing is missing.
    pub(super) fn with_missing_texts(&self) -> Option<Self> {
        let mut same = self.clone();
        for message in &mut same.messages {
            message.content.get_or_insert_default();
        }
        same.tools = same.tools.map(|tools| described(&tools).unwrap_or(tools));
        (same != *self).then_some(same)
    }

    /// The same with each text that a client wrote as `change` has it.
    pub(super) fn map_texts(&self, change: &mut dyn FnMut(&str) -> String) -> Self {
        let messages = self.messages.iter();
        Self {
            messages: messages.map(|it| it.map_texts(change)).collect(),
            tools: self
                .tools
                .as_ref()
                .and_then(|it| json_texts::map(it, change)),
        }
    }
}

/// Tools of which each function has a description.
fn described(tools: &str) -> Option<String> {
    let mut tools: serde_json::Value = serde_json::from_str(tools).ok()?;
    for tool in tools.as_array_mut()? {
        let function = tool.get_mut("function")?.as_object_mut()?;
        function.entry("description").or_insert("".into());
    }
    Some(tools.to_string())
}

impl ChatMessage {
    fn cost(&self) -> usize {
        let texts = [
            &self.content,
            &self.name,
            &self.reasoning,
            &self.tool_call_id,
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        let calls = self.tool_calls.iter().map(|call| {
            let id = call.id.as_ref().map_or(0, String::len);
            id + call.name.len() + call.arguments.len() + MESSAGE_BYTES
        });
        self.role.len() + MESSAGE_BYTES + texts.sum::<usize>() + calls.sum::<usize>()
    }

    fn map_texts(&self, change: &mut dyn FnMut(&str) -> String) -> Self {
        let calls = self.tool_calls.iter().map(|call| ToolCall {
            id: call.id.as_ref().map(|it| change(it)),
            name: change(&call.name),
            arguments: json_texts::map(&call.arguments, change).unwrap_or_default(),
        });
        let tool_calls = calls.collect();
        Self {
            role: self.role.clone(),
            content: self.content.as_ref().map(|it| change(it)),
            name: self.name.as_ref().map(|it| change(it)),
            reasoning: self.reasoning.as_ref().map(|it| change(it)),
            tool_calls,
            tool_call_id: self.tool_call_id.as_ref().map(|it| change(it)),
        }
    }
}

/// The name that gpt-oss's template has for `reasoning_content`.
const THINKING: &str = "thinking";

/// What a template wants of messages, by its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageForm {
    /// It asks for what messages have under another name: it is gpt-oss's.
    has_thinking: bool,
    /// It asks whether a content is none, by which DeepSeek's templates know that there are calls.
    has_none: bool,
    /// It takes the arguments of calls for a text: JSON as Python writes it.
    has_arguments_as_text: bool,
}

impl MessageForm {
    pub(super) fn of_template(jinja: &str) -> Self {
        Self {
            has_thinking: jinja.contains("message.thinking"),
            has_none: CONTENT_IS.iter().any(|is| {
                let behind = jinja.split(is).skip(1).map(str::trim_start);
                let mut behind = behind.map(|it| it.strip_prefix("not").unwrap_or(it).trim_start());
                behind.any(|it| it.starts_with("none"))
            }),
            // That is seen when it fails on values.
            has_arguments_as_text: false,
        }
    }

    pub(super) fn with_arguments_as_text(self) -> Self {
        Self {
            has_arguments_as_text: true,
            ..self
        }
    }
}

/// How a test of a content begins.
const CONTENT_IS: &[&str] = &["content is ", "content'] is ", "content\"] is "];

/// The message as a template sees it, which is as the OpenAI API has it but for the arguments of calls:
/// templates of Hugging Face's transformers want values and not text, but for [some](MessageForm::with_arguments_as_text).
/// What is not there has no key, as in transformers, for templates ask whether it is and print what is there; but a content is
/// none for those that ask that.
///
/// gpt-oss's template refuses calls beside content and thoughts. As llama.cpp does, it is given no content then.
pub(super) fn value_of(message: &ChatMessage, form: MessageForm) -> Result<Value, TemplateError> {
    let thinking = message.reasoning.clone().filter(|_| form.has_thinking);
    let has_both = thinking.is_some() && !message.tool_calls.is_empty();
    let content = message.content.as_deref().map(|content| match has_both {
        true => "",
        false => content,
    });
    let mut pairs = vec![("role", Value::from(message.role.as_str()))];
    if content.is_some() || form.has_none {
        pairs.push(("content", Value::from(content)));
    }
    for (key, text) in [
        ("name", &message.name),
        ("reasoning_content", &message.reasoning),
        (THINKING, &thinking),
        ("tool_call_id", &message.tool_call_id),
    ] {
        pairs.extend(text.as_ref().map(|text| (key, Value::from(text.as_str()))));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|it| value_of_call(it, form));
        let calls = calls.collect::<Result<Vec<Value>, _>>()?;
        pairs.push(("tool_calls", Value::from(calls)));
    }
    Ok(Value::from_pairs(pairs))
}

fn value_of_call(call: &ToolCall, form: MessageForm) -> Result<Value, TemplateError> {
    let mut arguments = value_of_json(&call.arguments)?;
    if form.has_arguments_as_text {
        let failed = |error: minijinja::Error| TemplateError::Failed(error.to_string());
        arguments = python_json::written(&arguments).map_err(failed)?;
    }
    let function = context! { name => &call.name, arguments => arguments };
    Ok(match &call.id {
        Some(id) => context! { id, type => "function", function },
        None => context! { type => "function", function },
    })
}

pub(super) fn value_of_json(text: &str) -> Result<Value, TemplateError> {
    serde_json::from_str(text).map_err(|error| TemplateError::Failed(error.to_string()))
}
