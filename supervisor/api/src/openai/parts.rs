//! Parsed answers in the OpenAI API's form: reasoning, content and tool calls.
//!
//! `reasoning_content` is the key of llama-server and DeepSeek's API, and was vLLM's. vLLM and OpenRouter now use
//! `reasoning`. An answer has both keys, with the same text.
//!
//! Each piece of text becomes one delta, which is empty while the parser holds the text back. So the number of chunks
//! identifies a position in the stream, as without a parser.

use super::answer::{
    CallDelta, CallType, ChatFinishReason, Delta, Function, FunctionDelta, Message, ToolCall,
    ToolCalls,
};
use crate::answer::OrNull;
use crate::timeline::{Change, Kind, Step, Timeline, sum};
use worker_orcd_requests::StopReason;
use worker_orcd_text::tools::Parsing;

#[derive(Debug)]
pub(super) struct Parts {
    timeline: Timeline,
    /// Buffer, reused between pieces.
    steps: Vec<Step>,
}

impl Parts {
    /// `None` if the answer needs no parser.
    pub(super) fn of(parsing: &Parsing, answer: &str) -> Option<Self> {
        parsing.is_any().then(|| Self {
            timeline: Timeline::new(answer, "call_", parsing),
            steps: Vec::new(),
        })
    }

    /// Delta of this piece.
    pub(super) fn push(&mut self, text: &str) -> Delta {
        self.timeline.push(text, &mut self.steps);
        self.delta()
    }

    /// Delta of the held text, at the end.
    pub(super) fn finish(&mut self, reason: StopReason) -> Delta {
        self.timeline
            .finish(reason == StopReason::MaxTokens, &mut self.steps);
        self.delta()
    }

    /// `finish_reason`. Call it after [`finish`](Self::finish).
    pub(super) fn finish_reason(&self, reason: StopReason) -> ChatFinishReason {
        match reason {
            StopReason::Eos if self.timeline.has_whole_calls() => {
                ChatFinishReason::Calls(ToolCalls::ToolCalls)
            }
            reason => reason.into(),
        }
    }

    /// Message of the whole text, and its `finish_reason`.
    pub(super) fn message(mut self, text: &str, reason: StopReason) -> (Message, ChatFinishReason) {
        self.timeline.push(text, &mut self.steps);
        self.timeline
            .finish(reason == StopReason::MaxTokens, &mut self.steps);
        let reason = self.finish_reason(reason);
        let (mut text, mut reasoning, mut tool_calls) = (String::new(), None, Vec::new());
        for item in sum(self.steps) {
            match item.kind {
                Kind::Text => text.push_str(&item.text),
                Kind::Reasoning => append(&mut reasoning, &item.text),
                Kind::Call(call) => tool_calls.push(ToolCall {
                    id: call.id.clone(),
                    r#type: CallType::Function,
                    function: Function {
                        name: call.name.clone(),
                        arguments: item.text,
                    },
                }),
            }
        }
        let reasoning = reasoning.filter(|it| !it.is_empty());
        let is_only_text = reasoning.is_none() && tool_calls.is_empty();
        let message = Message {
            content: (is_only_text || !text.is_empty()).then_some(text),
            reasoning_content: reasoning.clone(),
            reasoning,
            tool_calls,
            ..Message::of_text(String::new())
        };
        (message, reason)
    }

    fn delta(&mut self) -> Delta {
        let mut delta = Delta::default();
        for step in self.steps.drain(..) {
            match (step.change, step.kind) {
                (Change::Begins, Kind::Call(call)) => delta.tool_calls.push(CallDelta {
                    index: call.index,
                    id: Some(call.id.clone()),
                    r#type: Some(CallType::Function),
                    function: FunctionDelta {
                        name: Some(call.name.clone()),
                        arguments: String::new(),
                    },
                }),
                (Change::Adds(text), Kind::Text) => match (&mut delta.content, &delta.reasoning) {
                    (Some(OrNull(content)), _) => append(content, &text),
                    (None, None) => delta.content = Some(OrNull(Some(text))),
                    (None, Some(_)) => append(&mut delta.content_after, &text),
                },
                (Change::Adds(text), Kind::Reasoning) => {
                    append(&mut delta.reasoning_content, &text);
                    append(&mut delta.reasoning, &text);
                }
                (Change::Adds(text), Kind::Call(call)) => {
                    add_arguments(&mut delta.tool_calls, call.index, text);
                }
                (Change::Begins | Change::Ends { .. }, _) => {}
            }
        }
        delta
    }
}

fn append(text: &mut Option<String>, more: &str) {
    text.get_or_insert_default().push_str(more);
}

fn add_arguments(calls: &mut Vec<CallDelta>, index: usize, text: String) {
    match calls.last_mut().filter(|call| call.index == index) {
        Some(call) => call.function.arguments.push_str(&text),
        None => calls.push(CallDelta {
            index,
            id: None,
            r#type: None,
            function: FunctionDelta {
                name: None,
                arguments: text,
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_ids::CallIds;
    use serde_json::{Value, json};
    use worker_orcd_text::tools::{Parameters, ReasoningFormat, Syntax};

    const PARSING: Parsing = Parsing {
        calls: Some(Syntax::Hermes),
        thinking: Some(ReasoningFormat::Tagged),
        parameters: Parameters::NONE,
    };

    const TEXT: &str = "<think>Hm</think>I look.<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>\
                        <tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";

    fn parts(syntax: Syntax) -> Parts {
        let calls = Some(syntax);
        Parts::of(&Parsing { calls, ..PARSING }, "chatcmpl-1").unwrap()
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
            let deltas = pieces.map(|piece| json!(streamed.push(&piece)));
            let mut deltas: Vec<Value> = deltas.collect();
            deltas.push(json!(streamed.finish(StopReason::Eos)));
            let (message, reason) = parts(Syntax::Hermes).message(TEXT, StopReason::Eos);
            assert_eq!(accumulate(&deltas), json!(message), "{size}");
            assert_eq!(json!(reason), "tool_calls");
            assert_eq!(streamed.finish_reason(StopReason::Eos), reason);
        }
    }

    #[test]
    fn a_message_has_what_there_is_and_null_for_a_text_that_is_not() {
        let message = |text: &str| {
            let (message, reason) = parts(Syntax::Hermes).message(text, StopReason::Eos);
            (json!(message), json!(reason))
        };
        let (whole, _) = message(TEXT);
        assert_eq!(whole["reasoning_content"], "Hm");
        assert_eq!(whole["reasoning"], "Hm");
        assert_eq!(whole["content"], "I look.");
        assert_eq!(
            whole["tool_calls"][1]["function"],
            json!({"name": "b", "arguments": "{}"})
        );
        let (only_call, _) = message(TEXT.split("I look.").nth(1).unwrap());
        assert_eq!(only_call["content"], Value::Null);
        assert!(only_call.get("reasoning_content").is_none());
        let nothing = json!({"role": "assistant", "content": "", "refusal": null});
        assert_eq!(message(""), (nothing, json!("stop")));
    }

    #[test]
    fn a_delta_has_text_and_reasoning_in_the_order_of_the_answer() {
        let written = |text: &str| {
            let thinking = Some(ReasoningFormat::Channels);
            let calls = Some(Syntax::Harmony);
            let parsing = Parsing {
                calls,
                thinking,
                ..PARSING
            };
            let mut parts = Parts::of(&parsing, "chatcmpl-1").unwrap();
            serde_json::to_string(&parts.push(text)).unwrap()
        };
        let (text, thought) = (
            "<|channel|>final<|message|>a<|end|>",
            "<|channel|>analysis<|message|>b<|end|>",
        );
        let start = "<|start|>assistant";
        assert_eq!(
            written(&format!("{text}{start}{thought}{start}{text}")),
            "{\"content\":\"aa\",\"reasoning_content\":\"b\",\"reasoning\":\"b\"}"
        );
        assert_eq!(
            written(&format!("{thought}{start}{text}")),
            "{\"reasoning_content\":\"b\",\"reasoning\":\"b\",\"content\":\"a\"}"
        );
    }

    #[test]
    fn the_reason_is_honest() {
        let reason = |text: &str, reason| json!(parts(Syntax::Hermes).message(text, reason).1);
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
        assert!(Parts::of(&Parsing::default(), "a").is_none());
    }
}
