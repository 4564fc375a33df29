//! Stream of an answer: `data:` chunks, then `data: [DONE]`.
//!
//! Chunks have no `id:` line. The `openai` package for Python remembers an id, and then parses the blank line after
//! every comment as an event without data, which fails. `vllm bench` expects only `data:` between two blank lines.

use super::answer::{
    ChatChunkChoice, ChatCompletionChunk, Chunk, CompletionChunk, Delta, FinishReason, Opening,
    Role, TextChoice, Usage,
};
use super::logprobs::List;
use super::parts::Parts;
use super::{Header, Kind};
use crate::answer::OrNull;
use crate::answer_format::OpenAiOptions;
use crate::choices::Layout;
use crate::error::{ApiError, Dialect};
use crate::render::{Render, write_data};
use serde::Serialize;
use worker_orcd_ipc::TokenId;
use worker_orcd_requests::stream::{PromptIds, Tokens};
use worker_orcd_requests::{Completion, Failure, Piece, StopReason};

pub type ChatChunk<'a> = Chunk<'a, ChatCompletionChunk, ChatChunkChoice>;
pub type TextChunk<'a> = Chunk<'a, CompletionChunk, TextChoice<Option<FinishReason>>>;

#[derive(Debug)]
pub struct Chunks {
    header: Header,
    /// Index of the choice.
    index: usize,
    options: OpenAiOptions,
    tokens_in: u32,
    /// Parser of the text. `None` if the text needs none.
    parts: Option<Parts>,
    /// `Some` if the chunks have the ids of their tokens.
    token_ids: Option<Tokens>,
    /// No chunk with text was written yet, on any connection.
    is_first: bool,
}

impl Chunks {
    /// Stream of the choice with this number and name.
    #[must_use]
    pub fn new(
        header: &Header,
        (index, name): (usize, &str),
        options: OpenAiOptions,
        tokens_in: u32,
    ) -> Self {
        Self {
            header: header.clone(),
            index,
            options,
            tokens_in,
            parts: Parts::of(&header.parsing, name),
            token_ids: None,
            is_first: true,
        }
    }

    /// Adds the ids of the tokens, which the options request. All pieces of the stream must be passed, also known ones.
    #[must_use]
    pub fn with_token_ids(self, token_ids: Tokens) -> Self {
        let token_ids = Some(token_ids).filter(|_| self.options.token_ids);
        Self { token_ids, ..self }
    }

    /// Takes the ids of the tokens after the last piece, up to those of this piece. The echo of the prompt has none.
    fn ids_of(&mut self, piece: &Piece) -> Option<Vec<TokenId>> {
        let ids = self.token_ids.as_mut()?;
        Some(match piece.echoes {
            true => Vec::new(),
            false => ids.take_through(piece.index),
        })
    }

    /// Ids of the prompt, for the first chunk of the choice.
    fn take_prompt_ids(&mut self) -> Option<PromptIds> {
        let is_first = std::mem::take(&mut self.is_first);
        let ids = self.token_ids.as_ref().filter(|_| is_first)?;
        Some(ids.of_prompt())
    }

    /// Writes a chunk of the choice. `piece`: none in the chunk of the role and in the last one. `reason`: in the last one.
    fn write(
        &mut self,
        delta: Delta,
        piece: Option<&Piece>,
        reason: Option<StopReason>,
        usage: Usage,
        out: &mut Vec<u8>,
    ) {
        let token_ids = match (piece, reason) {
            (Some(piece), _) => self.ids_of(piece),
            (None, Some(_)) => self.token_ids.as_mut().map(Tokens::take_rest),
            (None, None) => None,
        };
        let (kind, index) = (self.header.kind, self.index);
        let is_role = piece.is_none() && reason.is_none();
        let prompt_ids = match kind {
            // The chunk of the role has them. A resumed stream may begin after it, without any piece.
            Kind::Chat if !is_role => None,
            Kind::Chat | Kind::Completion => self.take_prompt_ids(),
        };
        let usage = match self.options {
            it if it.continuous_usage => Some(OrNull(Some(usage))),
            it if it.include_usage => Some(OrNull(None)),
            _ => None,
        };
        let listed = piece.and_then(|piece| piece.logprobs.as_deref());
        let logprobs = listed.map(|listed| List::of(kind, listed));
        match kind {
            Kind::Chat => {
                let ended = |reason| match &self.parts {
                    Some(parts) => parts.finish_reason(reason),
                    None => reason.into(),
                };
                let finish_reason = reason.map(ended);
                let choice = ChatChunkChoice {
                    index,
                    delta,
                    logprobs,
                    finish_reason,
                    token_ids,
                };
                let choices = (ChatCompletionChunk::Object, &[choice][..]);
                self.chunk(choices, usage, prompt_ids, out);
            }
            Kind::Completion => {
                // As in vLLM, the ids of an echoed prompt take the place of its text.
                let written = piece.filter(|piece| !piece.echoes || token_ids.is_none());
                let choice = TextChoice {
                    index,
                    text: written.map(|piece| piece.text.clone()).unwrap_or_default(),
                    logprobs,
                    finish_reason: reason.map(FinishReason::from),
                    prompt_token_ids: token_ids.is_some().then_some(OrNull(prompt_ids)),
                    token_ids,
                    prompt_logprobs: None,
                };
                let choices = (CompletionChunk::Object, &[choice][..]);
                self.chunk(choices, usage, None, out);
            }
        }
    }

    fn chunk(
        &self,
        (object, choices): (impl Serialize, &[impl Serialize]),
        usage: Option<OrNull<Usage>>,
        prompt_token_ids: Option<PromptIds>,
        out: &mut Vec<u8>,
    ) {
        let opening = Opening::of(&self.header, object);
        let chunk = Chunk {
            opening,
            choices,
            usage,
            prompt_token_ids,
        };
        write_data(out, &chunk);
    }
}

impl Render for Chunks {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.header.kind == Kind::Completion {
            return;
        }
        // Some clients turn an empty string into an empty text before the calls.
        let content = (!self.header.must_call).then(String::new);
        let delta = Delta {
            role: Some(Role::Assistant),
            content: Some(OrNull(content)),
            ..Delta::default()
        };
        let usage = Usage::so_far(self.tokens_in, 0);
        self.write(delta, None, None, usage, out);
    }

    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let tokens_out = match piece.echoes {
            true => 0,
            false => piece.index.saturating_add(1),
        };
        let delta = match (&mut self.parts, self.header.kind) {
            (Some(parts), _) => parts.push(&piece.text),
            (None, Kind::Chat) => Delta::of_text(piece.text.clone()),
            (None, Kind::Completion) => Delta::default(),
        };
        let usage = Usage::so_far(self.tokens_in, tokens_out);
        self.write(delta, Some(piece), None, usage, out);
    }

    fn known(&mut self, piece: &Piece) {
        self.ids_of(piece);
        self.is_first = false;
        if let Some(parts) = &mut self.parts {
            parts.push(&piece.text);
        }
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let delta = self.parts.as_mut();
        let delta = delta.map(|parts| parts.finish(completion.stop_reason));
        let (reason, usage) = (Some(completion.stop_reason), completion.into());
        self.write(delta.unwrap_or_default(), None, reason, usage, out);
    }

    fn end(&mut self, ends: &[Completion], layout: Layout, out: &mut Vec<u8>) {
        if self.options.include_usage {
            let usage = Some(OrNull(Some(Usage::of_all(ends, layout))));
            let none: [(); 0] = [];
            match self.header.kind {
                Kind::Chat => self.chunk((ChatCompletionChunk::Object, &none), usage, None, out),
                Kind::Completion => self.chunk((CompletionChunk::Object, &none), usage, None, out),
            }
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Clients raise an exception for an `error` in place of choices. No `[DONE]` follows, because it would signal
    /// success.
    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        write_data(out, &ApiError::of_failure(failure).body(Dialect::OpenAi));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;
    use worker_orcd_ipc::FinishReason;
    use worker_orcd_requests::testing::{Journal, SEAT, read, request, step};
    use worker_orcd_requests::{Drafts, NewRequest, StreamEvent};
    use worker_orcd_text::tools::{Parsing, Syntax};

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            id: "x-1".to_owned(),
            created: 3,
            model: "m \"q\"".to_owned(),
            fingerprint: "fp_1".to_owned(),
            parsing: Parsing::default(),
            must_call: false,
        }
    }

    fn completion() -> Completion {
        Completion {
            stop_reason: StopReason::MaxTokens,
            stop_sequence: None,
            tokens_in: 5,
            cached_tokens: 1,
            tokens_out: 2,
            drafts: Drafts {
                verified: 7,
                accepted: 1,
            },
            queued_for: None,
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

    fn chunks_of(kind: Kind, options: OpenAiOptions) -> Chunks {
        Chunks::new(&header(kind), (0, "x-1"), options, 5)
    }

    fn end(render: &mut Chunks, completion: Completion, out: &mut Vec<u8>) {
        render.finished(&completion, out);
        render.end(&[completion], Layout::default(), out);
    }

    fn first(text: &str) -> Piece {
        Piece {
            text: text.to_owned(),
            index: 0,
            number: 0,
            echoes: false,
            logprobs: None,
        }
    }

    const USAGE: OpenAiOptions = OpenAiOptions {
        include_usage: true,
        continuous_usage: false,
        token_ids: false,
        prompt_logprobs: None,
    };

    #[test]
    fn a_chat_stream_is_role_then_text_then_reason_then_usage() {
        let mut render = chunks_of(Kind::Chat, USAGE);
        let mut out = Vec::new();
        render.begin(&mut out);
        render.text(&first("a\"\n"), &mut out);
        end(&mut render, completion(), &mut out);
        assert!(out.ends_with(b"data: [DONE]\n\n"));
        let chunks = chunks(&out);
        assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(
            chunks[1],
            json!({
                "id": "x-1", "object": "chat.completion.chunk", "created": 3, "model": "m \"q\"",
                "system_fingerprint": "fp_1",
                "choices": [{"index": 0, "delta": {"content": "a\"\n"}, "logprobs": null,
                             "finish_reason": null}],
                "usage": null,
            })
        );
        assert_eq!(chunks[2]["choices"][0]["finish_reason"], "length");
        assert_eq!(chunks[3]["choices"], json!([]));
        assert_eq!(chunks[3]["usage"]["total_tokens"], 7);
        let details = json!({"cached_tokens": 1});
        assert_eq!(chunks[3]["usage"]["prompt_tokens_details"], details);
        let details = json!({"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 6});
        assert_eq!(chunks[3]["usage"]["completion_tokens_details"], details);
    }

    #[test]
    fn a_completion_stream_has_text_and_no_usage_unless_asked() {
        let mut render = chunks_of(Kind::Completion, OpenAiOptions::default());
        let mut out = Vec::new();
        render.begin(&mut out);
        render.text(&first("b"), &mut out);
        end(&mut render, completion(), &mut out);
        let chunks = chunks(&out);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks[0]["choices"][0]["text"], "b");
        assert!(chunks[0].get("usage").is_none());
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "length");
    }

    const CALL: [&str; 4] = [
        "I look.<tool",
        "_call>{\"name\": \"a\", ",
        "\"arguments\": {\"x\"",
        ": 1}}</tool_call>",
    ];

    fn calling() -> Chunks {
        let calls = Some(Syntax::Hermes);
        let parsing = Parsing {
            calls,
            ..Parsing::default()
        };
        let header = Header {
            parsing,
            ..header(Kind::Chat)
        };
        Chunks::new(&header, (0, "x-1"), USAGE, 5)
    }

    fn piece(number: usize) -> Piece {
        let number = number as u32;
        Piece {
            text: CALL[number as usize].to_owned(),
            index: number,
            number,
            echoes: false,
            logprobs: None,
        }
    }

    #[test]
    fn each_piece_of_an_answer_that_is_taken_apart_is_one_chunk() {
        let mut render = calling();
        let mut out = Vec::new();
        (0..CALL.len()).for_each(|number| render.text(&piece(number), &mut out));
        let stopped = Completion {
            stop_reason: StopReason::Eos,
            ..completion()
        };
        end(&mut render, stopped, &mut out);
        let chunks = chunks(&out);
        let deltas = chunks
            .iter()
            .map(|chunk| chunk["choices"][0]["delta"].clone());
        let deltas: Vec<Value> = deltas.take(CALL.len() + 1).collect();
        assert_eq!(deltas[0], json!({"content": "I look."}));
        assert_eq!(deltas[1], json!({}));
        let call = &deltas[2]["tool_calls"][0];
        assert_eq!(
            call["function"],
            json!({"name": "a", "arguments": "{\"x\""})
        );
        assert_eq!(
            (&call["index"], &call["type"]),
            (&json!(0), &json!("function"))
        );
        let more = json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]});
        assert_eq!(deltas[3], more);
        assert_eq!(deltas[4], json!({}));
        assert_eq!(chunks[4]["choices"][0]["finish_reason"], "tool_calls");
    }

    #[test]
    fn an_answer_that_is_held_to_calls_begins_without_a_text() {
        for (must_call, content) in [(true, Value::Null), (false, json!(""))] {
            let header = Header {
                must_call,
                ..header(Kind::Chat)
            };
            let mut out = Vec::new();
            Chunks::new(&header, (0, "x-1"), USAGE, 5).begin(&mut out);
            let delta = json!({"role": "assistant", "content": content});
            assert_eq!(chunks(&out)[0]["choices"][0]["delta"], delta);
        }
    }

    /// A stream that continues in another supervisor or on another connection.
    #[test]
    fn a_stream_goes_on_with_the_same_bytes_behind_what_the_client_has() {
        let tell = |known: usize| {
            let mut render = calling();
            (0..known).for_each(|number| render.known(&piece(number)));
            let mut out = Vec::new();
            (known..CALL.len()).for_each(|number| render.text(&piece(number), &mut out));
            end(&mut render, completion(), &mut out);
            String::from_utf8(out).unwrap()
        };
        let whole = tell(0);
        for known in 1..=CALL.len() {
            let rest = tell(known);
            assert!(
                whole.ends_with(&rest) && rest.len() < whole.len(),
                "{known}: {rest}"
            );
            let chunks = |text: &str| text.matches("data: ").count();
            assert_eq!(chunks(&whole) - chunks(&rest), known);
        }
    }

    /// Chunks of a stream of four tokens, of which the third completes a character and the last ends the answer. The
    /// client has the first `known` pieces. `begins`: it does not have the chunk of the role.
    fn with_token_ids(kind: Kind, known: u32, begins: bool) -> Vec<Value> {
        let mut journal = Journal::serving();
        let (id, mut stream) = journal.submit(NewRequest {
            prompt: [0, 1].map(TokenId).to_vec(),
            ..request("x-1")
        });
        let options = OpenAiOptions {
            token_ids: true,
            ..OpenAiOptions::default()
        };
        let mut render = chunks_of(kind, options).with_token_ids(stream.tokens());
        let drawn: Vec<_> = (0..).zip([1, 2, 3, 4]).collect();
        let drawn: Vec<_> = drawn.iter().map(|(at, token)| (id, *at, *token)).collect();
        let end = step(&drawn, &[(id, FinishReason::EndOfSequence)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        let (mut out, events) = (Vec::new(), read(&mut stream).0);
        if begins {
            render.begin(&mut out);
        }
        for event in events {
            match event {
                StreamEvent::Text(piece) if piece.number < known => render.known(&piece),
                StreamEvent::Text(piece) => render.text(&piece, &mut out),
                StreamEvent::Finished(end) => render.finished(&end, &mut out),
                other => panic!("{other:?}"),
            }
        }
        chunks(&out)
    }

    #[test]
    fn each_chunk_has_the_ids_of_its_tokens_and_the_first_those_of_the_prompt() {
        for kind in [Kind::Chat, Kind::Completion] {
            let whole = with_token_ids(kind, 0, true);
            let ids = |at: usize| &whole[at]["choices"][0]["token_ids"];
            let first = whole.len() - 3;
            let expected = json!([[1], [2, 3], [4]]);
            assert_eq!(
                json!([ids(first), ids(first + 1), ids(first + 2)]),
                expected
            );
            let of_prompt = whole.iter().map(|chunk| match kind {
                Kind::Chat => chunk.get("prompt_token_ids"),
                Kind::Completion => chunk["choices"][0].get("prompt_token_ids"),
            });
            let of_prompt: Vec<_> = of_prompt.collect();
            let (prompt, null) = (json!([0, 1]), Value::Null);
            match kind {
                Kind::Chat => assert_eq!(of_prompt, [Some(&prompt), None, None, None]),
                Kind::Completion => {
                    assert_eq!(of_prompt, [Some(&prompt), Some(&null), Some(&null)]);
                }
            }
            for known in [0, 1, 2] {
                let rest = with_token_ids(kind, known, false);
                assert_eq!(rest, whole[first + known as usize..], "{kind:?}, {known}");
            }
        }
    }

    #[test]
    fn usage_so_far_is_on_every_chunk_where_asked_for() {
        let options = OpenAiOptions {
            continuous_usage: true,
            ..USAGE
        };
        let mut render = chunks_of(Kind::Chat, options);
        let mut out = Vec::new();
        render.begin(&mut out);
        render.text(&first("b"), &mut out);
        end(&mut render, completion(), &mut out);
        let told: Vec<_> = chunks(&out)
            .iter()
            .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap())
            .collect();
        assert_eq!(told, [0, 1, 2, 2]);
        assert!(
            chunks(&out)
                .iter()
                .all(|it| it["usage"]["prompt_tokens"] == 5)
        );
    }
}
