//! Parsed answers in the OpenAI API's form: reasoning, content and tool calls.
//!
//! `reasoning_content` is the key of llama-server and DeepSeek's API, and was vLLM's. vLLM and OpenRouter now use
//! `reasoning`. An answer has both keys, with the same text.
//!
//! Each piece of text becomes one delta, which is empty while the parser holds the text back. So the number of chunks
//! identifies a position in the stream, as without a parser.

use super::finish_reason;
use crate::messages::THOUGHTS;
use crate::timeline::{Kind, Step, Timeline, sum};
use serde_json::{Map, Value, json};
use worker_orcd_requests::StopReason;
use worker_orcd_text::tools::Parsing;

#[derive(Debug)]
pub(super) struct Parts {
    timeline: Timeline,
    /// Kind of the item that began last.
    kind: Kind,
    begun_calls: usize,
    /// Buffer, reused between pieces.
    steps: Vec<Step>,
}

impl Parts {
    /// `None` if the answer needs no parser.
    pub(super) fn of(parsing: Parsing, answer: &str) -> Option<Self> {
        parsing.is_any().then(|| Self {
            timeline: Timeline::new(answer, "call_", parsing),
            kind: Kind::Text,
            begun_calls: 0,
            steps: Vec::new(),
        })
    }

    /// Delta of this piece.
    pub(super) fn push(&mut self, text: &str) -> Value {
        self.timeline.push(text, &mut self.steps);
        self.delta()
    }

    /// Delta of the held text, at the end.
    pub(super) fn finish(&mut self) -> Value {
        self.timeline.finish(false, &mut self.steps);
        self.delta()
    }

    /// `finish_reason`. Call it after [`finish`](Self::finish).
    pub(super) fn finish_reason(&self, reason: StopReason) -> &'static str {
        match reason {
            StopReason::Eos if self.timeline.has_whole_calls() => "tool_calls",
            reason => finish_reason(reason),
        }
    }

    /// Message of the whole text, and its `finish_reason`.
    pub(super) fn message(mut self, text: &str, reason: StopReason) -> (Value, &'static str) {
        self.timeline.push(text, &mut self.steps);
        self.timeline.finish(false, &mut self.steps);
        let reason = self.finish_reason(reason);
        let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for item in sum(self.steps) {
            match item.kind {
                Kind::Text => text.push_str(&item.text),
                Kind::Reasoning => reasoning.push_str(&item.text),
                Kind::Call { name, id } => calls.push(json!({
                    "id": id,
                    "type": "function",
                    "function": {"name": name, "arguments": item.text},
                })),
            }
        }
        let is_more = !(reasoning.is_empty() && calls.is_empty());
        let content = match text.is_empty() && is_more {
            true => Value::Null,
            false => json!(text),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            for name in THOUGHTS {
                message[name] = json!(reasoning);
            }
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        (message, reason)
    }

    fn delta(&mut self) -> Value {
        let mut texts = Map::new();
        let mut add = |key: &str, text: String| match texts.get_mut(key) {
            Some(Value::String(before)) => before.push_str(&text),
            _ => drop(texts.insert(key.to_owned(), json!(text))),
        };
        let mut calls: Vec<Value> = Vec::new();
        for step in self.steps.drain(..) {
            match step {
                Step::Begins(kind) => {
                    if let Kind::Call { name, id } = &kind {
                        calls.push(json!({
                            "index": self.begun_calls,
                            "id": id,
                            "type": "function",
                            "function": {"name": name, "arguments": ""},
                        }));
                        self.begun_calls += 1;
                    }
                    self.kind = kind;
                }
                Step::Adds(text) => match &self.kind {
                    Kind::Text => add("content", text),
                    Kind::Reasoning => THOUGHTS
                        .into_iter()
                        .for_each(|name| add(name, text.clone())),
                    Kind::Call { .. } => {
                        let index = self.begun_calls.saturating_sub(1);
                        add_arguments(&mut calls, index, text);
                    }
                },
                Step::Ends { .. } => {}
            }
        }
        if !calls.is_empty() {
            texts.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Value::Object(texts)
    }
}

fn add_arguments(calls: &mut Vec<Value>, index: usize, text: String) {
    let known = calls.last_mut().filter(|call| call["index"] == index);
    match known.map(|call| &mut call["function"]["arguments"]) {
        Some(Value::String(before)) => before.push_str(&text),
        _ => calls.push(json!({"index": index, "function": {"arguments": text}})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_ids::CallIds;
    use worker_orcd_text::tools::{Syntax, Thoughts};

    const PARSING: Parsing = Parsing {
        calls: Some(Syntax::Hermes),
        thinking: Some(Thoughts::Tagged),
    };

    const TEXT: &str = "<think>Hm</think>I look.<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>\
                        <tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";

    fn parts(syntax: Syntax) -> Parts {
        let calls = Some(syntax);
        Parts::of(Parsing { calls, ..PARSING }, "chatcmpl-1").unwrap()
    }

    /// Message that a client assembles from deltas.
    fn accumulate(deltas: &[Value]) -> Value {
        let mut message = json!({"role": "assistant", "content": null, "refusal": null});
        for delta in deltas {
            for key in ["content", "reasoning_content", "reasoning"] {
                if let Some(text) = delta[key].as_str() {
                    let before = message[key].as_str().unwrap_or_default();
                    message[key] = json!(format!("{before}{text}"));
                }
            }
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = call["index"].as_u64().unwrap() as usize;
                if call["id"].is_string() {
                    let mut call = call.clone();
                    call.as_object_mut().unwrap().remove("index");
                    let calls = message.as_object_mut().unwrap().entry("tool_calls");
                    let calls = calls.or_insert(json!([])).as_array_mut().unwrap();
                    assert_eq!(calls.len(), index);
                    calls.push(call);
                } else {
                    let arguments = &mut message["tool_calls"][index]["function"]["arguments"];
                    let more = call["function"]["arguments"].as_str().unwrap();
                    *arguments = json!(format!("{}{more}", arguments.as_str().unwrap()));
                }
            }
        }
        message
    }

    #[test]
    fn a_client_that_adds_up_the_deltas_has_the_whole_message() {
        for size in [1, 3, 7, 1000] {
            let mut streamed = parts(Syntax::Hermes);
            let chars: Vec<char> = TEXT.chars().collect();
            let pieces = chars
                .chunks(size)
                .map(|piece| piece.iter().collect::<String>());
            let mut deltas: Vec<Value> = pieces.map(|piece| streamed.push(&piece)).collect();
            deltas.push(streamed.finish());
            let (message, reason) = parts(Syntax::Hermes).message(TEXT, StopReason::Eos);
            assert_eq!(accumulate(&deltas), message, "{size}");
            assert_eq!(reason, "tool_calls");
            assert_eq!(streamed.finish_reason(StopReason::Eos), reason);
        }
    }

    #[test]
    fn a_message_has_what_there_is_and_null_for_a_text_that_is_not() {
        let (message, _) = parts(Syntax::Hermes).message(TEXT, StopReason::Eos);
        assert_eq!(message["reasoning_content"], "Hm");
        assert_eq!(message["reasoning"], "Hm");
        assert_eq!(message["content"], "I look.");
        assert_eq!(
            message["tool_calls"][1]["function"],
            json!({"name": "b", "arguments": "{}"})
        );
        let only_call = TEXT.split("I look.").nth(1).unwrap();
        let (message, _) = parts(Syntax::Hermes).message(only_call, StopReason::Eos);
        assert_eq!(message["content"], Value::Null);
        assert!(message.get("reasoning_content").is_none());
        let (message, reason) = parts(Syntax::Hermes).message("", StopReason::Eos);
        let nothing = json!({"role": "assistant", "content": "", "refusal": null});
        assert_eq!((message, reason), (nothing, "stop"));
    }

    #[test]
    fn the_reason_is_honest() {
        let reason = |text: &str, reason| parts(Syntax::Hermes).message(text, reason).1;
        assert_eq!(reason(TEXT, StopReason::MaxTokens), "length");
        assert_eq!(reason(TEXT, StopReason::StopSequence), "stop");
        let cut = &TEXT[..TEXT.find(" 1}").unwrap()];
        assert_eq!(reason(cut, StopReason::Eos), "stop");
        assert_eq!(reason(cut, StopReason::MaxTokens), "length");
    }

    #[test]
    fn ids_depend_on_the_answer_and_the_place_alone_and_mistral_s_are_short() {
        let ids = |syntax, answer: &str| {
            [0, 1].map(|at| CallIds::new("call_", answer, Some(syntax)).id(at))
        };
        let [first, second] = ids(Syntax::Hermes, "a");
        assert_eq!(ids(Syntax::Hermes, "a"), [first.clone(), second.clone()]);
        assert!(first != second && !ids(Syntax::Hermes, "b").contains(&first));
        assert!(first.starts_with("call_"), "{first}");
        let [short, _] = ids(Syntax::Mistral, "a");
        assert!(
            short.len() == 9 && short.bytes().all(|it| it.is_ascii_alphanumeric()),
            "{short}"
        );
    }

    #[test]
    fn where_nothing_is_taken_apart_there_are_no_parts() {
        assert!(Parts::of(Parsing::default(), "a").is_none());
    }
}
