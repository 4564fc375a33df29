use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;
use worker_orcd_requests::{Drafts, StopReason};
use worker_orcd_text::tools::{Parameters, ReasoningFormat, Syntax};

const PARSING: Parsing = Parsing {
    calls: Some(Syntax::Hermes),
    thinking: Some(ReasoningFormat::Tagged),
    parameters: Parameters::NONE,
};

const TEXT: &str = "<think>\nHm\n</think>\n\nI \u{e9}.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": [1.0, \
                    \"\\u00e9\"]}}\n</tool_call><tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";

fn completion(stop_reason: StopReason) -> Completion {
    Completion {
        cached_tokens: 2,
        stop_reason,
        stop_sequence: (stop_reason == StopReason::StopSequence).then(|| "END".to_owned()),
        tokens_in: 5,
        tokens_out: 9,
        drafts: Drafts::default(),
        queued_for: None,
        first_token_after: Duration::ZERO,
        decode_time: Duration::ZERO,
        recoveries: 0,
    }
}

fn render() -> MessageEvents {
    MessageEvents::new("msg_1", "m", 5, &PARSING)
}

fn piece(number: usize, text: &str) -> Piece {
    Piece {
        text: text.to_owned(),
        // Every other token has no text.
        index: 2 * number as u32,
        number: number as u32,
        echoes: false,
        logprobs: None,
    }
}

/// Rest of the stream of these pieces, for a client that has the first `known` ones.
fn stream_of(pieces: &[String], known: usize, reason: StopReason) -> String {
    let (mut render, mut out) = (render(), Vec::new());
    if known == 0 {
        render.begin(&mut out);
    }
    for (number, text) in pieces.iter().enumerate() {
        match number < known {
            true => render.known(&piece(number, text)),
            false => render.text(&piece(number, text), &mut out),
        }
    }
    render.finished(&completion(reason), &mut out);
    String::from_utf8(out).unwrap()
}

fn events(stream: &str) -> Vec<(Option<u32>, Value)> {
    let event = |event: &str| {
        let (mut id, mut name, mut data) = (None, String::new(), Value::Null);
        for line in event.lines() {
            match line.split_once(": ").unwrap() {
                ("event", text) => name = text.to_owned(),
                ("id", text) => id = Some(text.parse().unwrap()),
                ("data", text) => data = serde_json::from_str(text).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(data["type"], name);
        (id, data)
    };
    stream.split_terminator("\n\n").map(event).collect()
}

/// Message that a client assembles from events, as the API's documentation describes.
fn fold(events: &[(Option<u32>, Value)]) -> Value {
    let mut message = Value::Null;
    let mut input = String::new();
    for (_, event) in events {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(event["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let (key, more) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        input.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                let text = &mut message["content"][index][key];
                let before = text.as_str().unwrap();
                *text = json!(format!("{before}{}", more.as_str().unwrap()));
            }
            "content_block_stop" => {
                if let Ok(input) = serde_json::from_str::<Value>(&input) {
                    message["content"][index]["input"] = input;
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    message
}

fn whole(text: &str, reason: StopReason) -> Value {
    let mut render = render();
    render.gather(&piece(0, text));
    serde_json::from_slice(&render.whole(&completion(reason))).unwrap()
}

fn cut(text: &str, places: &[usize]) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut places: Vec<usize> = places.iter().map(|it| it % (chars.len() + 1)).collect();
    places.extend([0, chars.len()]);
    places.sort_unstable();
    let pieces = places.windows(2).map(|pair| &chars[pair[0]..pair[1]]);
    let texts = pieces.map(|piece| piece.iter().collect::<String>());
    texts.filter(|text| !text.is_empty()).collect()
}

proptest! {
    /// Any split of the text, any end, and any position of a resumption.
    #[test]
    fn a_client_that_adds_up_the_events_has_the_whole_answer(
        places in proptest::collection::vec(0_usize..1000, 0..12),
        end in 0_usize..1000,
        known in 0_usize..12,
        reason in prop::sample::select(vec![
            StopReason::Eos, StopReason::MaxTokens, StopReason::StopSequence,
        ]),
    ) {
        let text: String = TEXT.chars().take(end % (TEXT.chars().count() + 1)).collect();
        let pieces = cut(&text, &places);
        let stream = stream_of(&pieces, 0, reason);
        prop_assert_eq!(fold(&events(&stream)), whole(&text, reason));

        let known = known.min(pieces.len());
        let rest = stream_of(&pieces, known, reason);
        prop_assert!(stream.ends_with(&rest));
        // The events of `known` pieces end with the last id before the rest.
        let had = events(&stream[..stream.len() - rest.len()]);
        let last = had.iter().filter_map(|(id, _)| *id).max();
        prop_assert!(last.is_none_or(|id| id < 2 * known.max(1) as u32));
        let is_known = had.last().is_none_or(|(id, event)| {
            id.is_some() || event["type"] == "message_start"
        });
        prop_assert!(is_known);
    }
}

#[test]
fn a_stream_has_the_api_s_events_in_their_order() {
    let pieces = ["<think>Hm</think>".to_owned(), "So.".to_owned()];
    let stream = stream_of(&pieces, 0, StopReason::Eos);
    let events = events(&stream);
    let names: Vec<&str> = events
        .iter()
        .map(|(_, it)| it["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let start = &events[0].1["message"];
    assert_eq!(
        (&start["id"], &start["model"]),
        (&json!("msg_1"), &json!("m"))
    );
    assert_eq!(start["usage"]["input_tokens"], 5);
    assert_eq!(
        events[2].1["delta"],
        json!({"type": "thinking_delta", "thinking": "Hm"})
    );
    assert_eq!(
        events[6].1["delta"],
        json!({"type": "text_delta", "text": "So."})
    );
    let end = json!({
        "type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
        "usage": Usage::of(5, 2, 9),
    });
    assert_eq!(events[8].1, end);
}

#[test]
fn a_whole_answer_has_objects_where_a_stream_has_their_text() {
    let answer = whole(TEXT, StopReason::Eos);
    let content = &answer["content"];
    assert_eq!(
        content[0],
        json!({"type": "thinking", "thinking": "Hm", "signature": ""})
    );
    assert_eq!(content[1], json!({"type": "text", "text": "I \u{e9}."}));
    assert_eq!(content[2]["input"], json!({"x": [1.0, "\u{e9}"]}));
    assert_eq!(
        (&content[3]["name"], &content[3]["input"]),
        (&json!("b"), &json!({}))
    );
    assert_eq!(answer["stop_reason"], "tool_use");
    // An incomplete call has no input.
    let end = TEXT.find("1.0").unwrap();
    let cut = whole(&TEXT[..end], StopReason::MaxTokens);
    assert_eq!(cut["content"][2]["input"], json!({}));
    assert_eq!(cut["stop_reason"], "max_tokens");
    let stopped = whole("So", StopReason::StopSequence);
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
}

#[test]
fn silence_is_a_ping_and_a_failure_an_error() {
    let mut out = Vec::new();
    render().keep_alive(&mut out);
    assert_eq!(out, b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    out.clear();
    let failure = Failure::new(worker_orcd_requests::error_code::ErrorCode::Internal, "why");
    render().failed(&failure, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("event: error\ndata: {"), "{text}");
    assert!(text.contains("\"type\":\"api_error\""), "{text}");
}
