//! Field `input`: a text, or the items of a conversation, converted to the messages of a chat.
//!
//! * Consecutive reasoning, text and calls of an assistant are one message, like one answer of `/v1/chat/completions`.
//!   Only a text directly after a text begins another message.
//! * `instructions` and the system messages at the beginning are one message, because templates expect one there.
//! * Reasoning is read from the `content` of an item. Its `summary` and `encrypted_content` are ignored.
//! * A reference to another answer (`item_reference`) is refused like every unknown item, because no answers are
//!   stored.

use super::items::{self, Turn};
use crate::fields::{Fields, each};
use crate::json::{Json, Kind};
use crate::messages::{MAX_MESSAGES, length};
use crate::mistakes::Constraint;
use crate::schema;
use worker_orcd_text::ChatMessage;
use worker_orcd_text::tools::ChatTerms;

pub(super) const FIELDS: &[&str] = &["input", "instructions"];

/// Reads the conversation. Mistakes are recorded in `fields`. `max_chars` bounds all texts together.
pub(super) fn read(
    fields: &mut Fields<'_>,
    max_chars: usize,
    terms: &ChatTerms,
) -> Option<Vec<ChatMessage>> {
    fields.describe("input", || {
        let text = schema::text_of(&(1..=max_chars));
        schema::any_of([text, schema::list(items::shape(terms), &(1..=MAX_MESSAGES))])
    });
    let mut conversation = Conversation::default();
    let instructions = fields.text("instructions", &(0..=max_chars));
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        conversation.add(Turn::Said {
            role: "system",
            text,
        });
    }
    let input = fields.take("input");
    let input = fields.required("input", input)?;
    match input.kind() {
        Kind::Text => {
            let text = fields.text_of("input", input, &(1..=max_chars))?;
            conversation.add(Turn::Said { role: "user", text });
        }
        Kind::List => read_items(fields, input, terms, &mut conversation),
        _ => {
            let rule = "must be a string or a list of items";
            fields.error("input", Constraint::Type, rule);
        }
    }
    let messages = conversation.finish();
    if messages.iter().map(length).sum::<usize>() > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        fields.error("input", Constraint::Length, rule);
    }
    Some(messages)
}

fn read_items(
    fields: &mut Fields<'_>,
    list: Json<'_>,
    terms: &ChatTerms,
    conversation: &mut Conversation,
) {
    let count = each(fields.mistakes(), "input", list, |index, item, outside| {
        if let Some(turn) = items::read(item, outside, terms)?
            && index < MAX_MESSAGES
        {
            conversation.add(turn);
        }
        Ok(())
    });
    if count.is_none_or(|count| count == 0) {
        let rule = "must have at least one item";
        fields.error("input", Constraint::Length, rule);
    } else if count > Some(MAX_MESSAGES) {
        let rule = format!("must be at most {MAX_MESSAGES}");
        fields.error("input", Constraint::Length, rule);
    }
}

/// Messages so far.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<ChatMessage>,
}

impl Conversation {
    fn add(&mut self, turn: Turn) {
        match turn {
            Turn::Said {
                role: "assistant",
                text,
            } => {
                let message = self.assistant();
                match &mut message.content {
                    Some(said) => said.push_str(&text),
                    none => *none = Some(text),
                }
            }
            Turn::Said {
                role: "system",
                text,
            } if self.is_beginning() => {
                if let Some(ChatMessage {
                    content: Some(said),
                    ..
                }) = self.messages.first_mut()
                {
                    said.push_str("\n\n");
                    said.push_str(&text);
                }
            }
            Turn::Said { role, text } => self.push(role, Some(text)),
            Turn::Thought(text) => {
                let message = self.assistant();
                match &mut message.reasoning {
                    Some(thought) => {
                        thought.push('\n');
                        thought.push_str(&text);
                    }
                    none => *none = Some(text),
                }
            }
            Turn::Called(call) => self.caller().tool_calls.push(call),
            Turn::Returned { call_id, text } => {
                self.push("tool", Some(text));
                if let Some(message) = self.messages.last_mut() {
                    message.tool_call_id = Some(call_id);
                }
            }
        }
    }

    fn push(&mut self, role: &str, content: Option<String>) {
        self.messages.push(ChatMessage {
            role: role.to_owned(),
            content,
            ..ChatMessage::default()
        });
    }

    /// True if there is one system message and nothing else.
    fn is_beginning(&self) -> bool {
        matches!(&self.messages[..], [only] if only.role == "system")
    }

    /// Assistant message that this turn continues, or a new one.
    fn assistant(&mut self) -> &mut ChatMessage {
        let is_said = |last: &ChatMessage| last.content.is_some() && last.tool_calls.is_empty();
        if self.messages.last().is_some_and(is_said) {
            self.push("assistant", None);
        }
        self.caller()
    }

    /// Last message if it is the assistant's, or a new one.
    fn caller(&mut self) -> &mut ChatMessage {
        let is_assistant = |last: &ChatMessage| last.role == "assistant";
        if !self.messages.last().is_some_and(is_assistant) {
            self.push("assistant", None);
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    /// Messages. An assistant message without text and calls gets an empty text, because templates require one.
    fn finish(mut self) -> Vec<ChatMessage> {
        for message in &mut self.messages {
            if message.tool_calls.is_empty() {
                message.content.get_or_insert_default();
            }
        }
        self.messages
    }
}

#[cfg(test)]
mod tests;
