use super::*;
use crate::mistakes::Constraint;
use serde_json::{Value, json};
use worker_orcd_text::ToolCall;
use worker_orcd_text::tools::{Choices, Parsing};

fn read_with(body: &Value, terms: &ChatTerms) -> Result<Vec<ChatMessage>, Vec<String>> {
    let body = body.to_string();
    let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
    let messages = read(&mut fields, 300, terms);
    fields.finish().map_err(|mistakes| {
        let listed = mistakes.listed().iter();
        listed
            .map(|error| format!("{} {}", error.field, error.message))
            .collect::<Vec<_>>()
    })?;
    Ok(messages.unwrap())
}

fn read_body(body: &Value) -> Result<Vec<ChatMessage>, Vec<String>> {
    read_with(body, &ChatTerms::UNKNOWN)
}

fn turn(role: &str, text: &str) -> ChatMessage {
    message(role, text.to_owned())
}

/// Paths of the mistakes in these messages.
fn wrong(messages: &Value) -> Vec<String> {
    let wrong = read_body(&json!({"messages": messages})).unwrap_err();
    let name = |it: &String| it.split(' ').next().unwrap_or_default().to_owned();
    wrong.iter().map(name).collect()
}

#[test]
fn a_conversation_of_blocks_is_what_templates_know() {
    let kept = json!({"type": "ephemeral"});
    let body = json!({
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
            {"type": "text", "text": "Be ", "cache_control": kept},
            {"type": "text", "text": "short."},
        ],
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I look.", "citations": null},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 1, "a": [1.0]},
                 "cache_control": kept, "caller": {"type": "direct"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": false, "content": [
                    {"type": "text", "text": "2"}, {"type": "text", "text": "."},
                ]},
                {"type": "text", "text": "So", "cache_control": kept},
                {"type": "text", "text": "?"},
            ]},
        ],
    });
    let call = ToolCall {
        id: Some("toolu_1".to_owned()),
        name: "add".to_owned(),
        arguments: "{\"b\":1,\"a\":[1.0]}".to_owned(),
    };
    let called = ChatMessage {
        reasoning: Some("Hm".to_owned()),
        tool_calls: vec![call],
        ..turn("assistant", "I look.")
    };
    let result = ChatMessage {
        tool_call_id: Some("toolu_1".to_owned()),
        ..turn("tool", "2.")
    };
    let expected = [
        turn("system", "Be short."),
        turn("user", "1+1?"),
        called,
        result,
        turn("user", "So?"),
    ];
    assert_eq!(read_body(&body).unwrap(), expected);
}

#[test]
fn who_says_nothing_says_an_empty_text_and_who_only_calls_says_none() {
    let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
    let body = json!({"system": "", "messages": [
        {"role": "user", "content": []},
        {"role": "assistant", "content": []},
        {"role": "system", "content": "Now."},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        {"role": "assistant", "content": [call]},
    ]});
    let messages = read_body(&body).unwrap();
    let contents = messages
        .iter()
        .map(|it| (it.role.as_str(), it.content.as_deref()));
    let expected = [
        ("user", Some("")),
        ("assistant", Some("")),
        ("system", Some("Now.")),
        ("tool", Some("")),
        ("assistant", None),
    ];
    assert_eq!(contents.collect::<Vec<_>>(), expected);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let assistant = |content: Value| json!({"role": "assistant", "content": content});
    let call = |input: Value| json!([{"type": "tool_use", "id": "a", "name": "f", "input": input}]);
    assert_eq!(
        wrong(&json!([
            3,
            {"role": "tool", "content": "a"},
            {"role": "user"},
            user(json!(3)),
            user(json!([{"type": "text"}, 3, {}])),
            user(json!([{"type": "image", "source": {}}])),
            user(call(json!({}))),
            user(json!([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}])),
            assistant(call(json!([]))),
            assistant(json!([{"type": "tool_result", "tool_use_id": "a"}])),
            assistant(json!([{"type": "text", "text": "a", "citations": [1], "more": 1}])),
            {"role": "user", "content": "a", "name": "b"},
        ])),
        [
            "messages[0]",
            "messages[1].role",
            "messages[2].content",
            "messages[3].content",
            "messages[4].content[0].text",
            "messages[4].content[1]",
            "messages[4].content[2].type",
            "messages[5].content[0].type",
            "messages[6].content[0].type",
            "messages[7].content[0].content[0].type",
            "messages[8].content[0].input",
            "messages[9].content[0].type",
            "messages[10].content[0].citations",
            "messages[10].content[0].more",
            "messages[11].name",
        ]
    );
    let told = read_body(&json!({"messages": [user(json!([{"type": "document"}]))]})).unwrap_err();
    let rule = "must be text, tool_result: no other is supported here";
    assert_eq!(told, [format!("messages[0].content[0].type {rule}")]);
    for nothing in [json!([]), json!("a")] {
        assert_eq!(wrong(&nothing), ["messages"]);
    }
    assert_eq!(wrong(&json!([user(json!("x".repeat(301)))])), ["messages"]);
    let system = json!({"system": [{"type": "image"}], "messages": [user(json!("a"))]});
    let told = read_body(&system).unwrap_err();
    assert!(told[0].starts_with("system[0].type "), "{told:?}");
}

#[test]
fn numbers_that_would_change_are_refused() {
    let body = "{\"messages\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", \
                \"name\": \"f\", \"input\": {\"a\": 1e999}}]}]}";
    let mut fields = Fields::parse(body, &[FIELDS]).unwrap();
    read(&mut fields, 300, &ChatTerms::UNKNOWN);
    let wrong = fields.finish().unwrap_err();
    assert_eq!(wrong.listed()[0].field, "messages[0].content[0].input");
    assert_eq!(wrong.listed()[0].constraint, Constraint::Range);
}

#[test]
fn calls_are_refused_where_the_template_cannot_show_them() {
    let call = json!({"type": "tool_use", "id": "a", "name": "f", "input": {}});
    let body = json!({"messages": [{"role": "assistant", "content": [call]}]});
    let terms = ChatTerms {
        parsing: Parsing::default(),
        ..Choices::default().resolve("{{ messages }}")
    };
    let wrong = read_with(&body, &terms).unwrap_err();
    assert!(wrong[0].contains("chat template does not ask"), "{wrong:?}");
}
