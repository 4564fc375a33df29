//! Answer in one piece: a JSON object with all choices, written when the last of them has ended.

use super::answer::{
    self, Answer, ChatChoice, ChatCompletion, FinishReason, Message, Opening, TextChoice, Usage,
};
use super::logprobs::{Column, List, fill};
use super::parts::Parts;
use super::{Header, Kind};
use crate::answer::OrNull;
use crate::answer_format::OpenAiOptions;
use crate::choices::Layout;
use serde::Serialize;
use worker_orcd_ipc::TokenId;
use worker_orcd_requests::stream::{PromptIds, Tokens};
use worker_orcd_requests::{Completion, Piece, RequestStream};

/// Choice, as received so far.
#[derive(Debug)]
pub struct Gathered {
    name: String,
    text: String,
    logprobs: Option<List>,
    options: OpenAiOptions,
    tokens: Tokens,
    /// `Some` if the choice has log probabilities of its prompt.
    prompt_logprobs: Option<Column>,
}

impl Gathered {
    /// Choice without text.
    #[must_use]
    pub fn new(stream: &RequestStream, kind: Kind, options: OpenAiOptions) -> Self {
        Self {
            // The ids of its tool calls are derived from it.
            name: stream.job_id().to_owned(),
            text: String::new(),
            logprobs: stream.has_logprobs().then(|| List::new(kind)),
            options,
            tokens: stream.tokens(),
            prompt_logprobs: None,
        }
    }

    pub fn push(&mut self, piece: &Piece) {
        // As in vLLM, the ids of an echoed prompt take the place of its text.
        if !piece.echoes || !self.options.token_ids {
            self.text.push_str(&piece.text);
        }
        if let (Some(list), Some(listed)) = (&mut self.logprobs, &piece.logprobs) {
            list.add(listed);
        }
    }

    /// Ids of the prompt, if they are requested.
    fn prompt_ids(&self) -> Option<PromptIds> {
        self.options.token_ids.then(|| self.tokens.of_prompt())
    }

    /// Ids of the generated tokens, if they are requested.
    fn take_ids(&mut self) -> Option<Vec<TokenId>> {
        self.options.token_ids.then(|| self.tokens.take_rest())
    }

    /// Log probabilities of the prompt, if they are requested.
    fn prompt_column(&self) -> Option<Column> {
        let top = self.options.prompt_logprobs?;
        let prompt = self.tokens.scored_prompt()?;
        let ids = self.tokens.of_prompt();
        Some(Column::of_prompt(&prompt, ids.as_slice(), top))
    }

    /// Takes the columns of the choice, in the order of its fields, and leaves gaps.
    fn take_columns(&mut self, kind: Kind) -> Vec<Column> {
        let mut columns = self.logprobs.as_mut().map(List::take).unwrap_or_default();
        let prompt = match kind {
            Kind::Chat => None,
            Kind::Completion => self.prompt_column(),
        };
        self.prompt_logprobs = prompt.is_some().then(Column::gap);
        columns.extend(prompt);
        columns
    }

    fn of_text(mut self, index: usize, end: &Completion) -> TextChoice<FinishReason> {
        TextChoice {
            index,
            prompt_token_ids: self.prompt_ids().map(|ids| OrNull(Some(ids))),
            token_ids: self.take_ids(),
            text: self.text,
            logprobs: self.logprobs,
            finish_reason: end.stop_reason.into(),
            prompt_logprobs: self.prompt_logprobs,
        }
    }

    fn of_chat(mut self, header: &Header, index: usize, end: &Completion) -> ChatChoice {
        let token_ids = self.take_ids();
        let (message, finish_reason) = match Parts::of(&header.parsing, &self.name) {
            Some(parts) => parts.message(&self.text, end.stop_reason),
            None => (Message::of_text(self.text), end.stop_reason.into()),
        };
        ChatChoice {
            index,
            message,
            logprobs: self.logprobs,
            finish_reason,
            token_ids,
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
    let taken = choices.iter_mut().map(|it| it.take_columns(header.kind));
    let mut columns: Vec<Column> = taken.flatten().collect();
    let usage = Usage::of_all(ends, layout);
    // All choices of a chat have the same prompt.
    let first = choices.first().filter(|_| header.kind == Kind::Chat);
    let prompt_token_ids = first.and_then(Gathered::prompt_ids);
    let prompt = first.and_then(Gathered::prompt_column);
    let prompt_logprobs = prompt.is_some().then(Column::gap);
    columns.extend(prompt);
    let choices = choices.into_iter().zip(ends).enumerate();
    let json = match header.kind {
        Kind::Chat => json(&ChatAnswer {
            opening: Opening::of(header, ChatCompletion::Object),
            choices: choices
                .map(|(index, (choice, end))| choice.of_chat(header, index, end))
                .collect(),
            usage,
            prompt_token_ids,
            prompt_logprobs,
        }),
        Kind::Completion => json(&TextAnswer {
            opening: Opening::of(header, answer::Completion::Object),
            choices: choices
                .map(|(index, (choice, end))| choice.of_text(index, end))
                .collect(),
            usage,
            prompt_token_ids,
            prompt_logprobs,
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
    use worker_orcd_ipc::{DrawnLogprobs, Logprobs, Scored, StepReport, TokenId};
    use worker_orcd_requests::testing::{self, Journal, SEAT, params, request, step};
    use worker_orcd_requests::{Drafts, Listed, ListedToken, NewRequest, StopReason};
    use worker_orcd_text::tools::Parsing;

    fn answered(kind: Kind, tokens: usize) -> Vec<u8> {
        answered_all("a", kind, tokens, Layout::default())
    }

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            id: "job".to_owned(),
            created: 3,
            model: "m".to_owned(),
            fingerprint: "fp".to_owned(),
            parsing: Parsing::default(),
            must_call: false,
        }
    }

    fn completion() -> Completion {
        Completion {
            stop_reason: StopReason::MaxTokens,
            stop_sequence: None,
            tokens_in: 2,
            cached_tokens: 1,
            tokens_out: 1,
            drafts: Drafts {
                verified: 3,
                accepted: 1,
            },
            queued_for: None,
            first_token_after: Duration::ZERO,
            decode_time: Duration::ZERO,
            recoveries: 0,
        }
    }

    fn answered_all(text: &str, kind: Kind, tokens: usize, layout: Layout) -> Vec<u8> {
        let token = ListedToken {
            token: TokenId(0),
            offset: 0,
            logprobs: Some(Logprobs {
                of_token: -0.5,
                rank: 1,
                top: vec![],
            }),
        };
        let listed = Listed {
            tokens: vec![token; tokens],
            text: testing::text(),
        };
        let mut journal = Journal::serving();
        let mut choice = |number| {
            let (_, stream) = journal.submit(request(&format!("job.{number}")));
            let mut choice = Gathered::new(&stream, kind, OpenAiOptions::default());
            choice.text = text.repeat(number);
            choice.logprobs = (tokens > 0).then(|| List::of(kind, &listed));
            choice
        };
        let choices = (1..=layout.count()).map(&mut choice).collect();
        let ends = vec![completion(); layout.count()];
        answer(&header(kind), choices, &ends, layout)
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
        let drafts = Drafts {
            verified: 12,
            accepted: 4,
        };
        assert_eq!(answer["usage"], json!(Usage::whole(4, 4, 2, drafts)));
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
                    "completion_tokens_details": {
                        "accepted_prediction_tokens": 1, "rejected_prediction_tokens": 2,
                    },
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

    /// Answer of two choices to a prompt of the tokens `a`, `b` and the first half of a character.
    fn with_prompt(kind: Kind) -> Value {
        let mut journal = Journal::serving();
        let options = OpenAiOptions {
            token_ids: true,
            prompt_logprobs: Some(1),
            ..OpenAiOptions::default()
        };
        let choices = ["job.0", "job.1"].map(|name| {
            let (id, stream) = journal.submit(NewRequest {
                prompt: [0, 1, 2].map(TokenId).to_vec(),
                params: params(|it| it.logprobs = Some(0)),
                prompt_logprobs: Some(1),
                ..request(name)
            });
            let of = |of_token, rank, likely| Logprobs {
                of_token,
                rank,
                top: vec![(TokenId(likely), -0.5)],
            };
            let drawn = Logprobs {
                top: vec![],
                ..of(-0.5, 1, 0)
            };
            let report = StepReport {
                scored: vec![Scored {
                    request: id,
                    first: 0,
                    logprobs: vec![of(-0.5, 1, 1), of(f32::NEG_INFINITY, 7, 0)],
                }],
                logprobs: vec![DrawnLogprobs {
                    request: id,
                    index: 0,
                    logprobs: drawn,
                }],
                ..step(&[(id, 0, 4)], &[])
            };
            journal.requests.step(SEAT, &report, journal.now).unwrap();
            Gathered::new(&stream, kind, options)
        });
        let body = answer(
            &header(kind),
            choices.into(),
            &[completion(), completion()],
            Layout { prompts: 1, n: 2 },
        );
        serde_json::from_slice(&body).expect("it is JSON")
    }

    #[test]
    fn ids_and_log_probabilities_of_the_prompt_are_where_vllm_has_them() {
        let ids = json!([0, 1, 2]);
        let logprobs = json!([
            null,
            {"1": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
            {
                "2": {"logprob": -9999.0, "rank": 7, "decoded_token": "\u{fffd}"},
                "0": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            },
        ]);
        let chat = with_prompt(Kind::Chat);
        assert_eq!(chat["prompt_token_ids"], ids);
        assert_eq!(chat["prompt_logprobs"], logprobs);
        let completion = with_prompt(Kind::Completion);
        assert!(completion.get("prompt_logprobs").is_none());
        assert!(completion.get("prompt_token_ids").is_none());
        for index in 0..2 {
            let choice = &chat["choices"][index];
            assert_eq!(choice["token_ids"], json!([4]));
            assert!(choice.get("prompt_token_ids").is_none());
            let choice = &completion["choices"][index];
            assert_eq!(choice["token_ids"], json!([4]));
            assert_eq!(choice["prompt_token_ids"], ids);
            assert_eq!(choice["prompt_logprobs"], logprobs);
            assert_eq!(choice["logprobs"]["tokens"], json!([]));
        }
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
