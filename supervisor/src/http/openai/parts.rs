//! An answer that is taken apart: thoughts, text and calls, in the words of the OpenAI API.
//!
//! `reasoning_content` is the name that llama-server and DeepSeek's API gave to thoughts, and vLLM once; vLLM and OpenRouter
//! call them `reasoning`. Both keys are there, with the same text. Each piece of text
//! becomes one delta, which may be empty: then what it says is not known yet. So the number of chunks tells
//! how far a client is, as it does where nothing is taken apart.

use super::finish_reason;
use crate::engine::StopReason;
use crate::http::call_ids::CallIds;
use crate::http::messages::THOUGHTS;
use crate::text::tools::{Event, Message, Parser, Parsing};
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(super) struct Parts {
    parser: Parser,
    calls: CallIds,
    begun: usize,
    whole: usize,
    /// Reused between pieces.
    events: Vec<Event>,
}

impl Parts {
    /// `None` where nothing is taken apart.
    pub(super) fn of(parsing: Parsing, answer: &str) -> Option<Self> {
        parsing.is_any().then(|| Self {
            parser: Parser::new(parsing),
            calls: CallIds::new("call_", answer, parsing.calls),
            begun: 0,
            whole: 0,
            events: Vec::new(),
        })
    }

    /// The delta that this piece becomes.
    pub(super) fn push(&mut self, text: &str) -> Value {
        self.parser.push(text, &mut self.events);
        self.delta()
    }

    /// The delta of what was held back, at the end.
    pub(super) fn finish(&mut self) -> Value {
        self.parser.finish(&mut self.events);
        self.delta()
    }

    /// Why the answer ended, behind [`finish`](Self::finish).
    pub(super) fn finish_reason(&self, reason: StopReason) -> &'static str {
        match reason {
            StopReason::Eos if self.whole > 0 => "tool_calls",
            reason => finish_reason(reason),
        }
    }

    /// The message that the whole text is, and why it ended.
    pub(super) fn message(mut self, text: &str, reason: StopReason) -> (Value, &'static str) {
        self.parser.push(text, &mut self.events);
        self.parser.finish(&mut self.events);
        let mut message = Message::default();
        for event in self.events.drain(..) {
            self.whole += usize::from(event == Event::CallEnds);
            message.add(event);
        }
        let reason = self.finish_reason(reason);
        let is_silent = message.content.is_empty();
        let is_more = !(message.reasoning.is_empty() && message.calls.is_empty());
        let content = match is_silent && is_more {
            true => Value::Null,
            false => json!(message.content),
        };
        let mut told = json!({"role": "assistant", "content": content, "refusal": null});
        if !message.reasoning.is_empty() {
            for name in THOUGHTS {
                told[name] = json!(message.reasoning);
            }
        }
        if !message.calls.is_empty() {
            let calls = message.calls.iter().enumerate();
            let calls = calls.map(|(index, call)| {
                json!({
                    "id": self.calls.id(index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            });
            told["tool_calls"] = calls.collect();
        }
        (told, reason)
    }

    fn delta(&mut self) -> Value {
        let mut texts = Map::new();
        let mut add = |key: &str, text: String| match texts.get_mut(key) {
            Some(Value::String(before)) => before.push_str(&text),
            _ => drop(texts.insert(key.to_owned(), json!(text))),
        };
        let mut calls: Vec<Value> = Vec::new();
        for event in self.events.drain(..) {
            match event {
                Event::Content(text) => add("content", text),
                Event::Reasoning(text) => {
                    THOUGHTS
                        .into_iter()
                        .for_each(|name| add(name, text.clone()));
                }
                Event::CallBegins { name } => {
                    calls.push(json!({
                        "index": self.begun,
                        "id": self.calls.id(self.begun),
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }));
                    self.begun += 1;
                }
                Event::CallArguments(text) => {
                    let index = self.begun.saturating_sub(1);
                    add_arguments(&mut calls, index, text);
                }
                Event::CallEnds => self.whole += 1,
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
    use crate::text::tools::{Syntax, Thoughts};

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

    /// What a client makes of deltas.
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
            let calls = Some(syntax);
            let parts = Parts::of(Parsing { calls, ..PARSING }, answer).unwrap();
            [parts.calls.id(0), parts.calls.id(1)]
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
