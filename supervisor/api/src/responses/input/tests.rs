//! Items of clients, and the messages that they become.

use super::*;
use serde_json::{Value, json};
use worker_orcd_text::ToolCall;

fn read_body(body: &Value, terms: &ChatTerms) -> Result<Vec<ChatMessage>, Vec<String>> {
    let body = body.to_string();
    let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
    let messages = read(&mut fields, 200, terms);
    let listed = |mistakes: crate::mistakes::Mistakes| {
        let listed = mistakes.listed().iter();
        listed.map(|error| error.field.clone()).collect()
    };
    fields.finish().map(|()| messages.unwrap()).map_err(listed)
}

fn read_items(items: &Value) -> Result<Vec<ChatMessage>, Vec<String>> {
    read_body(&json!({"input": items}), &ChatTerms::UNKNOWN)
}

fn message(role: &str, content: Option<&str>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: content.map(str::to_owned),
        ..ChatMessage::default()
    }
}

#[test]
fn a_text_is_a_user_s_and_instructions_are_the_system_s() {
    let body = json!({"instructions": "Be brief.", "input": "Hi"});
    let expected = [
        message("system", Some("Be brief.")),
        message("user", Some("Hi")),
    ];
    assert_eq!(read_body(&body, &ChatTerms::UNKNOWN).unwrap(), expected);
}

#[test]
fn system_messages_at_the_beginning_are_one_and_others_stay_where_they_are() {
    let items = json!([
        {"role": "developer", "content": "b"}, {"type": "message", "role": "system", "content": "c"},
        {"role": "user", "content": "d"}, {"role": "developer", "content": "e"},
    ]);
    let body = json!({"instructions": "a", "input": items});
    let expected = [
        message("system", Some("a\n\nb\n\nc")),
        message("user", Some("d")),
        message("system", Some("e")),
    ];
    assert_eq!(read_body(&body, &ChatTerms::UNKNOWN).unwrap(), expected);
}

#[test]
fn what_an_assistant_thought_said_and_called_in_a_row_is_one_message() {
    let text = |text: &str| json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
    let messages = read_items(&json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Q"}, {"type": "input_text", "text": "?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "not this"}],
         "content": [{"type": "reasoning_text", "text": "Hm"}], "encrypted_content": null},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": text("I look."), "status": "completed"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "a", "arguments": "{ \"x\": 1 }",
         "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "b", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "So"}]},
        {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"},
    ]));
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: Some(id.to_owned()),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    };
    let result = |id: &str, text| ChatMessage {
        tool_call_id: Some(id.to_owned()),
        ..message("tool", Some(text))
    };
    let thought = |text: &str, said| ChatMessage {
        reasoning: Some(text.to_owned()),
        ..message("assistant", Some(said))
    };
    let expected = [
        message("user", Some("Q?")),
        ChatMessage {
            tool_calls: vec![call("c1", "a", "{\"x\":1}"), call("c2", "b", "{}")],
            ..thought("Hm", "I look.")
        },
        result("c1", "1"),
        result("c2", "2"),
        thought("So", "A"),
        message("assistant", Some("B")),
    ];
    assert_eq!(messages.unwrap(), expected);
}

#[test]
fn who_only_called_said_nothing_and_who_only_thought_an_empty_text() {
    let messages = read_items(&json!([
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"},
        {"role": "user", "content": ""},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}], "summary": []},
    ]));
    let contents: Vec<_> = messages.unwrap().into_iter().map(|it| it.content).collect();
    let empty = || Some(String::new());
    assert_eq!(contents, [None, empty(), empty()]);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let wrong = read_items(&json!([
        3, {"type": "item_reference", "id": "a"}, {"type": 3}, {"content": "a"}, {"role": "tool", "content": "a"},
        {"role": "user", "content": [{"type": "input_image", "image_url": "x"}, 3, {"type": "input_text"}]},
        {"role": "user", "content": 3, "name": "x"},
        {"type": "function_call", "call_id": "c", "name": "a", "arguments": "[]"},
        {"type": "function_call_output", "output": "a"},
        {"type": "reasoning", "content": [{"type": "text", "text": "a"}]},
    ]));
    assert_eq!(
        wrong.unwrap_err(),
        [
            "input[0]",
            "input[1].type",
            "input[2].type",
            "input[3].role",
            "input[4].role",
            "input[5].content[0].type",
            "input[5].content[1]",
            "input[5].content[2].text",
            "input[6].content",
            "input[6].name",
            "input[7].arguments",
            "input[8].call_id",
            "input[9].content[0].type",
        ]
    );
    for wrong in [json!([]), json!(3), json!(""), json!("x".repeat(201))] {
        assert_eq!(read_items(&wrong).unwrap_err(), ["input"], "{wrong}");
    }
    let long = json!([{"role": "user", "content": "x".repeat(201)}]);
    assert_eq!(read_items(&long).unwrap_err(), ["input"]);
    let nothing = read_body(&json!({}), &ChatTerms::UNKNOWN);
    assert_eq!(nothing.unwrap_err(), ["input"]);
    let terms = ChatTerms {
        shows_calls: false,
        ..ChatTerms::UNKNOWN
    };
    let call = json!([{"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}]);
    let wrong = read_body(&json!({"input": call}), &terms);
    assert_eq!(wrong.unwrap_err(), ["input[0]"]);
}
