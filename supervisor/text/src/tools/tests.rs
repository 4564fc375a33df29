//! Answers of models, split at every position.

use super::message::{Call, Message};
use super::*;
use proptest::prelude::*;
use std::borrow::Borrow;

const THINKING: Option<ReasoningFormat> = Some(ReasoningFormat::Tagged);

fn parsing(calls: Syntax) -> Parsing {
    Parsing {
        calls: Some(calls),
        thinking: THINKING,
        ..Parsing::default()
    }
}

fn fold<'a>(parsing: impl Borrow<Parsing>, pieces: impl IntoIterator<Item = &'a str>) -> Message {
    let mut parser = Parser::new(parsing.borrow());
    let (mut message, mut events) = (Message::default(), Vec::new());
    for piece in pieces {
        parser.push(piece, &mut events);
        events.drain(..).for_each(|event| message.add(event));
    }
    parser.finish(false, &mut events);
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

fn message(content: &str, calls: &[Call]) -> Message {
    Message {
        content: content.to_owned(),
        reasoning: String::new(),
        calls: calls.to_vec(),
    }
}

#[test]
fn hermes_writes_an_object_between_tags() {
    let text = "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Köln\", \"n\": 1.0}}\n\
                </tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"now\"}\n</tool_call>\n";
    let weather = call("get_weather", "{\"city\": \"Köln\", \"n\": 1.0}");
    let expected = message("I look.", &[weather, call("now", "{}")]);
    assert_eq!(fold(parsing(Syntax::Hermes), [text]), expected);
    // A call without its closing tag is still a call.
    let open = "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\":[{}]}}";
    let expected = message("", &[call("now", "{\"a\":[{}]}")]);
    assert_eq!(fold(parsing(Syntax::Hermes), [open]), expected);
    let text_behind = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>\nDone.";
    let expected = message("\nDone.", &[call("now", "{}")]);
    assert_eq!(fold(parsing(Syntax::Hermes), [text_behind]), expected);
}

#[test]
fn llama_3_writes_an_object_and_perhaps_a_tag_before_it() {
    let now = call("now", "{\"zone\": \"CET\"}");
    let object = "{\"name\": \"now\", \"parameters\": {\"zone\": \"CET\"}}";
    for (text, calls) in [
        (object.to_owned(), 1),
        (format!("\n <|python_tag|>{object}"), 1),
        (format!("<|python_tag|>{object}; {object}"), 2),
        (format!("{{\"type\": \"function\", {}", &object[1..]), 1),
    ] {
        let expected = message("", &vec![now.clone(); calls]);
        assert_eq!(fold(parsing(Syntax::Llama3), [&*text]), expected, "{text}");
    }
    // An object after other text is content.
    let text = format!("Say {object}");
    assert_eq!(fold(parsing(Syntax::Llama3), [&*text]), message(&text, &[]));
    let said = "<|python_tag|>brave_search.call(query=\"x\")";
    assert_eq!(fold(parsing(Syntax::Llama3), [said]), message(said, &[]));
}

#[test]
fn mistral_writes_a_list_or_names_before_arguments() {
    let calls = [call("a", "{\"x\": 1}"), call("b-c", "{}")];
    for text in [
        "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"x\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"b-c\", \
         \"arguments\": {}}]",
        "[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": 1}},{\"name\": \"b-c\", \"arguments\": {}}]\n",
        "[TOOL_CALLS]a[ARGS]{\"x\": 1}[TOOL_CALLS]b-c[CALL_ID]123456789[ARGS]{}",
        "[TOOL_CALLS]a{\"x\": 1}[TOOL_CALLS]b-c{}",
    ] {
        assert_eq!(
            fold(parsing(Syntax::Mistral), [text]),
            message("", &calls),
            "{text}"
        );
    }
    for said in [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]a[ARGX]{}",
        "[TOOL_CALLS]a b{}",
    ] {
        assert_eq!(
            fold(parsing(Syntax::Mistral), [said]),
            message(said, &[]),
            "{said}"
        );
    }
}

#[test]
fn phi_writes_a_list_behind_a_word_or_between_tags() {
    let calls = [call("a", "{\"x\": \"]\"}"), call("b", "{}")];
    let list =
        "[{\"name\": \"a\", \"arguments\": {\"x\": \"]\"}}, {\"name\": \"b\", \"arguments\": {}}]";
    for text in [
        format!("functools{list}"),
        format!("<|tool_call|>{list}<|/tool_call|>"),
        format!("<|tool_call|>{list}"),
    ] {
        assert_eq!(
            fold(parsing(Syntax::Phi), [&*text]),
            message("", &calls),
            "{text}"
        );
    }
    let said = "Python has functools, and functools.partial.";
    assert_eq!(fold(parsing(Syntax::Phi), [said]), message(said, &[]));
}

#[test]
fn what_is_no_call_is_content_to_the_last_character() {
    for said in [
        "<tool_call>",
        " <tool_call> get_weather </tool_call>\n",
        "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"a\"}</tool_call>",
        "<tool_call>{\"name\": \"a\", \"arguments\": \"{}\"}</tool_call>",
        "<tool_call>{\"arguments\": {\"x\": 1}}</tool_call>",
        "<tool_call>{\"arguments\": {\"x\": 1",
        "<tool_call>{'name': 'a', 'arguments': {}}</tool_call>",
        "<tool_cal <tool_call <<tool_call>",
        "two  spaces\n\n",
    ] {
        assert_eq!(
            fold(parsing(Syntax::Hermes), [said]),
            message(said, &[]),
            "{said}"
        );
    }
}

/// The client already received the call's beginning, so the call cannot become content.
#[test]
fn a_call_that_breaks_or_is_cut_stays_one_that_is_not_whole() {
    let begun = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1";
    let partial = |content: &str| {
        let call = Call {
            is_whole: false,
            ..call("a", "{\"x\": 1")
        };
        message(content, &[call])
    };
    assert_eq!(fold(parsing(Syntax::Hermes), [begun]), partial(""));
    let broken = format!("{begun}; oh </tool_call>");
    assert_eq!(
        fold(parsing(Syntax::Hermes), [&*broken]),
        partial("; oh </tool_call>")
    );
}

#[test]
fn thinking_is_the_beginning_of_an_answer_or_nowhere() {
    let think = |opened| Parsing {
        thinking: Some(opened),
        ..Parsing::default()
    };
    let told = |opened, text: &str| {
        let message = fold(think(opened), [text]);
        (message.reasoning, message.content)
    };
    let of = |reasoning: &str, content: &str| (reasoning.to_owned(), content.to_owned());
    let (tagged, opened) = (ReasoningFormat::Tagged, ReasoningFormat::Opened);
    assert_eq!(
        told(tagged, "\n<think>\nHm. \n</think>\n\nYes. "),
        of("Hm.", "Yes. ")
    );
    assert_eq!(told(tagged, "<think>\n\n</think>\n\nYes"), of("", "Yes"));
    assert_eq!(
        told(tagged, " Yes <think>no</think>"),
        of("", " Yes <think>no</think>")
    );
    assert_eq!(told(tagged, "<thin"), of("", "<thin"));
    assert_eq!(
        told(opened, "\nHm</think>Yes</think>"),
        of("Hm", "Yes</think>")
    );
    assert_eq!(told(opened, " Hm, </thin "), of("Hm, </thin", ""));
    assert_eq!(told(tagged, "<think>a </ b"), of("a </ b", ""));
    let calls = "<think>\n<tool_call>{\"name\":\"no\",\"arguments\":{}}</tool_call></think>\n\n\
                 <tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>";
    let message = fold(parsing(Syntax::Hermes), [calls]);
    assert_eq!(message.calls, [call("a", "{}")]);
    assert!(message.reasoning.starts_with("<tool_call>") && message.content.is_empty());
}

#[test]
fn a_prompt_that_ends_with_the_tag_has_opened_it() {
    for (prompt, expected) in [
        ("<|im_start|>assistant\n<think>\n", ReasoningFormat::Opened),
        (
            "<|im_start|>assistant\n<think>\n\n</think>\n\n",
            ReasoningFormat::Tagged,
        ),
        ("<|im_start|>assistant\n", ReasoningFormat::Tagged),
    ] {
        let mut parsing = parsing(Syntax::Hermes);
        if opens_thinking(prompt) {
            parsing.open_thinking();
        }
        assert_eq!(parsing.thinking, Some(expected), "{prompt}");
        let mut none = Parsing::default();
        none.open_thinking();
        assert_eq!(none, Parsing::default());
    }
}

/// Arguments become events as they arrive, before the call is complete.
#[test]
fn arguments_are_told_at_once() {
    let mut parser = Parser::new(&parsing(Syntax::Hermes));
    let mut events = Vec::new();
    parser.push(
        "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": \"lo",
        &mut events,
    );
    let begins = Event::CallBegins {
        name: "a".to_owned(),
    };
    let arguments = Event::CallArguments("{\"x\": \"lo".to_owned());
    assert_eq!(events, [begins, arguments]);
    events.clear();
    parser.push("ng\"", &mut events);
    assert_eq!(events, [Event::CallArguments("ng\"".to_owned())]);
}

/// Hundreds of thousands of characters, each of which could begin a mark.
#[test]
fn time_grows_with_the_length_of_the_text() {
    let many = 200_000;
    let parameters = Parameters::of_tools(&with_many_parameters());
    for unit in [
        " ",
        "<",
        "<think>",
        "</think",
        "<tool_call>",
        "<tool_call>{",
        "[TOOL_CALLS][",
        "{\"a\":[",
        "</parameter>",
        "</parameter> ",
        "\n",
        "<function=f>",
        "<function=f>x",
        "<parameter=any>\"",
        "{\"k\":\"</parameter><parameter=any>",
        "<|tool_call>call:f{a:",
        "<|\"",
        "[",
        "k,",
    ] {
        for syntax in [
            Syntax::Hermes,
            Syntax::Mistral,
            Syntax::Llama3,
            Syntax::Qwen3Coder,
            Syntax::Gemma4,
        ] {
            let text = unit.repeat(many / unit.len());
            for prefix in [
                "",
                "<think>",
                "<tool_call>",
                "<tool_call>{\"name\":\"a\",\"arguments\":{}}",
                "<function=f><parameter=s>",
                "<function=f><parameter=maybe>None",
                "<function=f><parameter=any>{\"",
                "<function=f><parameter=any></parameter>",
                "<|tool_call>call:f{a:<|\"|>",
                "<|tool_call>call:f{a:[",
            ] {
                let parsing = Parsing {
                    parameters: parameters.clone(),
                    ..parsing(syntax)
                };
                let message = fold(parsing, [prefix, &text]);
                assert!(
                    message.content.len() + message.reasoning.len() <= prefix.len() + text.len()
                );
            }
        }
    }
}

/// Function with parameters of several types.
const TYPED: &str = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "maybe": {"type": ["string", "null"]}, "any": {}}}}}]"#;

/// The same function, with as many further parameters as a schema has room for.
fn with_many_parameters() -> String {
    let more: String = (0..10_000).map(|n| format!(", \"p{n}\": {{}}")).collect();
    TYPED.replace("\"any\": {}", &format!("\"any\": {{}}{more}"))
}

fn piece() -> impl Strategy<Value = &'static str> {
    let mut pieces = vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "functools",
        "<|channel|>analysis<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<function=",
        "<function=f>\n",
        "<parameter=",
        "<parameter=s>\n",
        "<parameter=n>\n",
        "<parameter=maybe>",
        "<parameter=any>\n",
        "\n</parameter>\n",
        "</parameter>",
        "</function>\n",
        "<|channel>thought\n",
        "<channel|>",
        "<|tool_call>call:f{",
        "<tool_call|>",
        "<|\"|>",
        "a:",
        "null",
        "1",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\": \"f\", \"parameters\": ",
        "\"name\": \"g\"",
        "{\"arguments\": ",
        "{\"é\": [1, \"}\"]}",
        "{}",
        "f{",
        "f",
        "x",
        "é",
        " ",
        "\n",
        ";",
        ",",
        "[",
        "]",
        "{",
        "}",
        "\"",
        "<",
        "</",
        "\\",
    ];
    pieces.push("{\"name\": \"f\", \"arguments\": {\"a\": 1}}");
    proptest::sample::select(pieces)
}

fn any_parsing() -> impl Strategy<Value = Parsing> {
    let calls = proptest::option::of(proptest::sample::select(
        <Syntax as strum::VariantArray>::VARIANTS,
    ));
    const THOUGHTS: &[ReasoningFormat] = &[
        ReasoningFormat::Tagged,
        ReasoningFormat::Opened,
        ReasoningFormat::Channels,
        ReasoningFormat::Gemma4,
    ];
    let thinking = proptest::option::of(proptest::sample::select(THOUGHTS));
    (calls, thinking).prop_map(|(calls, thinking)| Parsing {
        calls,
        thinking,
        parameters: Parameters::of_tools(TYPED),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A stream's events add up to the whole answer for any pieces.
    #[test]
    fn where_the_text_is_cut_changes_nothing(
        parsing in any_parsing(),
        pieces in proptest::collection::vec(piece(), 0..14),
        sizes in proptest::collection::vec(1_usize..7, 1..5),
    ) {
        let text = pieces.concat();
        let whole = fold(&parsing, [&*text]);
        let ends = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        prop_assert_eq!(&fold(&parsing, ends), &whole, "{}", text);
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
        prop_assert_eq!(&fold(&parsing, cut.iter().map(|it| &**it)), &whole, "{}", text);
    }

    /// A complete call has a name, and arguments that another JSON parser accepts. No character is repeated. Only a
    /// call with an empty message, or one that is not JSON, has arguments that are not in the text.
    #[test]
    fn whole_calls_are_ones_that_a_client_can_read(
        parsing in any_parsing(),
        pieces in proptest::collection::vec(piece(), 0..14),
    ) {
        let text = pieces.concat();
        let message = fold(&parsing, [&*text]);
        let mut told = message.content.len() + message.reasoning.len();
        let is_translated = matches!(parsing.calls, Some(Syntax::Qwen3Coder | Syntax::Gemma4));
        for call in &message.calls {
            let has_none = parsing.thinking == Some(ReasoningFormat::Channels) && call.arguments == "{}";
            prop_assert!(!call.name.is_empty());
            prop_assert!(is_translated || has_none || text.contains(&call.arguments), "{}", text);
            let is_object = serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments).is_ok();
            prop_assert_eq!(call.is_whole, is_object, "{}", text);
            told += call.arguments.len();
        }
        prop_assert!(is_translated || told <= text.len(), "{}", text);
        if message.calls.is_empty() && parsing.thinking.is_none() {
            prop_assert_eq!(message.content, text);
        }
    }
}
