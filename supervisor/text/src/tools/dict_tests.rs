//! Calls of Gemma 4. Texts in the format are those of its chat template's macro `format_argument`.

use crate::tools::json::MAX_DEPTH;
use crate::tools::message::{Call, Message};
use crate::tools::{Event, Parser, Parsing, ReasoningFormat, Syntax};

fn read(text: &str) -> Message {
    let parsing = Parsing {
        calls: Some(Syntax::Gemma4),
        thinking: Some(ReasoningFormat::Gemma4),
        ..Parsing::default()
    };
    let (mut parser, mut events) = (Parser::new(&parsing), Vec::new());
    parser.push(text, &mut events);
    parser.finish(false, &mut events);
    let mut message = Message::default();
    events.into_iter().for_each(|event| message.add(event));
    message
}

fn call(name: &str, arguments: &str) -> Call {
    Call {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        is_whole: true,
    }
}

/// Arguments of a call with this dictionary. `None`: it is no call.
fn arguments(dict: &str) -> Option<String> {
    let text = format!("<|tool_call>call:f{dict}<tool_call|>");
    let message = read(&text);
    match &message.calls[..] {
        [call] if call.is_whole && message.content.is_empty() => Some(call.arguments.clone()),
        _ => None,
    }
}

#[test]
fn dictionaries_become_json() {
    for (dict, json) in [
        ("{}", "{}"),
        ("{ }", "{}"),
        (
            "{city:<|\"|>Köln<|\"|>,days:2}",
            "{\"city\": \"Köln\", \"days\": 2}",
        ),
        (
            "{a:true,b:false,c:null,d:None}",
            "{\"a\": true, \"b\": false, \"c\": null, \"d\": null}",
        ),
        ("{x:-1.5e3 }", "{\"x\": -1.5e3}"),
        (
            "{l:[],m:[1,<|\"|>a<|\"|>,[{}]]}",
            "{\"l\": [], \"m\": [1, \"a\", [{}]]}",
        ),
        (
            "{at:{lat:48.9,lon:2.4},n:1}",
            "{\"at\": {\"lat\": 48.9, \"lon\": 2.4}, \"n\": 1}",
        ),
        (
            "{<|\"|>a \"b\"<|\"|>:1, c : 2}",
            "{\"a \\\"b\\\"\": 1, \"c\": 2}",
        ),
        (
            "{s:<|\"|>\"quoted\"\n\\{,}]:<|\"|>}",
            "{\"s\": \"\\\"quoted\\\"\\n\\\\{,}]:\"}",
        ),
        ("{s:<|\"|><|<|\"<<|\"|>}", "{\"s\": \"<|<|\\\"<\"}"),
        // A bare text that is no JSON.
        (
            "{s:New York,t:12 days}",
            "{\"s\": \"New York\", \"t\": \"12 days\"}",
        ),
    ] {
        assert_eq!(arguments(dict).unwrap_or_default(), json, "{dict}");
    }
}

#[test]
fn what_is_no_dictionary_is_content() {
    for dict in [
        "",
        "(",
        "[1]",
        "{a}",
        "{:1}",
        "{a:}",
        "{a:1,}",
        "{a:1]",
        "{a:[1}",
        "{\"a\":1}",
        "{a:\"b\"}",
        "{<b>:1}",
    ] {
        assert_eq!(arguments(dict), None, "{dict}");
    }
    // The client has the beginning of the call: the rest is content.
    for (dict, json, rest) in [
        ("{s:Paris, France}", "{\"s\": \"Paris\", ", "France}"),
        ("{a:<|x}", "{\"a\": ", "<|x}"),
        ("{a:1]", "{\"a\": 1", "]"),
    ] {
        let message = read(&format!("<|tool_call>call:f{dict}"));
        let [call] = &message.calls[..] else {
            panic!("{dict}: {message:?}");
        };
        assert_eq!(
            (call.arguments.as_str(), call.is_whole),
            (json, false),
            "{dict}"
        );
        assert_eq!(message.content, rest, "{dict}");
    }
    assert_eq!(
        read("<|tool_call>call:f{a:12").calls[0].arguments,
        "{\"a\": 12"
    );
    for text in [
        "<|tool_call>call:{a:1}<tool_call|>",
        "<|tool_call>call:f g{a:1}<tool_call|>",
        "<|tool_call>f{a:1}<tool_call|>",
        "call:f{a:1}",
    ] {
        assert_eq!(read(text).content, text);
    }
    let nested = |depth: usize| format!("{{a:{}1{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(arguments(&nested(MAX_DEPTH - 1)).is_some());
    assert_eq!(arguments(&nested(MAX_DEPTH)), None);
}

#[test]
fn calls_follow_text_and_each_other() {
    let text = "I look.\n<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>";
    let message = read(text);
    assert_eq!(message.content, "I look.");
    assert_eq!(message.calls, [call("f", "{\"a\": 1}"), call("g", "{}")]);
    // The client has the beginning of a call that is cut off.
    let message = read("<|tool_call>call:f{a:<|\"|>x");
    assert_eq!((message.calls.len(), message.calls[0].is_whole), (1, false));
    assert_eq!(message.calls[0].arguments, "{\"a\": \"x");
}

#[test]
fn reasoning_is_a_channel_anywhere() {
    let parts = |text: &str| {
        let message = read(text);
        (message.reasoning, message.content, message.calls.len())
    };
    let of =
        |reasoning: &str, content: &str, calls| (reasoning.to_owned(), content.to_owned(), calls);
    for (text, expected) in [
        (
            "<|channel>thought\nHm.\n<channel|>Yes.",
            of("Hm.", "Yes.", 0),
        ),
        ("<|channel>thought\n<channel|>Yes.", of("", "Yes.", 0)),
        ("Yes.<|channel>thought\n<channel|>", of("", "Yes.", 0)),
        ("Yes.<channel|>", of("", "Yes.", 0)),
        (
            "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d",
            of("ac", "bd", 0),
        ),
        (
            "<|channel>thought\nHm.<channel|><|tool_call>call:f{}<tool_call|>",
            of("Hm.", "", 1),
        ),
        (
            "One.\n\n<|channel>thought\nx<channel|>Two <channel|>three",
            of("x", "One.\n\nTwo three", 0),
        ),
        ("<|channel>thought\ncall:f{}", of("call:f{}", "", 0)),
        ("<|channel>final", of("", "<|channel>final", 0)),
    ] {
        assert_eq!(parts(text), expected, "{text}");
    }
}

#[test]
fn a_string_may_quote_marks() {
    let text = "<|tool_call>call:f{a:<|\"|><|channel>thought b<channel|> c<|\"|>}<tool_call|>Done.";
    let message = read(text);
    let arguments = "{\"a\": \"<|channel>thought b<channel|> c\"}";
    assert_eq!(message.calls, [call("f", arguments)]);
    assert_eq!(
        (message.reasoning.as_str(), message.content.as_str()),
        ("", "Done.")
    );
}

/// A client of the Responses API sees the order of reasoning and text.
#[test]
fn parts_keep_their_order_within_a_piece() {
    let parsing = Parsing {
        thinking: Some(ReasoningFormat::Gemma4),
        ..Parsing::default()
    };
    let (mut parser, mut events) = (Parser::new(&parsing), Vec::new());
    parser.push("a<|channel>thought\nb<channel|>c", &mut events);
    let expected = [
        Event::Content("a".to_owned()),
        Event::Reasoning("b".to_owned()),
        Event::Content("c".to_owned()),
    ];
    assert_eq!(events, expected);
}
