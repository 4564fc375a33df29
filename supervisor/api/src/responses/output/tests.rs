//! Texts of models, and the items that they become.

use super::*;
use crate::call_ids::CallIds;
use worker_orcd_text::tools::{Parameters, ReasoningFormat, Syntax};

pub(in crate::responses) const PARSING: Parsing = Parsing {
    calls: Some(Syntax::Hermes),
    thinking: Some(ReasoningFormat::Tagged),
    parameters: Parameters::NONE,
};

pub(in crate::responses) const TEXT: &str = "<think>Hm</think>I look.<tool_call>{\"name\": \"a\", \
    \"arguments\": {\"x\": 1}}</tool_call>And.<tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";

pub(in crate::responses) fn pieces(text: &str, chars: usize) -> Vec<Piece> {
    let all: Vec<char> = text.chars().collect();
    let cut = (0..).zip(all.chunks(chars));
    cut.map(|(number, piece)| Piece {
        text: piece.iter().collect(),
        index: number,
        number,
        echoes: false,
        logprobs: None,
    })
    .collect()
}

fn output(text: &str, chars: usize, is_cut: bool, only_one_call: bool) -> Output {
    let mut output = Output::new("resp_1", &PARSING, only_one_call);
    let mut growth = Vec::new();
    for piece in pieces(text, chars) {
        output.push(&piece, &mut growth);
    }
    output.finish(is_cut, &mut growth);
    output
}

fn items_of(output: &Output) -> Vec<(&'static str, &str, Status)> {
    let kind = |item: &Item| match item.kind {
        Kind::Reasoning => "thought",
        Kind::Text => "text",
        Kind::Call(_) => "call",
    };
    let items = output.items.iter();
    items
        .map(|it| (kind(it), it.text.as_str(), it.status))
        .collect()
}

#[test]
fn each_thought_text_and_call_is_an_item_in_the_order_of_writing() {
    for chars in [1, 2, 5, 1000] {
        let output = output(TEXT, chars, false, false);
        assert_eq!(
            items_of(&output),
            [
                ("thought", "Hm", Status::Completed),
                ("text", "I look.", Status::Completed),
                ("call", "{\"x\": 1}", Status::Completed),
                ("text", "And.", Status::Completed),
                ("call", "{}", Status::Completed),
            ],
            "{chars}"
        );
        let ids = output.items.iter().filter_map(|item| match &item.kind {
            Kind::Call(call) => Some((call.name.clone(), call.id.clone())),
            _ => None,
        });
        let wanted = CallIds::new("call_", "resp_1", PARSING.calls);
        let expected = [
            ("a".to_owned(), wanted.id(0)),
            ("b".to_owned(), wanted.id(1)),
        ];
        assert_eq!(ids.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn what_is_cut_is_not_whole() {
    let at = |mark: &str| &TEXT[..TEXT.find(mark).unwrap()];
    for (text, last) in [
        (at("m</think>"), ("thought", "H", Status::Incomplete)),
        (at("look"), ("text", "I ", Status::Incomplete)),
        (at(" 1}"), ("call", "{\"x\":", Status::Incomplete)),
    ] {
        let output = output(text, 1, true, false);
        assert_eq!(items_of(&output).last(), Some(&last));
    }
    // The model ended the answer, so a text is complete but a call is not.
    let ended = |text| {
        items_of(&output(text, 1, false, false))
            .last()
            .map(|it| it.2)
    };
    assert_eq!(ended(at("look")), Some(Status::Completed));
    assert_eq!(ended(at(" 1}")), Some(Status::Incomplete));
}

#[test]
fn without_parallel_calls_those_behind_the_first_are_left_out() {
    for chars in [1, 1000] {
        let output = output(TEXT, chars, false, true);
        let kinds: Vec<_> = items_of(&output).iter().map(|it| it.0).collect();
        assert_eq!(kinds, ["thought", "text", "call", "text"]);
    }
    let more = format!("{TEXT}More.");
    let output = output(&more, 3, false, true);
    assert_eq!(items_of(&output).last().map(|it| it.1), Some("And.More."));
}

#[test]
fn tokens_are_of_thoughts_until_the_last_that_has_one() {
    // Each character is a token here: `<think>Hm` has nine.
    let output = output(TEXT, 1, false, false);
    assert_eq!(output.reasoning_tokens, 9);
}
