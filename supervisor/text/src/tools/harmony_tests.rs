//! Answers of gpt-oss, well-formed and malformed. Expected results of the first tests follow OpenAI's description of
//! the format, and llama.cpp's and vLLM's parsers.

use super::*;
use crate::tools::message::{Call, Message};
use crate::tools::{Parser, Parsing, ReasoningFormat, Syntax};
use proptest::prelude::*;

fn parsing(has_tools: bool) -> Parsing {
    Parsing {
        calls: has_tools.then_some(Syntax::Harmony),
        thinking: Some(ReasoningFormat::Channels),
        ..Parsing::default()
    }
}

fn fold<'a>(has_tools: bool, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut parser = Parser::new(&parsing(has_tools));
    let (mut message, mut events) = (Message::default(), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut events);
        events.drain(..).for_each(|event| message.add(event));
    }
    parser.finish(false, &mut events);
    events.into_iter().for_each(|event| message.add(event));
    message
}

fn message(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Message {
    let call = |&(name, arguments): &(&str, &str)| Call {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        is_whole: true,
    };
    Message {
        content: content.to_owned(),
        reasoning: reasoning.to_owned(),
        calls: calls.iter().map(call).collect(),
    }
}

#[test]
fn thoughts_and_the_answer_are_told_apart() {
    let text = "<|channel|>analysis<|message|>User asks: \"2 + 2?\" \n<|end|>\
                <|start|>assistant<|channel|>final<|message|> 2 + 2 = 4.\n<|return|>";
    let expected = message("User asks: \"2 + 2?\" \n", " 2 + 2 = 4.\n", &[]);
    for has_tools in [false, true] {
        assert_eq!(fold(has_tools, [text]), expected);
    }
    let without_end = text.strip_suffix(RETURN).unwrap();
    assert_eq!(fold(false, [without_end]), expected);
}

#[test]
fn the_recipient_is_in_the_role_or_in_the_channel() {
    let arguments = "{\"location\": \"Tōkyō <|end|> \\\"\"}";
    for header in [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        "<|channel|>commentary to=functions.get_weather<|constrain|>json",
        "<|channel|>commentary to=functions.get_weather <|constrain|> json",
        "<|channel|>commentary to=functions.get_weather json",
        "<|channel|>commentary to=functions.get_weather",
        "<|channel|>analysis to=functions.get_weather",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
        " to=functions.get_weather<|channel|>analysis",
        "to=functions.get_weather",
        "<|start|>assistant to=functions.get_weather<|channel|>commentary",
        "<|channel|>commentary to=assistant<|channel|>commentary to=functions.get_weather",
    ] {
        let text = format!("{header}<|message|>{arguments}<|call|>");
        let called = [("get_weather", arguments)];
        assert_eq!(fold(true, [&*text]), message("", "", &called), "{header}");
        // Without tools, nothing is parsed as a call.
        let told = fold(false, [&*text]);
        assert!(told.calls.is_empty(), "{header}");
    }
}

#[test]
fn thoughts_a_remark_and_a_call() {
    let text = "<|channel|>analysis<|message|>Look.<|end|>\
                <|start|>assistant<|channel|>analysis<|message|>Now.<|end|>\
                <|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>\
                <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|> {} \n<|call|>";
    let expected = message("Look.\nNow.", "I look it up.", &[("f", "{}")]);
    assert_eq!(fold(true, [text]), expected);
    // A call without arguments has an empty object.
    let empty = "<|channel|>commentary to=functions.now<|message|><|call|>";
    assert_eq!(fold(true, [empty]), message("", "", &[("now", "{}")]));
    let next = "<|start|>assistant<|channel|>final<|message|>Done.";
    let more = [text, next].concat();
    let expected = message("Look.\nNow.", "I look it up.\nDone.", &[("f", "{}")]);
    assert_eq!(fold(true, [&*more]), expected);
}

#[test]
fn messages_to_others_than_functions_are_what_their_channel_says() {
    let to = |channel: &str, recipient: &str| {
        let text = format!("<|channel|>{channel} to={recipient} code<|message|>1 + 1<|call|>");
        fold(true, [&*text])
    };
    assert_eq!(to("analysis", "python"), message("1 + 1", "", &[]));
    assert_eq!(
        to("commentary", "browser.search"),
        message("", "1 + 1", &[])
    );
    assert_eq!(to("commentary", "functions."), message("", "1 + 1", &[]));
}

#[test]
fn what_is_no_message_is_text() {
    for text in [
        "Hello, world.",
        " to be or not",
        "{\"a\": 1}",
        "to",
        "<",
        "<|channe",
        "<b>bold</b>",
        " \n",
        "<|channel|>rumour<|message|>Psst",
        "<|channel|>final a b c<|message|>d",
        "<|start|>user<|message|>And now?",
        "<|channel|>commentary to=functions.f<|message|>print(1)",
        "<|channel|>commentary to=functions.f<|message|>[1]",
    ] {
        assert_eq!(fold(true, [text]), message("", text, &[]), "{text}");
    }
    for (text, content) in [
        ("Hello.<|return|>", "Hello."),
        (
            "Hello<|start|>assistant<|channel|>final<|message|>Bye",
            "Hello\nBye",
        ),
        ("<|channel|>final<|message|>A<|end|> B", "A B"),
        (
            "<|channel|>final<|message|>A<|end|>\n<|start|>assistant<|channel|>final<|message|>B",
            "A\nB",
        ),
        (
            "<|channel|>final<|message|>A<|channel|>final<|message|>B",
            "A\nB",
        ),
        (
            "<|channel|>final<|message|>a <|message|> b <|constrain|>",
            "a <|message|> b <|constrain|>",
        ),
        (
            "A<|channel|>rumour<|message|>Psst",
            "A<|channel|>rumour<|message|>Psst",
        ),
        ("<|message|>Hi<|end|>", "Hi"),
        ("<|start|>assistant<|message|>Hi", "Hi"),
        ("<|channel|>final Hello<|return|>", "<|channel|>final Hello"),
        ("<|channel|>final<|return|>", ""),
        ("<|channel|>fin", ""),
        ("<|end|><|end|>\n", ""),
    ] {
        assert_eq!(fold(true, [text]), message("", content, &[]), "{text}");
    }
}

#[test]
fn a_call_that_breaks_stays_one_that_never_ends() {
    let text = "<|channel|>commentary to=functions.f<|message|>{\"a\": nope}<|call|>";
    let broken = fold(true, [text]);
    assert_eq!(broken.content, "ope}");
    assert_eq!(broken.calls[0].arguments, "{\"a\": n");
    assert!(!broken.calls[0].is_whole);
    for (cut, arguments) in [("", ""), ("{\"a\": [1", "{\"a\": [1")] {
        let text = format!("<|channel|>commentary to=functions.f<|message|>{cut}");
        let cut = fold(true, [&*text]);
        assert_eq!(cut.calls.len(), 1);
        assert_eq!(
            (&*cut.calls[0].arguments, cut.calls[0].is_whole),
            (arguments, false)
        );
    }
    let behind = "<|channel|>commentary to=functions.f<|message|>{} and more<|end|>";
    assert_eq!(
        fold(true, [behind]),
        message("", " and more", &[("f", "{}")])
    );
}

/// Reasoning, content and arguments become events as they arrive.
#[test]
fn nothing_is_held_that_is_certain() {
    let mut parser = Parser::new(&parsing(true));
    let mut events = Vec::new();
    let mut told = |text: &str| {
        parser.push(text, &mut events);
        std::mem::take(&mut events)
    };
    assert_eq!(
        told("<|channel|>analysis<|message|>Hm"),
        [Event::Reasoning("Hm".to_owned())]
    );
    assert_eq!(told(", so"), [Event::Reasoning(", so".to_owned())]);
    assert!(told("<|end|><|start|>assistant<|channel|>commentary to=functions.f").is_empty());
    assert!(told("<|message|>").is_empty());
    let begins = Event::CallBegins {
        name: "f".to_owned(),
    };
    let arguments = Event::CallArguments("{\"x\": \"lo".to_owned());
    assert_eq!(told("{\"x\": \"lo"), [begins, arguments]);
    assert_eq!(
        told("ng\"}"),
        [Event::CallArguments("ng\"}".to_owned()), Event::CallEnds]
    );
}

#[test]
fn a_prompt_that_ends_in_a_header_is_known() {
    assert!(ends_in_header("<|end|><|start|>assistant"));
    assert!(!ends_in_header(
        "<|start|>assistant<|channel|>final<|message|>"
    ));
    assert!(!ends_in_header("<|im_start|>assistant\n"));
}

/// Hundreds of thousands of characters, each of which could begin a mark.
#[test]
fn time_grows_with_the_length_of_the_text() {
    for unit in [
        " ",
        "<",
        "<|start|>",
        "<|start|>assistant",
        "<|channel|>",
        "<|channel|>final<|message|>",
        "<|end|>",
        "to=",
        "<|channel|>commentary to=functions.f<|message|>",
    ] {
        let text = unit.repeat(200_000 / unit.len());
        for prefix in [
            "",
            "<|channel|>final<|message|>",
            "<|channel|>commentary to=functions.f<|message|>",
        ] {
            let told = fold(true, [prefix, &text]);
            assert!(told.content.len() <= prefix.len() + text.len());
        }
    }
}

fn piece() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        START,
        CHANNEL,
        CONSTRAIN,
        MESSAGE,
        END,
        CALL,
        RETURN,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        " to=functions.g",
        " to=python",
        "assistant",
        "user",
        "analysis",
        "final",
        "json",
        "{\"é\": [1, \"}\"]}",
        "{}",
        "{\"a\": ",
        "\"",
        "}",
        "é",
        " ",
        "\n",
        "<",
        "<|",
        "text",
    ])
}

/// Letters that neither marks nor headers contain.
fn letters(text: &str) -> String {
    text.chars().filter(|c| *c == 'é').collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A stream's events add up to the whole answer for any pieces: single characters, random pieces, and token-like
    /// pieces.
    #[test]
    fn where_the_text_is_cut_changes_nothing(
        has_tools in any::<bool>(),
        pieces in proptest::collection::vec(piece(), 0..16),
        sizes in proptest::collection::vec(1_usize..9, 1..5),
    ) {
        let text = pieces.concat();
        let whole = fold(has_tools, [&*text]);
        prop_assert_eq!(&fold(has_tools, pieces.iter().copied()), &whole, "{}", text);
        let each = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        prop_assert_eq!(&fold(has_tools, each), &whole, "{}", text);
        let chars: Vec<char> = text.chars().collect();
        let (mut rest, mut cut) = (&chars[..], Vec::new());
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (head, tail) = rest.split_at((*size).min(rest.len()));
            cut.push(head.iter().collect::<String>());
            rest = tail;
        }
        prop_assert_eq!(&fold(has_tools, cut.iter().map(|it| &**it)), &whole, "{}", text);
    }

    /// No text is lost or repeated, even if messages are malformed. Only headers and marks are dropped.
    #[test]
    fn nothing_that_is_written_is_lost(
        has_tools in any::<bool>(),
        pieces in proptest::collection::vec(piece(), 0..16),
    ) {
        let text = pieces.concat();
        let told = fold(has_tools, [&*text]);
        let calls = told.calls.iter();
        let arguments: String = calls.map(|call| call.arguments.as_str()).collect();
        let all = [&*told.reasoning, &*told.content, &*arguments].concat();
        // A header without an end may contain some of the letters.
        let headers: String = text.split(MESSAGE).map(|part| {
            let begins = [CHANNEL, START, "to="].into_iter().filter_map(|it| part.find(it));
            begins.min().map_or("", |at| &part[at..])
        }).collect();
        prop_assert!(letters(&all).len() <= letters(&text).len(), "{}", text);
        prop_assert!(letters(&all).len() + letters(&headers).len() >= letters(&text).len(), "{}", text);
        for call in &told.calls {
            prop_assert!(!call.name.is_empty());
            let is_object = serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments).is_ok();
            prop_assert_eq!(call.is_whole, is_object, "{}", text);
        }
    }
}
