//! Answer in one piece: a JSON object with all choices, written when the last of them has ended.

use super::logprobs::List;
use super::parts::Parts;
use super::stream::whole_usage;
use super::{Header, Kind, finish_reason};
use crate::choices::Layout;
use crate::render::write_json;
use serde::Serialize;
use serde_json::{Value, json};
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
}

/// Fields before `choices`.
#[derive(Serialize)]
struct Opening<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
}

/// Fields of a choice before its log probabilities.
#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Serialized choice, without its log probabilities.
struct Written {
    before: Vec<u8>,
    logprobs: Option<List>,
    after: Vec<u8>,
}

/// Serializes the answer. The log probabilities of a long answer are tens of megabytes, so they are written once, into
/// a buffer of the right size.
#[must_use]
pub fn answer(
    header: &Header,
    choices: Vec<Gathered>,
    ends: &[Completion],
    layout: Layout,
) -> Vec<u8> {
    let (mut tokens_in, mut cached_tokens) = (Vec::new(), Vec::new());
    let (mut tokens_out, mut written) = (0_u32, Vec::new());
    for (index, (choice, completion)) in choices.into_iter().zip(ends).enumerate() {
        tokens_in.push(completion.tokens_in);
        cached_tokens.push(completion.cached_tokens);
        tokens_out = tokens_out.saturating_add(completion.tokens_out);
        let (before, after) = around(header, (index, &choice.name), &choice.text, completion);
        written.push(Written {
            before,
            logprobs: choice.logprobs,
            after,
        });
    }
    let opening = Opening {
        id: &header.id,
        object: header.kind.object(),
        created: header.created,
        model: &header.model,
        system_fingerprint: &header.fingerprint,
    };
    let mut out = Vec::new();
    write_json(&mut out, &opening);
    // Reopens the JSON object: removes its closing brace.
    out.pop();
    out.extend_from_slice(b",\"choices\":[");
    let mut end = b"],\"usage\":".to_vec();
    let usage = whole_usage(
        layout.prompt_tokens(tokens_in),
        tokens_out,
        layout.prompt_tokens(cached_tokens),
    );
    write_json(&mut end, &usage);
    end.push(b'}');
    let bytes = |choice: &Written| {
        let list = choice.logprobs.as_ref().map_or(4, List::bytes);
        choice.before.len() + list + choice.after.len() + 1
    };
    out.reserve_exact(end.len() + written.iter().map(bytes).sum::<usize>());
    for (index, choice) in written.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&choice.before);
        match choice.logprobs {
            Some(list) => list.write(&mut out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(&choice.after);
    }
    out.extend_from_slice(&end);
    out
}

/// Fields before and after the log probabilities of the choice with this number and name.
fn around(
    header: &Header,
    (index, name): (usize, &str),
    text: &str,
    completion: &Completion,
) -> (Vec<u8>, Vec<u8>) {
    let reason = completion.stop_reason;
    let parts = Parts::of(header.parsing, name);
    let (message, text, finish_reason) = match (header.kind, parts) {
        (Kind::Chat, Some(parts)) => {
            let (message, finish_reason) = parts.message(text, reason);
            (Some(message), None, finish_reason)
        }
        (Kind::Chat, None) => {
            let message = json!({"role": "assistant", "content": text, "refusal": null});
            (Some(message), None, finish_reason(reason))
        }
        (Kind::Completion, _) => (None, Some(text), finish_reason(reason)),
    };
    let choice = Choice {
        index,
        message,
        text,
    };
    let mut before = Vec::new();
    write_json(&mut before, &choice);
    before.pop();
    before.extend_from_slice(b",\"logprobs\":");
    let mut after = b",\"finish_reason\":".to_vec();
    write_json(&mut after, &finish_reason);
    after.push(b'}');
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use worker_orcd_ipc::{Logprobs, TokenId};
    use worker_orcd_requests::testing;
    use worker_orcd_requests::{Listed, ListedToken, StopReason};
    use worker_orcd_text::tools::Parsing;

    fn answered(kind: Kind, tokens: usize) -> Vec<u8> {
        answered_all(kind, tokens, Layout::default())
    }

    fn answered_all(kind: Kind, tokens: usize, layout: Layout) -> Vec<u8> {
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
            text: "a".repeat(number),
            logprobs: (tokens > 0).then(|| List::of(kind, &listed)),
        };
        let choices = (1..=layout.count()).map(choice).collect();
        let ends = vec![completion; layout.count()];
        answer(&header, choices, &ends, layout)
    }

    #[test]
    fn choices_are_in_their_order_and_each_prompt_is_counted_once() {
        let layout = Layout { prompts: 2, n: 2 };
        let body = answered_all(Kind::Completion, 0, layout);
        let answer: Value = serde_json::from_slice(&body).expect("it is JSON");
        let choices = answer["choices"].as_array().expect("choices");
        let told = choices.iter().map(|it| (&it["index"], &it["text"]));
        let expected = json!([[0, "a"], [1, "aa"], [2, "aaa"], [3, "aaaa"]]);
        assert_eq!(json!(told.collect::<Vec<_>>()), expected);
        assert_eq!(answer["usage"], whole_usage(4, 4, 2));
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
    fn a_long_answer_with_log_probabilities_takes_its_own_bytes_and_no_more() {
        for (kind, n) in [(Kind::Chat, 1), (Kind::Completion, 1), (Kind::Chat, 3)] {
            let body = answered_all(kind, 5000, Layout { prompts: 1, n });
            let unused = body.capacity() - body.len();
            assert!(unused < 1000, "{unused} beside {}", body.len());
        }
    }
}
