//! Answers that a client has begun: the last message is an assistant's text, and the model goes on with it.
//!
//! Anthropic's API continues such a message by itself, and so does `/v1/messages`. The OpenAI API takes it for a turn that
//! has ended, and so do the other routes, unless the request says that it is a beginning: `continue_final_message: true` with
//! `add_generation_prompt: false` (vLLM), or `prefix: true` of the message (DeepSeek).

use super::fields::Fields;
use super::generation::Input;
use super::messages::History;
use super::mistakes::Constraint;
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::{ChatMessage, Conversation};

/// Fields of requests with messages.
pub const FIELDS: &[&str] = &[CONTINUE, PROMPT];

/// Field of a message.
pub(super) const PREFIX: &str = "prefix";

pub(super) const NOT_LAST: &str =
    "may be true only of the last message, an assistant's text, which is continued";

const CONTINUE: &str = "continue_final_message";
const PROMPT: &str = "add_generation_prompt";

/// Whether the last message is to be continued.
pub fn read(fields: &mut Fields<'_>) -> bool {
    let continues = fields.boolean(CONTINUE).unwrap_or(false);
    let opens = fields.boolean(PROMPT);
    // Which of them go together is not said: one rule more, and Schemathesis makes no case of a chat's body.
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

/// What is computed for a conversation. `continues`: as [`read`] has it.
pub fn input(
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
    let conversation = |messages| Conversation { messages, tools };
    if !continues && !is_prefix {
        return Input::Messages(conversation(messages), settings);
    }
    let Some(last) = messages.pop_if(|last| last.role == "assistant") else {
        let rule =
            "may be true only where the last message is an assistant's text, which is continued";
        fields.error(CONTINUE, Constraint::Conflict, rule);
        return Input::Messages(conversation(messages), settings);
    };
    let beginning = beginning(fields, last);
    Input::Begun(conversation(with_one(messages)), settings, beginning)
}

/// The text of an answer that the client has begun.
pub fn beginning(fields: &mut Fields<'_>, last: ChatMessage) -> String {
    if last.reasoning.is_some() || !last.tool_calls.is_empty() {
        let rule =
            "may end with an assistant's text, which is continued, and with nothing else of it";
        fields.error("messages", Constraint::Unsupported, rule);
    }
    last.content.unwrap_or_default()
}

/// Most templates look at the first message, whatever is in it.
pub fn with_one(mut messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    if messages.is_empty() {
        messages.push(ChatMessage {
            role: "user".to_owned(),
            content: Some(String::new()),
            ..ChatMessage::default()
        });
    }
    messages
}

/// Notes that what is begun is held to something.
pub fn refuse_held(fields: &mut Fields<'_>) {
    let rule = "may not end with an assistant's text, which is continued, where the answer is held";
    fields.error("messages", Constraint::Conflict, rule);
}
