//! Streams compared with whole answers: the sum of a stream's events, and the events after a resumption.

use super::super::output::tests::{PARSING, TEXT, pieces};
use super::*;
use crate::answer_format::Echo;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use worker_orcd_ipc::{Logprobs, TokenId};
use worker_orcd_requests::testing;
use worker_orcd_requests::{Drafts, Listed, ListedToken, StopReason};
use worker_orcd_text::tools::{Parsing, ReasoningFormat, Syntax};

fn header(parsing: Parsing, parallel_tool_calls: bool) -> Header {
    Header {
        id: "resp_1".to_owned(),
        created: 3,
        model: "m".to_owned(),
        parsing,
        echo: Echo {
            temperature: serde_json::Number::from_f64(0.8),
            top_p: serde_json::Number::from_f64(1.0),
            max_output_tokens: 9,
            tool_choice: json!("auto"),
            parallel_tool_calls,
            effort: None,
            format: Some(json!({"type": "json_object"})),
            verbosity: None,
            top_logprobs: 0,
            metadata: BTreeMap::new(),
        },
    }
}

fn completion(stop_reason: StopReason) -> Completion {
    Completion {
        cached_tokens: 3,
        stop_reason,
        stop_sequence: None,
        tokens_in: 5,
        tokens_out: 7,
        drafts: Drafts::default(),
        queued_for: None,
        first_token_after: Duration::ZERO,
        decode_time: Duration::ZERO,
        recoveries: 0,
    }
}

fn stream_of(header: &Header, pieces: &[Piece], known: usize, reason: StopReason) -> String {
    let mut events = Events::new(header.clone(), 0);
    let mut out = Vec::new();
    if known == 0 {
        events.begin(&mut out);
    }
    for (number, piece) in pieces.iter().enumerate() {
        match number < known {
            true => events.known(piece),
            false => events.text(piece, &mut out),
        }
    }
    events.finished(&completion(reason), &mut out);
    String::from_utf8(out).unwrap()
}

fn read(told: &str) -> Vec<Value> {
    let events = told.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

/// Output that a client assembles, from deltas alone and from `done` events alone.
fn added_up(events: &[Value]) -> [Vec<Value>; 2] {
    let (mut grown, mut done): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    let place = |event: &Value| event["output_index"].as_u64().unwrap() as usize;
    let append = |text: &mut Value, delta: &Value| {
        *text = json!(format!(
            "{}{}",
            text.as_str().unwrap(),
            delta.as_str().unwrap()
        ));
    };
    for event in events {
        match event["type"].as_str().unwrap() {
            "response.output_item.added" => {
                assert_eq!(place(event), grown.len());
                grown.push(event["item"].clone());
            }
            "response.content_part.added" => {
                let content = grown[place(event)]["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), 0);
                content.push(event["part"].clone());
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let item = &mut grown[place(event)];
                assert_eq!(item["id"], event["item_id"]);
                append(&mut item["content"][0]["text"], &event["delta"]);
                if let Some(more) = event["logprobs"].as_array() {
                    let list = item["content"][0]["logprobs"].as_array_mut();
                    list.unwrap().extend(more.clone());
                }
            }
            "response.function_call_arguments.delta" => {
                let item = &mut grown[place(event)];
                assert_eq!(item["id"], event["item_id"]);
                append(&mut item["arguments"], &event["delta"]);
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(grown[place(event)]["content"][0]["text"], event["text"]);
            }
            "response.content_part.done" => {
                assert_eq!(grown[place(event)]["content"][0], event["part"]);
            }
            "response.function_call_arguments.done" => {
                assert_eq!(grown[place(event)]["arguments"], event["arguments"]);
            }
            "response.output_item.done" => {
                assert_eq!(place(event), done.len());
                // Field that deltas do not contain.
                grown[done.len()]["status"] = event["item"]["status"].clone();
                done.push(event["item"].clone());
            }
            _ => {}
        }
    }
    [grown, done]
}

fn whole(header: &Header, pieces: &[Piece], reason: StopReason) -> Value {
    let mut events = Events::new(header.clone(), 0);
    pieces.iter().for_each(|it| events.gather(it));
    serde_json::from_slice(&events.whole(&completion(reason))).unwrap()
}

/// Gives each piece one token. Its log probability encodes the token's number.
fn listed(mut pieces: Vec<Piece>) -> Vec<Piece> {
    for piece in &mut pieces {
        let logprobs = Logprobs {
            of_token: -(piece.number as f32),
            rank: 1,
            top: vec![(TokenId(1), -0.5)],
        };
        let token = ListedToken {
            token: TokenId(0),
            offset: 0,
            logprobs: Some(logprobs),
        };
        piece.logprobs = Some(Box::new(Listed {
            tokens: vec![token],
            text: testing::text(),
        }));
    }
    pieces
}

#[test]
fn the_tokens_of_a_text_have_their_log_probabilities_and_those_of_thoughts_and_calls_none() {
    let text =
        "<think>Hm</think>I a <to b <tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
    let pieces = listed(pieces(text, 3));
    let header = header(PARSING, true);
    let told = read(&stream_of(&header, &pieces, 0, StopReason::Eos));
    let whole = whole(&header, &pieces, StopReason::Eos);
    let [grown, done] = added_up(&told);
    assert_eq!(json!(grown), whole["output"]);
    assert_eq!(json!(done), whole["output"]);
    let content = &whole["output"][1]["content"][0];
    let text = content["text"].as_str().unwrap();
    assert!(text.starts_with("I a <to b"), "{text}");
    let of_tokens = content["logprobs"].as_array().unwrap().iter();
    let numbers: Vec<_> = of_tokens
        .map(|it| -it["logprob"].as_f64().unwrap())
        .collect();
    // `k>I` ends the reasoning and begins the text. `<to` is held, and is text once ` b ` has arrived. The next piece
    // is a call's.
    assert_eq!(numbers, [5.0, 6.0, 7.0, 8.0]);
}

#[test]
fn a_stream_has_the_events_of_openai_in_their_order() {
    let text = "<think>H</think>I<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>";
    let told = stream_of(
        &header(PARSING, true),
        &pieces(text, 1000),
        0,
        StopReason::Eos,
    );
    let events = read(&told);
    let names: Vec<_> = events
        .iter()
        .map(|it| it["type"].as_str().unwrap())
        .collect();
    let short: Vec<_> = names
        .iter()
        .map(|it| it.strip_prefix("response.").unwrap())
        .collect();
    assert_eq!(
        short,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
    let numbers: Vec<_> = events
        .iter()
        .map(|it| it["sequence_number"].as_u64())
        .collect();
    let expected: Vec<_> = (0..events.len() as u64).map(Some).collect();
    assert_eq!(numbers, expected);
    let usage = &events.last().unwrap()["response"]["usage"];
    assert_eq!(usage["total_tokens"], 12);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 1);
    let cut = read(&stream_of(
        &header(PARSING, true),
        &pieces(text, 9),
        0,
        StopReason::MaxTokens,
    ));
    let last = cut.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(
        last["response"]["incomplete_details"]["reason"],
        "max_output_tokens"
    );
}

#[test]
fn a_failure_in_the_middle_is_the_last_event_and_has_what_was_told() {
    let mut events = Events::new(header(PARSING, true), 0);
    let mut out = Vec::new();
    events.begin(&mut out);
    pieces("I look", 3)
        .iter()
        .for_each(|it| events.text(it, &mut out));
    let failure = Failure::new(
        worker_orcd_requests::error_code::ErrorCode::Internal,
        "broken",
    );
    events.failed(&failure, &mut out);
    let told = read(std::str::from_utf8(&out).unwrap());
    let last = told.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    assert_eq!(response["status"], "failed");
    assert_eq!(
        response["error"],
        json!({"code": "server_error", "message": "broken"})
    );
    assert_eq!(response["output"][0]["content"][0]["text"], "I look");
    assert_eq!(response["output"][0]["status"], "incomplete");
}

/// A stream that continues in another supervisor or on another connection.
#[test]
fn a_stream_goes_on_with_the_same_bytes_behind_what_the_client_has() {
    for chars in [1, 4, 30] {
        let (header, pieces) = (header(PARSING, true), pieces(TEXT, chars));
        let all = stream_of(&header, &pieces, 0, StopReason::Eos);
        let mut before = all.len() + 1;
        for known in 1..=pieces.len() {
            let rest = stream_of(&header, &pieces, known, StopReason::Eos);
            assert!(all.ends_with(&rest), "{known}: {rest}");
            assert!(rest.len() <= before, "{known}");
            before = rest.len();
        }
    }
}

/// A client that reconnects sends the number of its last event.
#[test]
fn a_client_is_told_what_is_behind_the_last_event_that_it_has() {
    let (header, pieces) = (header(PARSING, true), pieces(TEXT, 4));
    let all = stream_of(&header, &pieces, 0, StopReason::Eos);
    let events: Vec<&str> = all.split_inclusive("\n\n").collect();
    for from in 0..=events.len() {
        let mut rest = Events::new(header.clone(), from as u64);
        let mut out = Vec::new();
        rest.begin(&mut out);
        pieces.iter().for_each(|it| rest.text(it, &mut out));
        rest.finished(&completion(StopReason::Eos), &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            events[from..].concat(),
            "{from}"
        );
    }
}

fn parsings() -> impl Strategy<Value = Parsing> {
    let syntaxes = [
        None,
        Some(Syntax::Hermes),
        Some(Syntax::Mistral),
        Some(Syntax::Llama3),
    ];
    let reasoning = [
        None,
        Some(ReasoningFormat::Tagged),
        Some(ReasoningFormat::Opened),
    ];
    let calls = proptest::sample::select(syntaxes.to_vec());
    let thinking = proptest::sample::select(reasoning.to_vec());
    (calls, thinking).prop_map(|(calls, thinking)| Parsing {
        calls,
        thinking,
        ..Parsing::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_a_client_adds_up_is_the_whole_answer(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "<think>", "</think>", "a", " ", "\u{e9}\n", "<tool_call>", "</tool_call>", "[TOOL_CALLS]",
            "{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\"]}}", "{\"name\": ", "[", "]", ";",
            "{\"name\": \"g\", \"parameters\": {}}", "<tool_call>{\"name\": \"h\", \"arguments\": {\"a\": ",
        ]), 0..14),
        chars in 1_usize..9,
        parsing in parsings(),
        parallel in any::<bool>(),
        is_cut in any::<bool>(),
    ) {
        let pieces = pieces(&parts.concat(), chars);
        let header = header(parsing, parallel);
        let reason = match is_cut {
            true => StopReason::MaxTokens,
            false => StopReason::Eos,
        };
        let events = read(&stream_of(&header, &pieces, 0, reason));
        let whole = whole(&header, &pieces, reason);
        prop_assert_eq!(&events.last().unwrap()["response"], &whole);
        for output in added_up(&events) {
            prop_assert_eq!(&json!(output), &whole["output"]);
        }
    }
}
