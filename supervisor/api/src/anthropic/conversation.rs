//! Fields `system` and `messages`, converted to the messages of a chat template.
//!
//! | client | template |
//! |---|---|
//! | `system`, a message of role `system` | a message of role `system`, where it was |
//! | text of a user, a `tool_result` | a message each, of role `user` and `tool`, in their order |
//! | an assistant's blocks | one message: text, `reasoning_content` and `tool_calls` |

use super::content::{self, Block, Role};
use crate::fields::{Fields, Names, each, element};
use crate::json::Json;
use crate::messages::{MAX_MESSAGES, NO_MESSAGE, check_length, length};
use crate::mistakes::Mistakes;
use crate::schema::{self, Shape};
use worker_orcd_text::ChatMessage;
use worker_orcd_text::tools::ChatTerms;

/// Prefix of a billing line that Claude Code puts before the system prompt. The line differs in every request, so it
/// would prevent reuse of cached prompts, and this worker does not use it. vLLM drops it as well.
const FOR_BOOKS: &str = "x-anthropic-billing-header:";

pub(super) const FIELDS: &[&str] = &["system", "messages"];
const MESSAGE: Names = &[&["role", "content"]];

const ROLES: &[(&str, Role)] = &[
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("system", Role::System),
];

/// Reads the conversation. Mistakes are recorded in `fields`. `max_chars` bounds all texts together. `None` without
/// messages.
pub(super) fn read(
    fields: &mut Fields<'_>,
    max_chars: usize,
    terms: &ChatTerms,
) -> Option<Vec<ChatMessage>> {
    let system = fields.given("system", || content::shape(Role::System, terms));
    let system = system.map(|system| content::read(fields, "system", system, Role::System, terms));
    let mut messages = messages_of(Role::System, system.unwrap_or_default());
    // Absent and empty system prompts are equal: the template's default applies.
    messages.retain(|message| message.content.as_deref() != Some(""));
    let list = fields.must("messages", |it, name| it.given(name, || shape(terms)))?;
    let count = each(
        fields.mistakes(),
        "messages",
        list,
        |index, item, outside| {
            let more = read_message(item, terms, outside)?;
            messages.extend(more.into_iter().filter(|_| index < MAX_MESSAGES));
            Ok(())
        },
    );
    let chars = messages.iter().map(length).sum();
    check_length(fields, count, chars, max_chars).map(|()| messages)
}

fn shape(terms: &ChatTerms) -> Shape {
    let message = |(name, role): &(&'static str, Role)| {
        let fields = [
            ("role", schema::values([*name])),
            ("content", content::shape(*role, terms)),
        ];
        schema::closed_object(fields, &["role", "content"])
    };
    let message = schema::any_of(ROLES.iter().map(message));
    schema::list(message, &(1..=MAX_MESSAGES))
}

/// Reads one message. Paths of mistakes are relative to the message: `.content[0].text`.
fn read_message(
    item: Json<'_>,
    terms: &ChatTerms,
    outside: &Mistakes,
) -> Result<Vec<ChatMessage>, Mistakes> {
    let object = Fields::of(item, MESSAGE, outside);
    element(object, outside, NO_MESSAGE, |mut fields| {
        let role = fields.must("role", |it, name| it.word(name, ROLES));
        let given = fields.must("content", Fields::take);
        let messages = role.zip(given).map(|(role, given)| {
            let blocks = content::read(&mut fields, "content", given, role, terms);
            messages_of(role, blocks)
        });
        fields.finish().map(|()| messages.unwrap_or_default())
    })
}

fn messages_of(role: Role, blocks: Vec<Block>) -> Vec<ChatMessage> {
    match role {
        Role::System => {
            let is_for_books =
                |block: &Block| matches!(block, Block::Text(text) if text.starts_with(FOR_BOOKS));
            let blocks: Vec<Block> = blocks.into_iter().filter(|it| !is_for_books(it)).collect();
            vec![message("system", content::join(&blocks))]
        }
        Role::User => of_user(blocks),
        Role::Assistant => vec![of_assistant(blocks)],
    }
}

/// Messages of a user. Text between tool results is a message of its own. Without blocks, the message has an empty
/// text.
fn of_user(blocks: Vec<Block>) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = Vec::new();
    for block in blocks {
        match (block, messages.last_mut()) {
            (Block::Result { id, text }, _) => messages.push(ChatMessage {
                tool_call_id: Some(id),
                ..message("tool", text)
            }),
            (Block::Text(text), Some(last)) if last.role == "user" => {
                last.content.get_or_insert_default().push_str(&text);
            }
            (Block::Text(text), _) => messages.push(message("user", text)),
            // Blocks of an assistant only.
            (Block::Thought(_) | Block::Hidden | Block::Call(_), _) => {}
        }
    }
    if messages.is_empty() {
        messages.push(message("user", String::new()));
    }
    messages
}

/// Message of an assistant. It has no content if it holds only calls. Without calls, an absent text is an empty
/// content.
fn of_assistant(blocks: Vec<Block>) -> ChatMessage {
    let text = content::join(&blocks);
    let (mut reasoning, mut tool_calls) = (String::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Thought(thought) => reasoning.push_str(&thought),
            Block::Call(call) => tool_calls.push(call),
            Block::Text(_) | Block::Hidden | Block::Result { .. } => {}
        }
    }
    let is_silent = text.is_empty() && !tool_calls.is_empty();
    ChatMessage {
        role: "assistant".to_owned(),
        content: (!is_silent).then_some(text),
        reasoning: (!reasoning.is_empty()).then_some(reasoning),
        tool_calls,
        ..ChatMessage::default()
    }
}

fn message(role: &str, text: String) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: Some(text),
        ..ChatMessage::default()
    }
}

#[cfg(test)]
mod tests;
