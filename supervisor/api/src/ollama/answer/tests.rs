use super::*;
use serde_json::json;
use worker_orcd_requests::{Drafts, StopReason};
use worker_orcd_text::tools::{ReasoningFormat, Syntax};

const ANSWER: &str = "<think>\nHm\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1.0}}\n\
                      </tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

fn lines(kind: Kind) -> Lines {
    let parsing = Parsing {
        calls: Some(Syntax::Hermes),
        thinking: Some(ReasoningFormat::Tagged),
        ..Parsing::default()
    };
    // 2026-11-21T12:00:00.250Z
    let created = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_262_400_250);
    Lines::new("ollama_1", "m", kind, created, &parsing)
}

fn completion(stop_reason: StopReason) -> Completion {
    Completion {
        stop_reason,
        stop_sequence: None,
        tokens_in: 5,
        cached_tokens: 2,
        tokens_out: 7,
        drafts: Drafts::default(),
        queued_for: Some(Duration::from_millis(1)),
        first_token_after: Duration::from_millis(4),
        decode_time: Duration::from_millis(6),
        recoveries: 0,
    }
}

fn piece(number: u32, text: String) -> Piece {
    Piece {
        number,
        text,
        index: number,
        echoes: false,
        logprobs: None,
    }
}

fn streamed(kind: Kind, text: &str, chars: usize, stop_reason: StopReason) -> Vec<Value> {
    let (mut lines, mut out) = (lines(kind), Vec::new());
    let characters: Vec<char> = text.chars().collect();
    for (number, characters) in (0..).zip(characters.chunks(chars)) {
        lines.text(&piece(number, characters.iter().collect()), &mut out);
    }
    lines.finished(&completion(stop_reason), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn whole(kind: Kind, text: &str, stop_reason: StopReason) -> Value {
    let mut lines = lines(kind);
    lines.gather(&piece(0, text.to_owned()));
    let out = lines.whole(&completion(stop_reason));
    serde_json::from_slice(&out).unwrap()
}

/// Texts of a field in all lines.
fn joined(lines: &[Value], pointer: &str) -> String {
    let texts = lines
        .iter()
        .filter_map(|line| line.pointer(pointer)?.as_str());
    texts.collect()
}

#[test]
fn thoughts_text_and_calls_are_told_streamed_and_whole() {
    let answer = whole(Kind::Chat, ANSWER, StopReason::Eos);
    let calls = &answer["message"]["tool_calls"];
    let id = |index: usize| calls[index]["id"].clone();
    assert!(id(0).as_str().unwrap().starts_with("call_") && id(0) != id(1));
    let expected = json!({
        "model": "m", "created_at": "2026-11-21T12:00:00.250Z", "done": true, "done_reason": "stop",
        "message": {
            "role": "assistant", "content": "I look.", "thinking": "Hm",
            "tool_calls": [
                {"id": id(0), "function": {"index": 0, "name": "add", "arguments": {"a": 1.0}}},
                {"id": id(1), "function": {"index": 1, "name": "now", "arguments": {}}},
            ],
        },
        "total_duration": 10_000_000, "load_duration": 0, "prompt_eval_count": 5,
        "prompt_eval_duration": 3_000_000, "eval_count": 7, "eval_duration": 6_000_000,
    });
    assert_eq!(answer, expected);
    for chars in [1, 7, 1000] {
        let lines = streamed(Kind::Chat, ANSWER, chars, StopReason::Eos);
        assert_eq!(joined(&lines, "/message/thinking"), "Hm");
        assert_eq!(joined(&lines, "/message/content"), "I look.");
        let told = lines
            .iter()
            .filter_map(|line| line["message"]["tool_calls"].as_array());
        let told: Vec<_> = told.flatten().cloned().collect();
        assert_eq!(json!(told), *calls);
        let (last, others) = lines.split_last().unwrap();
        assert!(
            others
                .iter()
                .all(|line| line["done"] == false && line.get("eval_count").is_none())
        );
        let mut end = answer.clone();
        end["message"] = json!({"role": "assistant", "content": ""});
        assert_eq!(*last, end);
    }
}

#[test]
fn generate_has_a_response_in_place_of_a_message() {
    let text = "<think>\nHm\n</think>\n\nI look.";
    let answer = whole(Kind::Generate, text, StopReason::MaxTokens);
    assert_eq!(
        (&answer["response"], &answer["thinking"]),
        (&json!("I look."), &json!("Hm"))
    );
    assert_eq!(answer["done_reason"], "length");
    let lines = streamed(Kind::Generate, text, 3, StopReason::MaxTokens);
    assert_eq!(joined(&lines, "/response"), "I look.");
    assert_eq!(joined(&lines, "/thinking"), "Hm");
    assert_eq!(lines.last().unwrap()["response"], "");
}

#[test]
fn a_call_that_is_cut_is_left_out() {
    let cut = "I look.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": ";
    let answer = whole(Kind::Chat, cut, StopReason::MaxTokens);
    let message = json!({"role": "assistant", "content": "I look."});
    assert_eq!(answer["message"], message);
    assert_eq!(
        streamed(Kind::Chat, cut, 1000, StopReason::MaxTokens).len(),
        2
    );
}

#[test]
fn a_failure_is_the_last_line() {
    let (mut lines, mut out) = (lines(Kind::Chat), Vec::new());
    lines.keep_alive(&mut out);
    lines.recovering(&mut out);
    let code = worker_orcd_requests::error_code::ErrorCode::Cancelled;
    lines.failed(&Failure::new(code, "the job was cancelled"), &mut out);
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text, "  {\"error\":\"the job was cancelled\"}\n");
}
