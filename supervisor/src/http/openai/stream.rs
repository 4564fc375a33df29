//! A streamed answer: `data:` chunks, then `data: [DONE]`.
//!
//! All that does not change from chunk to chunk is written once, before the first.

use super::{Header, Kind, finish_reason};
use crate::engine::{Completion, Failure};
use crate::http::error::{ApiError, Dialect};
use crate::http::sse::{Render, write_data, write_json};
use serde_json::{Value, json};

pub(super) struct Chunks {
    kind: Kind,
    /// `data: {"id":…,"choices":[`: the same for every chunk.
    opening: Vec<u8>,
    include_usage: bool,
}

impl Chunks {
    pub(super) fn new(header: &Header, include_usage: bool) -> Self {
        let fixed = json!({
            "id": header.id,
            "object": header.kind.chunk_object(),
            "created": header.created,
            "model": header.model,
        });
        let mut opening = b"data: ".to_vec();
        write_json(&mut opening, &fixed);
        // Reopens the object that was just closed.
        opening.pop();
        opening.extend_from_slice(b",\"choices\":[");
        Self {
            kind: header.kind,
            opening,
            include_usage,
        }
    }

    fn chunk(&self, out: &mut Vec<u8>, choice: impl FnOnce(&mut Vec<u8>), usage: &Value) {
        out.extend_from_slice(&self.opening);
        choice(out);
        out.push(b']');
        if self.include_usage {
            out.extend_from_slice(b",\"usage\":");
            write_json(out, usage);
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn choice(&self, out: &mut Vec<u8>, piece: Option<&str>, finish_reason: Option<&str>) {
        out.extend_from_slice(b"{\"index\":0,");
        match (self.kind, piece) {
            (Kind::Chat, Some(piece)) => {
                out.extend_from_slice(b"\"delta\":{\"content\":");
                write_json(out, &piece);
                out.push(b'}');
            }
            (Kind::Chat, None) => out.extend_from_slice(b"\"delta\":{}"),
            (Kind::Completion, piece) => {
                out.extend_from_slice(b"\"text\":");
                write_json(out, &piece.unwrap_or_default());
            }
        }
        out.extend_from_slice(b",\"logprobs\":null,\"finish_reason\":");
        write_json(out, &finish_reason);
        out.push(b'}');
    }
}

impl Render for Chunks {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.kind == Kind::Completion {
            return;
        }
        let role = json!({
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": null,
            "finish_reason": null,
        });
        self.chunk(out, |out| write_json(out, &role), &Value::Null);
    }

    fn text(&mut self, piece: &str, out: &mut Vec<u8>) {
        self.chunk(out, |out| self.choice(out, Some(piece), None), &Value::Null);
    }

    fn progress(&mut self, _tokens_out: u32, _out: &mut Vec<u8>) {}

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let reason = finish_reason(completion.stop_reason);
        self.chunk(
            out,
            |out| self.choice(out, None, Some(reason)),
            &Value::Null,
        );
        if self.include_usage {
            self.chunk(out, |_| (), &usage(completion));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Clients raise on an `error` in place of choices; `[DONE]` would say that all went well.
    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        write_data(out, &ApiError::of_failure(failure).body(Dialect::OpenAi));
    }
}

pub(super) fn usage(completion: &Completion) -> Value {
    json!({
        "prompt_tokens": completion.tokens_in,
        "completion_tokens": completion.tokens_out,
        "total_tokens": completion.tokens_in + completion.tokens_out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StopReason;
    use std::time::Duration;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            id: "x-1".to_owned(),
            created: 3,
            model: "m \"q\"".to_owned(),
        }
    }

    fn completion() -> Completion {
        Completion {
            stop_reason: StopReason::MaxTokens,
            stop_sequence: None,
            tokens_in: 5,
            tokens_out: 2,
            first_token_after: Duration::ZERO,
            decode_time: Duration::ZERO,
            recoveries: 0,
        }
    }

    fn chunks(out: &[u8]) -> Vec<Value> {
        let text = std::str::from_utf8(out).unwrap();
        let lines = text
            .split_terminator("\n\n")
            .map(|line| line.strip_prefix("data: ").unwrap());
        lines
            .filter(|line| *line != "[DONE]")
            .map(|it| serde_json::from_str(it).unwrap())
            .collect()
    }

    #[test]
    fn a_chat_stream_is_role_then_text_then_reason_then_usage() {
        let mut render = Chunks::new(&header(Kind::Chat), true);
        let mut out = Vec::new();
        render.begin(&mut out);
        render.text("a\"\n", &mut out);
        render.finished(&completion(), &mut out);
        assert!(out.ends_with(b"data: [DONE]\n\n"));
        let chunks = chunks(&out);
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(
            chunks[1],
            json!({
                "id": "x-1", "object": "chat.completion.chunk", "created": 3, "model": "m \"q\"",
                "choices": [{"index": 0, "delta": {"content": "a\"\n"}, "logprobs": null,
                             "finish_reason": null}],
                "usage": null,
            })
        );
        assert_eq!(chunks[2]["choices"][0]["finish_reason"], "length");
        assert_eq!(chunks[3]["choices"], json!([]));
        assert_eq!(chunks[3]["usage"]["total_tokens"], 7);
    }

    #[test]
    fn a_completion_stream_has_text_and_no_usage_unless_asked() {
        let mut render = Chunks::new(&header(Kind::Completion), false);
        let mut out = Vec::new();
        render.begin(&mut out);
        render.text("b", &mut out);
        render.finished(&completion(), &mut out);
        let chunks = chunks(&out);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[0]["choices"][0]["text"], "b");
        assert!(chunks[0].get("usage").is_none());
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
    }
}
