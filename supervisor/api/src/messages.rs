//! `messages: [{role, content}, …]` of chat clients.
//!
//! Clients send back answers of other servers. Fields of other servers that cannot change an answer are ignored
//! ([`PASSED_OVER`]), and so are unknown fields without a value. Text parts are joined. The template formats tool
//! calls, reasoning and tool results. Ollama's spelling is read, too: `thinking`, `tool_name`, arguments as an object,
//! and a tool's result without the id of its call.

pub(crate) mod begun;
pub(crate) mod tool_calls;

use crate::fields::{Fields, Names, each, element, history_shape};
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, FieldError, Mistakes};
use crate::schema::{self, Shape};
use serde_json::json;
use tool_calls::NAME_CHARS;
use worker_orcd_text::tools::ChatTerms;
use worker_orcd_text::{ChatMessage, ToolCall};

/// Largest number of messages: more fit no model, and each needs memory beyond its text.
pub(super) const MAX_MESSAGES: usize = 16_384;

/// Largest length of a name, as in the OpenAI API.
const MAX_NAME_CHARS: usize = 64;

const ROLES: &[(&str, &str)] = &[
    ("system", "system"),
    // The OpenAI API's developer role is the system role of templates.
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "tool"),
];

/// Fields of messages that must be empty.
const EMPTY: &[&str] = &["audio", "function_call", "images", "refusal"];

/// Fields of messages, parts and calls that cannot change an answer: cache hints, data of other servers, and numbers.
/// Reasoning is read from `reasoning_content` or `reasoning`.
pub(super) const PASSED_OVER: &[&str] = &[
    "annotations",
    "cache_control",
    "id",
    "index",
    "provider_specific_fields",
    "reasoning_details",
    "thinking_blocks",
];

/// Fields of some roles.
const OF_ROLES: &[&str] = &["tool_calls", "tool_call_id", TOOL_NAME, begun::PREFIX];

/// The template's `name` of a tool's result, in Ollama's API.
const TOOL_NAME: &str = "tool_name";

/// Names of reasoning: llama-server's and DeepSeek's, vLLM's and OpenRouter's, and Ollama's.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Parsed text that OpenAI's client packages add to an answer, and send back.
const PARSED: &str = "parsed";

const MESSAGE: Names = &[
    &["role", "content", "name", PARSED],
    OF_ROLES,
    &REASONING,
    EMPTY,
    PASSED_OVER,
];
const PART: Names = &[&["type", "text"], PASSED_OVER];

/// Types of parts.
const TEXT_PARTS: &[&str] = &["text"];

/// Log probabilities of an answer, which clients of the Responses API send back with it.
pub(super) const LOGPROBS: &str = "logprobs";

/// Rule for an element of the messages.
pub(super) const NO_MESSAGE: &str = "must be an object with role and content";

/// Messages of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct History {
    pub messages: Vec<ChatMessage>,
    /// The last message is marked as the beginning of the answer.
    pub is_prefix: bool,
}

/// Message with its mark.
struct Marked {
    message: ChatMessage,
    is_prefix: bool,
}

/// Notes all mistakes in `fields`. `max_chars`: limit of all texts together.
pub(crate) fn read_messages(
    fields: &mut Fields,
    max_chars: usize,
    terms: &ChatTerms,
) -> Option<History> {
    let list = fields.given("messages", || {
        let message = history_shape(MESSAGE, |fields| read_message(fields, terms));
        schema::list(message, &(1..=MAX_MESSAGES))
    })?;
    let mut messages = Vec::new();
    let (mut chars, mut is_prefix) = (0, false);
    let count = each(
        fields.mistakes(),
        "messages",
        list,
        |index, item, mistakes| {
            if is_prefix {
                let place = format!("messages[{}].{}", index - 1, begun::PREFIX);
                mistakes.note(|| FieldError::new(place, Constraint::Conflict, begun::NOT_LAST));
            }
            is_prefix = false;
            let object = Fields::of_history(item, MESSAGE, mistakes);
            let read = element(object, mistakes, NO_MESSAGE, |it| read_message(it, terms))?;
            if let Some(Marked {
                message,
                is_prefix: it,
            }) = read
            {
                is_prefix = it;
                chars += length(&message);
                if messages.len() < MAX_MESSAGES {
                    messages.push(message);
                }
            }
            Ok(())
        },
    );
    check_length(fields, count, chars, max_chars)?;
    Some(History {
        messages,
        is_prefix,
    })
}

/// Notes a mistake for each limit of the messages that they exceed. `count`: their number, if they are a list. `None`
/// without messages.
pub(super) fn check_length(
    fields: &mut Fields<'_>,
    count: Option<usize>,
    chars: usize,
    max_chars: usize,
) -> Option<()> {
    let mut wrong = |constraint, message: String| fields.error("messages", constraint, message);
    let Some(count) = count.filter(|count| *count > 0) else {
        let rule = "must be a list of at least one message";
        wrong(Constraint::Type, rule.to_owned());
        return None;
    };
    if count > MAX_MESSAGES {
        let rule = format!("must be at most {MAX_MESSAGES}");
        wrong(Constraint::Length, rule);
    }
    if chars > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        wrong(Constraint::Length, rule);
    }
    Some(())
}

/// Characters of all texts of a message.
pub(super) fn length(message: &ChatMessage) -> usize {
    let texts = [
        &message.content,
        &message.name,
        &message.reasoning,
        &message.tool_call_id,
    ];
    let texts = texts.into_iter().flatten();
    let of_texts = texts.map(|text| text.chars().count());
    let calls = message.tool_calls.iter();
    let of_calls = calls.map(|call| call.name.chars().count() + call.arguments.chars().count());
    of_texts.sum::<usize>() + of_calls.sum::<usize>()
}

fn read_message(mut fields: Fields<'_>, terms: &ChatTerms) -> Result<Option<Marked>, Mistakes> {
    for name in ["name", "tool_call_id"].iter().chain(&REASONING) {
        fields.drop_hollow(name);
    }
    let role = fields.must("role", |it, name| it.word(name, ROLES));
    let is_assistant = role == Some("assistant");
    let tool_calls = read_tool_calls(&mut fields, is_assistant, terms);
    let content = read_content(&mut fields, is_assistant, tool_calls.is_some());
    let reasoning = read_thoughts(&mut fields, role);
    let is_prefix = fields.boolean(begun::PREFIX).unwrap_or(false);
    if is_prefix && !is_assistant {
        fields.error(begun::PREFIX, Constraint::Conflict, begun::NOT_LAST);
    }
    let tool_call_id = read_tool_call_id(&mut fields, role);
    fields.describe_rule(rule_of_roles);
    let names = ["name", TOOL_NAME].map(|name| fields.text(name, &(0..=MAX_NAME_CHARS)));
    let mut names = names.into_iter().flatten();
    let name = names.find(|name| !name.is_empty());
    for name in EMPTY {
        let rule = "is not supported, unless it is empty";
        fields.only(name, empty, Json::is_empty, rule);
    }
    for name in [PARSED].iter().chain(PASSED_OVER) {
        fields.pass_over(name);
    }
    fields.finish()?;
    let message = |(role, content): (&str, Option<String>)| ChatMessage {
        role: role.to_owned(),
        content,
        name,
        reasoning,
        tool_calls: tool_calls.unwrap_or_default(),
        tool_call_id,
    };
    let marked = |message| Marked { message, is_prefix };
    Ok(role.zip(content).map(message).map(marked))
}

/// Reads reasoning under either name. Both names are accepted if their texts are equal.
fn read_thoughts(fields: &mut Fields<'_>, role: Option<&str>) -> Option<String> {
    let mut reasoning: Option<String> = None;
    for name in REASONING {
        let text = fields.text(name, &(0..=usize::MAX));
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            continue;
        };
        if role.is_some_and(|role| role != "assistant") {
            fields.error(name, Constraint::Conflict, "is an assistant's");
        }
        if reasoning.get_or_insert_with(|| text.clone()) != &text {
            let rule = format!("says something else than {}", REASONING[0]);
            fields.error(name, Constraint::Conflict, rule);
        }
    }
    reasoning
}

/// `None` if absent. Invalid calls are omitted.
fn read_tool_calls(
    fields: &mut Fields<'_>,
    is_assistant: bool,
    terms: &ChatTerms,
) -> Option<Vec<ToolCall>> {
    let given = fields.given("tool_calls", || {
        let calls = terms.shows_calls.then(tool_calls::shape);
        schema::any_of(calls.into_iter().chain([empty()]))
    });
    let given = given.filter(|given| !given.is_empty())?;
    if !is_assistant {
        fields.error("tool_calls", Constraint::Conflict, "are an assistant's");
        return None;
    }
    if !terms.shows_calls {
        let rule = "cannot be shown: the model's chat template does not ask for them";
        fields.error("tool_calls", Constraint::Unsupported, rule);
        return None;
    }
    let mut wrong = fields.mistakes().inside();
    let calls = tool_calls::read(given, &mut wrong);
    fields.mistakes().extend(|| "tool_calls".to_owned(), wrong);
    Some(calls)
}

fn read_tool_call_id(fields: &mut Fields<'_>, role: Option<&str>) -> Option<String> {
    let id = fields.text("tool_call_id", &NAME_CHARS);
    match role {
        Some("tool") => id,
        Some(_) if id.is_some() => {
            fields.error("tool_call_id", Constraint::Conflict, "is for role tool");
            None
        }
        _ => id,
    }
}

/// Rule of required and allowed fields by role.
fn rule_of_roles() -> Shape {
    let role = |roles: &[&'static str]| ("role", schema::values(roles.iter().copied()));
    let no_id = (
        "tool_call_id",
        schema::values([json!([]), json!({}), json!(null)]),
    );
    let no_calls = ("tool_calls", schema::or_null(empty()));
    // For assistants alone.
    let not_prefix = (begun::PREFIX, schema::or_null(schema::values([false])));
    let no_thoughts = REASONING.map(|name| (name, schema::or_null(empty())));
    let others = [no_calls, not_prefix].into_iter().chain(no_thoughts);
    let of_assistant = schema::object_with([role(&["assistant"])], [no_id.clone()]);
    let of_tool = schema::object_with([role(&["tool"])], others.clone());
    let of_others = schema::object_with(
        [role(&["system", "developer", "user"])],
        others.chain([no_id]),
    );
    schema::any_of([of_assistant, of_tool, of_others])
}

/// Empty text, list or object.
fn empty() -> Shape {
    schema::values([json!(""), json!([]), json!({})])
}

/// Reads the content. The inner `None` is the `null` or absent content of an assistant with tool calls. Without tool
/// calls it is read as an empty text: some templates would print it as "None".
fn read_content(
    fields: &mut Fields<'_>,
    is_assistant: bool,
    has_calls: bool,
) -> Option<Option<String>> {
    fields.describe("content", || {
        schema::any_of([schema::text(), parts_shape(), schema::null()])
    });
    fields.describe_rule(|| {
        let assistant = ("role", schema::values(["assistant"]));
        let is_null = schema::object([assistant.clone(), ("content", schema::anything())]);
        let called = schema::list(schema::anything(), &(1..=usize::MAX));
        let called = schema::object([assistant, ("tool_calls", called)]);
        schema::any_of([is_null, called, schema::with("content", [])])
    });
    let may_be_absent = is_assistant && (fields.is_null("content") || has_calls);
    let Some(content) = fields.take("content") else {
        if may_be_absent {
            return Some((!has_calls).then(String::new));
        }
        fields.error("content", Constraint::Required, "is required");
        return None;
    };
    text_of(fields, content).map(Some)
}

/// Reads `content` that is a text or a list of text parts.
pub(super) fn read_text(fields: &mut Fields<'_>) -> Option<String> {
    let shape = || schema::any_of([schema::text(), parts_shape()]);
    let content = fields.given("content", shape)?;
    text_of(fields, content)
}

fn parts_shape() -> Shape {
    schema::list_of(history_shape(PART, |it| read_part(it, TEXT_PARTS)))
}

fn text_of(fields: &mut Fields<'_>, content: Json<'_>) -> Option<String> {
    match content.kind() {
        Kind::Text => fields.text_of("content", content, &(0..=usize::MAX)),
        Kind::List => Some(join_parts(content, fields.mistakes())),
        _ => {
            let rule = "must be a string or a list of text parts";
            fields.error("content", Constraint::Type, rule);
            None
        }
    }
}

fn join_parts(list: Json<'_>, mistakes: &mut Mistakes) -> String {
    let mut text = String::new();
    each(mistakes, "content", list, |_, part, outside| {
        let object = Fields::of_history(part, PART, outside);
        let read = |it: Fields<'_>| read_part(it, TEXT_PARTS);
        text += &element(object, outside, "must be a text part", read)?;
        Ok(())
    });
    text
}

/// Text of a part of one of these types.
pub(super) fn read_part(
    mut fields: Fields<'_>,
    kinds: &'static [&'static str],
) -> Result<String, Mistakes> {
    let kind = fields.given("type", || schema::values(kinds.iter().copied()));
    let is_known = |kind: Json<'_>| kind.text().is_some_and(|it| kinds.contains(&&*it));
    if kind.is_some_and(|kind| !is_known(kind)) {
        // Further fields of an unsupported part are not checked.
        let kinds = kinds.join(" or ");
        let rule = format!("must be {kinds}: other parts are not supported");
        let mistakes = fields.mistakes();
        return Err(mistakes.only("type", Constraint::Unsupported, rule));
    }
    fields.required("type", kind);
    let text = fields.must("text", |it, name| it.text(name, &(0..=usize::MAX)));
    if fields.knows(LOGPROBS) {
        fields.pass_over(LOGPROBS);
    }
    for name in PASSED_OVER {
        fields.pass_over(name);
    }
    fields.finish().map(|()| text.unwrap_or_default())
}

#[cfg(test)]
mod tests;
