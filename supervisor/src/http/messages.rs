//! `messages: [{role, content}, …]`, as chat clients send them.
//!
//! Clients send back what servers once gave them, with fields that were empty then and say
//! nothing now; those are accepted while they are empty. Parts of a text are joined.

use super::fields::{Fields, Names, among};
use super::json::{Json, Kind};
use super::mistakes::{Constraint, FieldError, Mistakes};
use super::openapi::schema;
use crate::text::ChatMessage;
use serde_json::json;

/// A conversation of more turns fits no model, and each turn costs memory beyond its text.
const MAX_MESSAGES: usize = 16_384;

/// Length of a name, as the OpenAI API has it.
const MAX_NAME_CHARS: usize = 64;

const ROLES: &[(&str, &str)] = &[
    ("system", "system"),
    // What the OpenAI API calls developer is what templates call system.
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
];

/// Fields that assistants' messages come back with, and that must be empty.
const EMPTY: &[&str] = &[
    "annotations",
    "audio",
    "function_call",
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
];

const MESSAGE: Names = |name| among(name, &[&["role", "content", "name"], EMPTY]);
const PART: Names = |name| among(name, &[&["type", "text"]]);

/// All mistakes are noted in `fields`; `max_chars` bounds names and contents together.
pub fn read_messages(fields: &mut Fields, max_chars: usize) -> Option<Vec<ChatMessage>> {
    fields.says("messages", || {
        let read = |fields: Fields<'_>| drop(read_fields_of_message(fields));
        let message = Fields::described(MESSAGE, read).into_shape();
        schema::list(message, &(1..=MAX_MESSAGES))
    });
    let list = fields.take("messages")?;
    let mistakes = fields.mistakes();
    let mut messages = Vec::new();
    let (mut count, mut chars) = (0, 0);
    let is_list = list.each_element(|item| {
        if let Some(message) = read_message(item, count, mistakes) {
            chars += length(&message);
            if messages.len() < MAX_MESSAGES {
                messages.push(message);
            }
        }
        count += 1;
    });
    let mut wrong = |constraint, message: String| fields.error("messages", constraint, message);
    if !is_list || count == 0 {
        let rule = "must be a list of at least one message";
        wrong(Constraint::Type, rule.to_owned());
        return None;
    }
    if count > MAX_MESSAGES {
        let rule = format!("must be at most {MAX_MESSAGES}");
        wrong(Constraint::Length, rule);
    }
    if chars > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        wrong(Constraint::Length, rule);
    }
    Some(messages)
}

fn length(message: &ChatMessage) -> usize {
    let name = message.name.as_ref().map_or(0, |name| name.chars().count());
    message.content.chars().count() + name
}

fn read_message(item: Json<'_>, index: usize, mistakes: &mut Mistakes) -> Option<ChatMessage> {
    let Some(fields) = Fields::of(item, MESSAGE, mistakes) else {
        mistakes.note(|| {
            let rule = "must be an object with role and content";
            FieldError::new(format!("messages[{index}]"), Constraint::Type, rule)
        });
        return None;
    };
    match read_fields_of_message(fields) {
        Ok(message) => message,
        Err(wrong) => {
            mistakes.extend(|| format!("messages[{index}]."), wrong);
            None
        }
    }
}

fn read_fields_of_message(mut fields: Fields<'_>) -> Result<Option<ChatMessage>, Mistakes> {
    let role = fields.word("role", ROLES);
    let role = fields.required("role", role);
    let content = read_content(&mut fields, role == Some("assistant"));
    let name = fields.text("name", &(0..=MAX_NAME_CHARS));
    let name = name.filter(|name| !name.is_empty());
    for name in EMPTY {
        let empty = || schema::values([json!(""), json!([]), json!({})]);
        let rule = "is not supported, unless it is empty";
        fields.only(name, empty, Json::is_empty, rule);
    }
    fields.finish()?;
    let message = |(role, content): (&str, String)| ChatMessage {
        role: role.to_owned(),
        content,
        name,
    };
    Ok(role.zip(content).map(message))
}

/// An assistant that only called tools said `null`; without the calls that is no text.
fn read_content(fields: &mut Fields, may_be_null: bool) -> Option<String> {
    fields.says("content", || {
        let part = |fields: Fields<'_>| drop(read_fields_of_part(fields));
        let part = Fields::described(PART, part).into_shape();
        schema::any_of([schema::text(), schema::list_of(part), schema::null()])
    });
    fields.says_of_all(|| {
        let of_assistant = schema::object([("role", schema::values(["assistant"]))]);
        schema::any_of([of_assistant, schema::with("content", [])])
    });
    if may_be_null && fields.is_null("content") {
        return Some(String::new());
    }
    let Some(content) = fields.take("content") else {
        return fields.required("content", None);
    };
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
    let mut index = 0;
    list.each_element(|part| {
        match read_part(part, mistakes) {
            Ok(part) => text.push_str(&part),
            Err(wrong) => mistakes.extend(|| format!("content[{index}]"), wrong),
        }
        index += 1;
    });
    text
}

fn read_part(part: Json<'_>, outside: &Mistakes) -> Result<String, Mistakes> {
    match Fields::of(part, PART, outside) {
        Some(fields) => read_fields_of_part(fields),
        None => {
            let mut mistakes = outside.inside();
            let rule = "must be a text part";
            mistakes.note(|| FieldError::new("", Constraint::Type, rule));
            Err(mistakes)
        }
    }
}

fn read_fields_of_part(mut fields: Fields<'_>) -> Result<String, Mistakes> {
    let mut mistakes = fields.mistakes().inside();
    fields.says("type", || schema::values(["text"]));
    let kind = fields.take("type");
    if kind.is_some_and(|kind| kind.text().as_deref() != Some("text")) {
        // What else a part of another kind holds is not looked at.
        let rule = "must be text: other parts are not supported";
        mistakes.note(|| FieldError::new(".type", Constraint::Unsupported, rule));
        return Err(mistakes);
    }
    fields.required("type", kind);
    let text = fields.text("text", &(0..=usize::MAX));
    let text = fields.required("text", text);
    match fields.finish() {
        Ok(()) => Ok(text.unwrap_or_default()),
        Err(wrong) => {
            mistakes.extend(|| ".".to_owned(), wrong);
            Err(mistakes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::mistakes::LISTED;
    use serde_json::{Value, json};

    const NAMES: Names = |name| among(name, &[&["messages"]]);

    fn read(messages: &Value, max_chars: usize) -> Result<Vec<ChatMessage>, Mistakes> {
        let body = json!({"messages": messages}).to_string();
        let mut fields = Fields::parse(&body, NAMES).unwrap();
        let messages = read_messages(&mut fields, max_chars);
        fields.finish().map(|()| messages.unwrap())
    }

    fn wrong(messages: &Value) -> Vec<String> {
        let mistakes = read(messages, 9).unwrap_err();
        let names = mistakes.listed().iter().map(|error| error.field.clone());
        names.collect()
    }

    #[test]
    fn messages_may_be_text_or_text_parts() {
        let messages = read(
            &json!([
                {"role": "developer", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
                {"role": "assistant", "content": "d", "refusal": null},
                {"role": "user", "content": "", "name": "Ann"},
            ]),
            10,
        )
        .unwrap();
        let told: Vec<_> = messages
            .iter()
            .map(|it| (it.role.as_str(), it.content.as_str(), it.name.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("system", "a", None),
                ("user", "bc", None),
                ("assistant", "d", None),
                ("user", "", Some("Ann"))
            ]
        );
    }

    #[test]
    fn what_is_empty_says_nothing_and_what_is_not_is_named() {
        for name in EMPTY {
            for empty in [json!(null), json!(""), json!([]), json!({})] {
                let message = json!([{"role": "assistant", "content": "a", *name: empty}]);
                assert_eq!(read(&message, 9).unwrap()[0].content, "a", "{name}");
            }
            let message = json!([{"role": "assistant", "content": "a", *name: [1]}]);
            assert_eq!(wrong(&message), [format!("messages[0].{name}")]);
        }
        let silent = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
        assert_eq!(read(&silent, 9).unwrap()[0].content, "");
        let unnamed = json!([{"role": "user", "content": "a", "name": ""}]);
        assert_eq!(read(&unnamed, 9).unwrap()[0].name, None);
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        let named = wrong(&json!([
            3,
            {"role": "tool", "content": "a"},
            {"role": "user"},
            {"role": "user", "content": null},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, 1]},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},
            {"role": "user", "content": "a", "nam": "b", "name": "x".repeat(65)},
            {"content": "0123456789"},
            {"role": "user", "content": "0123456789"},
        ]));
        assert_eq!(
            named,
            [
                "messages[0]",
                "messages[1].role",
                "messages[2].content",
                "messages[3].content",
                "messages[4].content[1].type",
                "messages[4].content[2]",
                "messages[5].content[0].cache_control",
                "messages[6].name",
                "messages[6].nam",
                "messages[7].role",
                "messages",
            ]
        );
    }

    #[test]
    fn a_key_that_comes_twice_in_a_message_is_named() {
        let body = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"content\": \"b\"}]}";
        let mut fields = Fields::parse(body, NAMES).unwrap();
        read_messages(&mut fields, 9);
        let mistakes = fields.finish().unwrap_err();
        assert_eq!(mistakes.listed()[0].field, "messages[0].content");
        assert_eq!(mistakes.listed()[0].constraint, Constraint::Duplicate);
    }

    #[test]
    fn a_million_wrong_messages_are_counted() {
        for wrong in ["0", "{}", "[]", "{\"role\":\"user\",\"content\":[0]}"] {
            let body = format!(
                "{{\"messages\":[{}0]}}",
                format!("{wrong},").repeat(100_000)
            );
            let mut fields = Fields::parse(&body, NAMES).unwrap();
            read_messages(&mut fields, 9);
            let mistakes = fields.finish().unwrap_err();
            assert_eq!(mistakes.listed().len(), LISTED);
            assert!(mistakes.more() > 99_000, "{wrong}: {}", mistakes.more());
        }
    }

    #[test]
    fn more_messages_than_a_conversation_has_are_refused() {
        let one = json!({"role": "user", "content": ""});
        let fits = Value::Array(vec![one.clone(); MAX_MESSAGES]);
        assert_eq!(read(&fits, 9).unwrap().len(), MAX_MESSAGES);
        let more = Value::Array(vec![one; MAX_MESSAGES + 1]);
        assert_eq!(wrong(&more), ["messages"]);
    }
}
