//! Calls of Qwen3-Coder and its successors.

use crate::tools::json::MAX_DEPTH;
use crate::tools::message::{Call, Message};
use crate::tools::{Event, Parameters, Parser, Parsing, Syntax};
use serde_json::{Value, json};

const TOOLS: &str = r##"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "b": {"type": "boolean"},
    "l": {"type": "array"}, "o": {"$ref": "#/$defs/o"}, "none": {"type": "null"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "count": {"type": ["string", "integer"]},
    "list": {"type": ["string", "array"]}, "any": {}}, "$defs": {"o": {"type": "object"}}}}},
    {"type": "function", "function": {"name": "now"}}]"##;

fn parsing() -> Parsing {
    Parsing {
        calls: Some(Syntax::Qwen3Coder),
        thinking: None,
        parameters: Parameters::of_tools(TOOLS),
    }
}

fn read_cut(text: &str, is_cut: bool) -> Message {
    let (mut parser, mut events) = (Parser::new(&parsing()), Vec::new());
    parser.push(text, &mut events);
    parser.finish(is_cut, &mut events);
    let mut message = Message::default();
    events.into_iter().for_each(|event| message.add(event));
    message
}

fn read(text: &str) -> Message {
    read_cut(text, false)
}

fn call(name: &str, arguments: &str) -> Call {
    Call {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        is_whole: true,
    }
}

fn message(content: &str, calls: &[Call]) -> Message {
    Message {
        content: content.to_owned(),
        calls: calls.to_vec(),
        ..Message::default()
    }
}

/// A call of `f` with this text between the tags of one parameter.
fn with(parameter: &str, text: &str) -> String {
    format!(
        "<tool_call>\n<function=f>\n<parameter={parameter}>{text}</parameter>\n</function>\n</tool_call>"
    )
}

/// Value of the parameter of such a call.
fn value(parameter: &str, text: &str) -> Value {
    let message = read(&with(parameter, text));
    let [call] = &message.calls[..] else {
        panic!("{text:?}: {message:?}");
    };
    assert!(call.is_whole && message.content.is_empty(), "{message:?}");
    let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
    arguments[parameter].clone()
}

#[test]
fn calls_are_functions_between_tags_behind_any_text() {
    let text = "I look.\n\n<tool_call>\n<function=f>\n<parameter=s>\nKöln\n\"am Rhein\"\\\n</parameter>\n<parameter=l>\n\
                [1, {\"a\": null}]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n\
                </tool_call>\n";
    let arguments = "{\"s\": \"Köln\\n\\\"am Rhein\\\"\\\\\", \"l\": [1, {\"a\": null}]}";
    let expected = message("I look.", &[call("f", arguments), call("now", "{}")]);
    assert_eq!(read(text), expected);
    // On one line, as vLLM's description of the format.
    let short = "<tool_call><function=f><parameter=n>1</parameter><parameter=s>2</parameter></function></tool_call>";
    assert_eq!(
        read(short),
        message("", &[call("f", "{\"n\": 1, \"s\": \"2\"}")])
    );
    let behind = format!("{}\nDone.", with("n", "1"));
    assert_eq!(
        read(&behind),
        message("\nDone.", &[call("f", "{\"n\": 1}")])
    );
}

#[test]
fn types_come_from_the_schema() {
    for (parameter, text, expected) in [
        ("s", "\n12\n", json!("12")),
        ("s", "\nnull\n", json!("null")),
        ("s", "\n\n  a\n\n", json!("\n  a\n")),
        ("s", "\n\n", json!("")),
        ("s", "\n", json!("")),
        ("s", "", json!("")),
        ("s", "\n\u{1}\t\r\n", json!("\u{1}\t\r")),
        ("unknown", "\n12\n", json!("12")),
        ("n", "\n12\n", json!(12)),
        ("n", " -3 ", json!(-3)),
        ("n", "\n12 apples\n", json!("12 apples")),
        ("n", "\n\"12\"\n", json!("12")),
        ("n", "\nNone\n", json!(null)),
        ("n", "\n\n", json!("")),
        ("x", "\n1.5e3\n", json!(1500.0)),
        ("b", "\ntrue\n", json!(true)),
        ("b", "\nFalse\n", json!(false)),
        ("b", "\nFalsely\n", json!("Falsely")),
        ("b", "\nTrue enough\n", json!("True enough")),
        ("none", "\nnull\n", json!(null)),
        ("l", "\n[1,\n 2]\n", json!([1, 2])),
        ("l", "\n[1, 2\n", json!("[1, 2")),
        ("o", "\n{\"a\": \"b\\nc\"}\n", json!({"a": "b\nc"})),
        ("o", "\n{'a': 1}\n", json!("{'a': 1}")),
        ("maybe", "\nnull\n", json!(null)),
        ("maybe", "\nNone\n", json!(null)),
        ("maybe", "\nnullify\n", json!("nullify")),
        ("maybe", "\n5\n", json!("5")),
        ("maybe", "\n\"quoted\"\n", json!("\"quoted\"")),
        ("count", "\n5\n", json!(5)),
        ("count", "\n5.5\n", json!("5.5")),
        ("count", "\n5th\n", json!("5th")),
        ("list", "\n[\"a\"]\n", json!(["a"])),
        ("list", "\n[a]\n", json!("[a]")),
        ("any", "\n5\n", json!(5)),
        ("any", "\nfive\n", json!("five")),
        ("any", "\n\"5\"\n", json!("\"5\"")),
    ] {
        assert_eq!(value(parameter, text), expected, "{parameter}: {text:?}");
    }
}

#[test]
fn a_value_has_as_many_levels_as_the_arguments_of_a_message_may_have() {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let most = MAX_DEPTH - 1;
    assert!(value("l", &format!("\n{}\n", nested(most))).is_array());
    let deeper = nested(most + 1);
    assert_eq!(value("l", &format!("\n{deeper}\n")), json!(deeper));
}

#[test]
fn values_may_quote_tags() {
    for text in [
        "a </parameter> b",
        "</parameter></parameter>x",
        "<parameter=s>",
        "<function=f>\n</function> is a call",
        "</tool_call>",
        "</function></function>",
        "</parameter>\n</param",
        "<</parameter",
    ] {
        let written = format!("\n{text}\n");
        assert_eq!(value("s", &written), json!(text), "{text}");
        assert_eq!(value("any", &written), json!(text), "{text}");
    }
    // Within a JSON string nothing ends the value.
    let quoted = json!({"a": "</parameter></function></tool_call>"});
    assert_eq!(value("o", &format!("\n{quoted}\n")), quoted);
    // A model may omit a closing tag.
    let omitted = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</function>\n</tool_call>";
    assert_eq!(read(omitted), message("", &[call("f", "{\"n\": 1}")]));
    let omitted = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</tool_call>";
    assert_eq!(read(omitted), message("", &[call("f", "{\"n\": 1}")]));
}

#[test]
fn a_model_may_omit_the_last_tags_but_a_limit_may_not() {
    let whole = with("n", "\n1\n");
    let ends = [
        "</parameter>",
        "</parameter>\n",
        "</function>",
        "</function>\n",
    ];
    for end in ends {
        let text = &whole[..whole.find(end).unwrap() + end.len()];
        assert_eq!(
            read(text),
            message("", &[call("f", "{\"n\": 1}")]),
            "{text}"
        );
        let is_whole = end.starts_with("</f");
        let cut = read_cut(text, true);
        assert_eq!(
            (cut.content.as_str(), cut.calls[0].is_whole),
            ("", is_whole),
            "{text}"
        );
    }
    for end in ["1", "1\n", "</para", "</parameter>\n<param"] {
        let text = match whole.find(end) {
            Some(at) => whole[..at + end.len()].to_owned(),
            None => format!("{}<param", &whole[..whole.find("</function>").unwrap()]),
        };
        let read = read(&text);
        assert_eq!(
            (read.content.as_str(), read.calls[0].is_whole),
            ("", false),
            "{text}"
        );
    }
}

#[test]
fn a_function_of_the_request_needs_no_tag_before_it() {
    let bare = "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>";
    let one = call("f", "{\"n\": 1}");
    for text in [
        bare.to_owned(),
        format!("{bare}\n</tool_call>"),
        format!("<tool_call>\n{bare}"),
    ] {
        assert_eq!(
            read(&text),
            message("", std::slice::from_ref(&one)),
            "{text}"
        );
    }
    let two = format!("<tool_call>\n{bare}\n{bare}\n</tool_call>");
    assert_eq!(read(&two), message("", &[one.clone(), one]));
    // Nor tags of its own, between those of Hermes.
    let object = "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}}</tool_call>";
    assert_eq!(read(object), message("", &[call("f", "{\"n\": 1}")]));
    let other = bare.replace("=f>", "=g>");
    assert_eq!(read(&other), message(&other, &[]));
    let tagged = format!("<tool_call>{other}");
    assert_eq!(read(&tagged), message("", &[call("g", "{\"n\": \"1\"}")]));
}

#[test]
fn what_is_no_call_is_content_to_the_last_character() {
    let long = format!("<tool_call><function={}>", "f".repeat(300));
    for text in [
        "#include <functional>",
        "<tool_call>\n<function=f>\nn = 1\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f\n>",
        "<tool_call>\n<functions=f>",
        "<tool_call>\n<function=f>\n",
        "<function=f> </function",
        "<parameter=n>\n1\n</parameter>",
        &long,
    ] {
        assert_eq!(read(text), message(text, &[]), "{text}");
    }
}

/// The client already received the call's beginning, so the call cannot become content.
#[test]
fn a_name_without_an_end_ends_a_call_that_was_passed_on() {
    let text = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n<parameter=x\n>";
    let begun = Call {
        is_whole: false,
        ..call("f", "{\"n\": 1")
    };
    assert_eq!(read(text), message("\n>", &[begun]));
}

#[test]
fn strings_are_passed_on_while_they_grow() {
    let mut parser = Parser::new(&parsing());
    let mut pushed = |text: &str| {
        let mut events = Vec::new();
        parser.push(text, &mut events);
        events
    };
    let name = "f".to_owned();
    let arguments = |text: &str| Event::CallArguments(text.to_owned());
    assert_eq!(pushed("<tool_call>\n<function=f>\n"), []);
    let begins = Event::CallBegins { name };
    assert_eq!(
        pushed("<parameter=s>\nNew"),
        [begins, arguments("{\"s\": \"New")]
    );
    assert_eq!(pushed("\n"), []);
    assert_eq!(pushed("Yo\"rk</par"), [arguments("\\nYo\\\"rk")]);
    assert_eq!(
        pushed("ameter> <parameter=n>\n1"),
        [arguments("\", \"n\": ")]
    );
    assert_eq!(pushed("2 "), []);
    assert_eq!(pushed("km"), [arguments("\"12 km")]);
}
