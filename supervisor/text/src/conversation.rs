//! Input of a chat template: messages, tool calls, tool results, and tools.
//!
//! Tools and arguments are JSON. They stay text, as [`json_texts`] normalizes them, until the interpreter parses them.

use super::json_texts;
use super::python_json;
use super::template::TemplateError;
use minijinja::{Value, context};
use serde::{Deserialize, Serialize};

/// Bytes charged for a message in addition to its text: two strings and their list entries.
const MESSAGE_BYTES: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    /// `None` for an assistant message that holds only tool calls.
    pub content: Option<String>,
    /// Name of the author, when several authors share a role.
    pub name: Option<String>,
    /// Reasoning of the assistant before the content.
    pub reasoning: Option<String>,
    /// Tool calls of an assistant message.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the tool call that this message is the result of.
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    /// JSON object, normalized by [`json_texts`].
    pub arguments: String,
}

/// Messages and tools that a client writes for the template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub messages: Vec<ChatMessage>,
    /// JSON list of the tools, normalized by [`json_texts`].
    pub tools: Option<String>,
}

impl Conversation {
    /// Memory that the conversation is charged for, in bytes: its texts, and a constant per message and tool call.
    #[must_use]
    pub fn cost(&self) -> usize {
        let of_messages = self.messages.iter().map(ChatMessage::cost);
        of_messages.sum::<usize>() + self.tools.as_ref().map_or(0, String::len)
    }

    pub(super) fn has_calls(&self) -> bool {
        let mut messages = self.messages.iter();
        messages.any(|message| !message.tool_calls.is_empty())
    }

    /// Copy with an empty content in each message without content, and an empty description in each function without
    /// one. `None` if nothing is missing.
    pub(super) fn with_missing_texts(&self) -> Option<Self> {
        let mut same = self.clone();
        for message in &mut same.messages {
            message.content.get_or_insert_default();
        }
        same.tools = same.tools.map(|tools| described(&tools).unwrap_or(tools));
        (same != *self).then_some(same)
    }

    /// Copy with `change` applied to each text that a client wrote.
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

/// Tools with a `description` in each function. `None` if the JSON is not a list of functions.
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

/// Key of gpt-oss's template for `reasoning_content`.
const THINKING: &str = "thinking";

/// Form in which a template reads messages, detected from its text.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageFormat {
    /// The template reads `message.thinking`, as gpt-oss's does.
    has_thinking: bool,
    /// The template tests whether a content is `none`. DeepSeek's templates detect tool calls this way.
    has_none: bool,
    /// The template expects the arguments of tool calls as text: JSON in Python's spelling.
    has_arguments_as_text: bool,
}

impl MessageFormat {
    pub(super) fn of_template(jinja: &str) -> Self {
        Self {
            has_thinking: jinja.contains("message.thinking"),
            has_none: CONTENT_IS.iter().any(|is| {
                let behind = jinja.split(is).skip(1).map(str::trim_start);
                let mut behind = behind.map(|it| it.strip_prefix("not").unwrap_or(it).trim_start());
                behind.any(|it| it.starts_with("none"))
            }),
            // Detected later: rendering with values fails.
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

/// Beginnings of a Jinja test of a content.
const CONTENT_IS: &[&str] = &["content is ", "content'] is ", "content\"] is "];

/// Message as a template reads it. The form is the OpenAI API's, except the arguments of tool calls: most templates
/// written for Hugging Face's transformers expect values, [some](MessageFormat::with_arguments_as_text) expect text.
///
/// An absent field has no key, as in transformers: templates test for the key and print its value. For templates that
/// test the content for `none`, an absent content is `none`.
///
/// gpt-oss's template rejects a message with tool calls, content and reasoning. As in llama.cpp, its content is then
/// emptied.
pub(super) fn value_of(message: &ChatMessage, form: MessageFormat) -> Result<Value, TemplateError> {
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

fn value_of_call(call: &ToolCall, form: MessageFormat) -> Result<Value, TemplateError> {
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
