//! Reading of conversations, valid and invalid.

use super::*;
use crate::mistakes::LISTED;
use serde_json::{Value, json};

const NAMES: Names = &[&["messages"]];

fn read(messages: &Value, max_chars: usize) -> Result<Vec<ChatMessage>, Mistakes> {
    let body = json!({"messages": messages}).to_string();
    let mut fields = Fields::parse(&body, NAMES).unwrap();
    let history = read_messages(&mut fields, max_chars, &ChatTerms::UNKNOWN);
    fields.finish().map(|()| history.unwrap().messages)
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
            {"role": "assistant", "content": "d", "refusal": null, "parsed": {"d": [1]}},
            {"role": "user", "content": "", "name": "Ann"},
        ]),
        10,
    )
    .unwrap();
    let told: Vec<_> = messages
        .iter()
        .map(|it| (it.role.as_str(), it.content.as_deref(), it.name.as_deref()))
        .collect();
    assert_eq!(
        told,
        [
            ("system", Some("a"), None),
            ("user", Some("bc"), None),
            ("assistant", Some("d"), None),
            ("user", Some(""), Some("Ann"))
        ]
    );
}

#[test]
fn what_is_empty_says_nothing_and_what_is_not_is_named() {
    for name in EMPTY {
        for empty in [json!(null), json!(""), json!([]), json!({})] {
            let message = json!([{"role": "assistant", "content": "a", *name: empty}]);
            assert_eq!(
                read(&message, 9).unwrap()[0].content.as_deref(),
                Some("a"),
                "{name}"
            );
        }
        let message = json!([{"role": "assistant", "content": "a", *name: [1]}]);
        assert_eq!(wrong(&message), [format!("messages[0].{name}")]);
    }
    let silent = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
    assert_eq!(read(&silent, 9).unwrap()[0].content.as_deref(), Some(""));
    let unnamed = json!([{"role": "user", "content": "a", "name": ""}]);
    assert_eq!(read(&unnamed, 9).unwrap()[0].name, None);
}

#[test]
fn what_other_servers_and_clients_add_to_a_history_changes_nothing() {
    let plain = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let mut with_more = plain.clone();
    for message in with_more.as_array_mut().unwrap() {
        for name in PASSED_OVER {
            message[*name] = json!({"a": [1]});
        }
        for (name, value) in [("x", json!(null)), ("y", json!([])), ("z", json!({}))] {
            message[name] = value;
        }
        for name in ["name", "reasoning", "reasoning_content", "tool_call_id"] {
            message[name] = json!([]);
        }
        let mark = json!({"type": "ephemeral"});
        let part =
            json!({"type": "text", "text": message["content"], "cache_control": mark, "x": []});
        message["content"] = json!([part]);
    }
    assert_eq!(read(&with_more, 9).unwrap(), read(&plain, 9).unwrap());
    for value in [
        json!(0),
        json!(""),
        json!(false),
        json!([1]),
        json!({"a": 1}),
    ] {
        let message = json!([{"role": "user", "content": "a", "x": value}]);
        assert_eq!(wrong(&message), ["messages[0].x"]);
    }
}

#[test]
fn thoughts_have_two_names() {
    let thought = |more: Value| {
        let mut message = json!({"role": "assistant", "content": "a"});
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!([message])
    };
    for same in [
        json!({"reasoning": "Hm"}),
        json!({"reasoning": "Hm", "reasoning_content": "Hm"}),
        json!({"reasoning": "", "reasoning_content": "Hm"}),
    ] {
        let messages = read(&thought(same), 9).unwrap();
        assert_eq!(messages[0].reasoning.as_deref(), Some("Hm"));
    }
    let other = json!({"reasoning": "Oh", "reasoning_content": "Hm"});
    assert_eq!(wrong(&thought(other)), ["messages[0].reasoning"]);
    let user = json!([{"role": "user", "content": "a", "reasoning": "Hm"}]);
    assert_eq!(wrong(&user), ["messages[0].reasoning"]);
}

#[test]
fn only_the_last_message_is_the_beginning_of_an_answer() {
    let user = json!({"role": "user", "content": "a"});
    let begun = json!({"role": "assistant", "content": "b", "prefix": true});
    let body = json!({"messages": [user, begun]}).to_string();
    let mut fields = Fields::parse(&body, NAMES).unwrap();
    let history = read_messages(&mut fields, 9, &ChatTerms::UNKNOWN).unwrap();
    assert!(history.is_prefix);
    assert_eq!(wrong(&json!([begun, user])), ["messages[0].prefix"]);
    let of_user = json!([{"role": "user", "content": "a", "prefix": true}]);
    assert_eq!(wrong(&of_user), ["messages[0].prefix"]);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let named = wrong(&json!([
        3,
        {"role": "function", "content": "a"},
        {"role": "user"},
        {"role": "user", "content": null},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, 1]},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache": {"a": 1}}]},
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
            "messages[5].content[0].cache",
            "messages[6].name",
            "messages[6].nam",
            "messages[7].role",
            "messages",
        ]
    );
}

#[test]
fn calls_results_and_thoughts_are_kept() {
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{ }"}});
    let messages = read(
        &json!([
            {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "Hm"},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ]),
        99,
    )
    .unwrap();
    assert_eq!(messages[0].tool_calls[0].arguments, "{}");
    assert_eq!(messages[0].content, None);
    let unsaid = read(&json!([{"role": "assistant", "tool_calls": [call]}]), 99);
    assert_eq!(unsaid.unwrap()[0].content, None);
    assert_eq!(messages[0].reasoning.as_deref(), Some("Hm"));
    assert_eq!(messages[1].role, "tool");
    assert_eq!(messages[1].tool_call_id.as_deref(), Some("c"));
    let named = wrong(&json!([
        {"role": "user", "content": "5", "tool_call_id": "c"},
        {"role": "user", "content": "5", "tool_calls": [call]},
        {"role": "user", "content": "5", "reasoning_content": "Hm"},
        {"role": "assistant", "tool_calls": []},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "1"}}]},
    ]));
    assert_eq!(
        named,
        [
            "messages[0].tool_call_id",
            "messages[1].tool_calls",
            "messages[2].reasoning_content",
            "messages[3].content",
            "messages[4].tool_calls[0].function.arguments",
        ]
    );
    let of_ollama = json!([
        {"role": "assistant", "content": "", "thinking": "Hm", "images": []},
        {"role": "tool", "tool_name": "f", "content": "5"},
    ]);
    let messages = read(&of_ollama, 99).unwrap();
    assert_eq!(messages[0].reasoning.as_deref(), Some("Hm"));
    assert_eq!(messages[1].name.as_deref(), Some("f"));
    let long = json!({"role": "assistant", "content": "", "reasoning_content": "0123456789"});
    assert_eq!(wrong(&json!([long])), ["messages"]);
}

#[test]
fn a_key_that_comes_twice_in_a_message_is_named() {
    let body = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"content\": \"b\"}]}";
    let mut fields = Fields::parse(body, NAMES).unwrap();
    read_messages(&mut fields, 9, &ChatTerms::UNKNOWN);
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
        read_messages(&mut fields, 9, &ChatTerms::UNKNOWN);
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
