//! Continuation of an answer: the last message is the assistant's, and the model continues it.
//!
//! Anthropic's API and Ollama's always continue such a message, and so do `/v1/messages` and `/api/chat`. The OpenAI API
//! and the other routes read it as a complete turn, unless the request has `continue_final_message: true` with `add_generation_prompt:
//! false` (vLLM), or `prefix: true` in the message (DeepSeek).

use crate::fields::Fields;
use crate::messages::History;
use crate::mistakes::Constraint;
use crate::request::{Chat, Input};
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::{ChatMessage, Conversation};

/// Fields of requests with messages.
pub(crate) const FIELDS: &[&str] = &[CONTINUE, PROMPT];

/// Field of a message.
pub(super) const PREFIX: &str = "prefix";

pub(super) const NOT_LAST: &str =
    "may be true only of the last message, an assistant's text, which is continued";

const CONTINUE: &str = "continue_final_message";
const PROMPT: &str = "add_generation_prompt";

/// Whether to continue the last message.
pub(crate) fn read(fields: &mut Fields<'_>) -> bool {
    let continues = fields.boolean(CONTINUE).unwrap_or(false);
    let opens = fields.boolean(PROMPT);
    // The schema omits the rule that couples both: with one more rule Schemathesis generates no body for chat.
    match (continues, opens) {
        (true, Some(true)) => {
            let rule = "cannot be true together with continue_final_message";
            fields.error(PROMPT, Constraint::Conflict, rule);
        }
        (false, Some(false)) => {
            let rule = "may be false only together with continue_final_message: true";
            fields.error(PROMPT, Constraint::Unsupported, rule);
        }
        _ => {}
    }
    continues
}

/// Input of a conversation. `continues`: result of [`read`].
pub(crate) fn input(
    fields: &mut Fields<'_>,
    history: History,
    tools: Option<String>,
    settings: Vec<(String, TemplateSetting)>,
    continues: bool,
) -> Input {
    let History {
        mut messages,
        is_prefix,
    } = history;
    if !continues && !is_prefix {
        return chat(messages, tools, settings, None);
    }
    let Some(last) = messages.pop_if(|last| last.role == "assistant") else {
        let rule =
            "may be true only where the last message is an assistant's text, which is continued";
        fields.error(CONTINUE, Constraint::Conflict, rule);
        return chat(messages, tools, settings, None);
    };
    let beginning = beginning(fields, last);
    chat(with_one(messages), tools, settings, Some(beginning))
}

fn chat(
    messages: Vec<ChatMessage>,
    tools: Option<String>,
    settings: Vec<(String, TemplateSetting)>,
    beginning: Option<String>,
) -> Input {
    Input::Chat(Chat {
        field: "messages",
        conversation: Conversation { messages, tools },
        settings,
        beginning,
    })
}

/// Input of a conversation whose last message is always continued if it is the assistant's. `is_held`: the answer has a
/// grammar.
pub(crate) fn always(
    fields: &mut Fields<'_>,
    mut messages: Vec<ChatMessage>,
    tools: Option<String>,
    settings: Vec<(String, TemplateSetting)>,
    is_held: bool,
) -> Input {
    let last = messages.pop_if(|last| last.role == "assistant");
    if last.is_some() && is_held {
        refuse_held(fields);
    }
    let beginning = last.map(|last| beginning(fields, last));
    chat(with_one(messages), tools, settings, beginning)
}

/// Text of the assistant's message that the model continues.
fn beginning(fields: &mut Fields<'_>, last: ChatMessage) -> String {
    if last.reasoning.is_some() || !last.tool_calls.is_empty() {
        let rule =
            "may end with an assistant's text, which is continued, and with nothing else of it";
        fields.error("messages", Constraint::Unsupported, rule);
    }
    last.content.unwrap_or_default()
}

/// A conversation with at least one message: most templates read the first message without a check.
fn with_one(mut messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    if messages.is_empty() {
        messages.push(ChatMessage {
            role: "user".to_owned(),
            content: Some(String::new()),
            ..ChatMessage::default()
        });
    }
    messages
}

/// Notes a mistake: a continued answer cannot have a grammar.
pub(crate) fn refuse_held(fields: &mut Fields<'_>) {
    let rule = "may not end with an assistant's text, which is continued, where the answer is held";
    fields.error("messages", Constraint::Conflict, rule);
}
