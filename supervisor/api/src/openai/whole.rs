//! Answer in one piece: a JSON object with all choices, written when the last of them has ended.

use super::answer::{
    self, Answer, ChatChoice, ChatCompletion, FinishReason, Message, Opening, TextChoice, Usage,
};
use super::logprobs::{List, fill};
use super::parts::Parts;
use super::{Header, Kind};
use crate::choices::Layout;
use serde::Serialize;
use worker_orcd_requests::{Completion, Piece};

/// Choice, as received so far.
#[derive(Debug)]
pub struct Gathered {
    name: String,
    text: String,
    logprobs: Option<List>,
}

impl Gathered {
    /// Choice without text. `name`: the job id, which the ids of its tool calls are derived from.
    #[must_use]
    pub fn new(name: String, kind: Kind, has_logprobs: bool) -> Self {
        Self {
            name,
            text: String::new(),
            logprobs: has_logprobs.then(|| List::new(kind)),
        }
    }

    pub fn push(&mut self, piece: &Piece) {
        self.text.push_str(&piece.text);
        if let (Some(list), Some(listed)) = (&mut self.logprobs, &piece.logprobs) {
            list.add(listed);
        }
    }

    fn of_text(self, index: usize, end: &Completion) -> TextChoice<FinishReason> {
        TextChoice {
            index,
            text: self.text,
            logprobs: self.logprobs,
            finish_reason: end.stop_reason.into(),
        }
    }

    fn of_chat(self, header: &Header, index: usize, end: &Completion) -> ChatChoice {
        let (message, finish_reason) = match Parts::of(&header.parsing, &self.name) {
            Some(parts) => parts.message(&self.text, end.stop_reason),
            None => (Message::of_text(self.text), end.stop_reason.into()),
        };
        ChatChoice {
            index,
            message,
            logprobs: self.logprobs,
            finish_reason,
        }
    }
}

pub type ChatAnswer<'a> = Answer<'a, ChatCompletion, ChatChoice>;
pub type TextAnswer<'a> = Answer<'a, answer::Completion, TextChoice<FinishReason>>;

/// Serializes the answer. The log probabilities of a long answer are tens of megabytes, so they are written once, into
/// a buffer of the right size.
#[must_use]
pub fn answer(
    header: &Header,
    mut choices: Vec<Gathered>,
    ends: &[Completion],
    layout: Layout,
) -> Vec<u8> {
    let lists = choices.iter_mut().filter_map(|it| it.logprobs.as_mut());
    let columns = lists.flat_map(List::take).collect();
    let usage = Usage::of_all(ends, layout);
    let choices = choices.into_iter().zip(ends).enumerate();
    let json = match header.kind {
        Kind::Chat => json(&ChatAnswer {
            opening: Opening::of(header, ChatCompletion::Object),
            choices: choices
                .map(|(index, (choice, end))| choice.of_chat(header, index, end))
                .collect(),
            usage,
        }),
        Kind::Completion => json(&TextAnswer {
            opening: Opening::of(header, answer::Completion::Object),
            choices: choices
                .map(|(index, (choice, end))| choice.of_text(index, end))
                .collect(),
            usage,
        }),
    };
    fill(&json, columns)
}

fn json(answer: &impl Serialize) -> String {
    // Serializing these types cannot fail.
    serde_json::to_string(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::logprobs::GAP;
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;
    use worker_orcd_ipc::{Logprobs, TokenId};
    use worker_orcd_requests::testing;
    use worker_orcd_requests::{Listed, ListedToken, StopReason};
    use worker_orcd_text::tools::Parsing;

    fn answered(kind: Kind, tokens: usize) -> Vec<u8> {
        answered_all("a", kind, tokens, Layout::default())
    }

    fn answered_all(text: &str, kind: Kind, tokens: usize, layout: Layout) -> Vec<u8> {
        let header = Header {
            kind,
            id: "job".to_owned(),
            created: 3,
            model: "m".to_owned(),
            fingerprint: "fp".to_owned(),
            parsing: Parsing::default(),
            must_call: false,
        };
        let completion = Completion {
            stop_reason: StopReason::MaxTokens,
            stop_sequence: None,
            tokens_in: 2,
            cached_tokens: 1,
            tokens_out: 1,
            queued_for: None,
            first_token_after: Duration::ZERO,
            decode_time: Duration::ZERO,
            recoveries: 0,
        };
        let token = ListedToken {
            token: TokenId(0),
            offset: 0,
            logprobs: Some(Logprobs {
                of_token: -0.5,
                top: vec![],
            }),
        };
        let listed = Listed {
            tokens: vec![token; tokens],
            text: testing::text(),
        };
        let choice = |number| Gathered {
            name: format!("job.{number}"),
            text: text.repeat(number),
            logprobs: (tokens > 0).then(|| List::of(kind, &listed)),
        };
        let choices = (1..=layout.count()).map(choice).collect();
        let ends = vec![completion; layout.count()];
        answer(&header, choices, &ends, layout)
    }

    #[test]
    fn choices_are_in_their_order_and_each_prompt_is_counted_once() {
        let layout = Layout { prompts: 2, n: 2 };
        let body = answered_all("a", Kind::Completion, 0, layout);
        let answer: Value = serde_json::from_slice(&body).expect("it is JSON");
        let choices = answer["choices"].as_array().expect("choices");
        let told = choices.iter().map(|it| (&it["index"], &it["text"]));
        let expected = json!([[0, "a"], [1, "aa"], [2, "aaa"], [3, "aaaa"]]);
        assert_eq!(json!(told.collect::<Vec<_>>()), expected);
        assert_eq!(answer["usage"], json!(Usage::whole(4, 4, 2)));
    }

    #[test]
    fn an_answer_has_the_fields_of_its_api_with_log_probabilities_and_without() {
        let of = |object, choice: Value| {
            json!({
                "id": "job", "object": object, "created": 3, "model": "m", "system_fingerprint": "fp",
                "choices": [choice],
                "usage": {
                    "prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3,
                    "prompt_tokens_details": {"cached_tokens": 1},
                },
            })
        };
        let read = |kind, tokens| -> Value {
            serde_json::from_slice(&answered(kind, tokens)).expect("it is JSON")
        };
        let message = json!({"role": "assistant", "content": "a", "refusal": null});
        let choice =
            json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "length"});
        assert_eq!(read(Kind::Chat, 0), of("chat.completion", choice));
        let logprobs = json!({
            "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0],
        });
        let choice =
            json!({"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "length"});
        assert_eq!(read(Kind::Completion, 1), of("text_completion", choice));
    }

    #[test]
    fn a_text_that_equals_a_gap_is_no_gap() {
        let text = GAP.repeat(3);
        for kind in [Kind::Chat, Kind::Completion] {
            let answered = answered_all(&text, kind, 2, Layout::default());
            let answer: Value = serde_json::from_slice(&answered).unwrap();
            let choice = &answer["choices"][0];
            let (written, listed) = match kind {
                Kind::Chat => (&choice["message"]["content"], "content"),
                Kind::Completion => (&choice["text"], "tokens"),
            };
            assert_eq!(*written, text);
            assert_eq!(choice["logprobs"][listed].as_array().map(Vec::len), Some(2));
        }
    }

    #[test]
    fn a_long_answer_with_log_probabilities_takes_its_own_bytes_and_no_more() {
        for (kind, n) in [(Kind::Chat, 1), (Kind::Completion, 1), (Kind::Chat, 3)] {
            let body = answered_all("a", kind, 5000, Layout { prompts: 1, n });
            let unused = body.capacity() - body.len();
            assert!(unused < 1000, "{unused} beside {}", body.len());
        }
    }
}
