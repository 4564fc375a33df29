//! OpenAI's fields, and what this worker makes of them.

use super::Kind;
use crate::config::RequestLimits;
use crate::http::error::ApiError;
use crate::http::fields::{Constraint, Fields};
use crate::http::generation::{GenerationRequest, Input};
use crate::http::reading::{read_messages, read_sampling, read_stop};
use serde_json::Value;
use uuid::Uuid;
use worker_orcd_ipc::TokenId;

/// `/v1/completions` without `max_tokens`, as the OpenAI API has it.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

#[derive(Debug, Clone, PartialEq)]
pub struct OpenAiRequest {
    pub generation: GenerationRequest,
    /// `None` for a whole answer.
    pub stream: Option<StreamOptions>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    pub include_usage: bool,
}

/// Fields of the OpenAI API that are refused whatever they say, so that the refusal can tell
/// them from typing mistakes.
const UNSUPPORTED: &[&str] = &[
    "audio",
    "function_call",
    "functions",
    "metadata",
    "moderation",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "user",
    "verbosity",
    "web_search_options",
];

/// # Errors
/// Everything that is wrong with the request.
pub fn read(
    mut fields: Fields,
    limits: &RequestLimits,
    vocabulary: u32,
    kind: Kind,
) -> Result<OpenAiRequest, ApiError> {
    let input = match kind {
        Kind::Chat => {
            // The body's size and the model's context bound a conversation.
            let messages = read_messages(&mut fields, usize::MAX).map(Input::Messages);
            fields.required("messages", messages)
        }
        Kind::Completion => {
            let prompt = read_prompt(&mut fields, vocabulary);
            fields.required("prompt", prompt)
        }
    };
    let max_tokens = read_max_tokens(&mut fields, limits, kind);
    let sampling = read_sampling(&mut fields, u64::from(vocabulary));
    let stop = read_stop(&mut fields);
    let stream = read_stream(&mut fields);
    let ignore_eos = fields.boolean("ignore_eos").unwrap_or(false);
    accept_harmless(&mut fields, kind);
    fields.refuse_rest(UNSUPPORTED);
    fields.finish().map_err(ApiError::invalid)?;
    let input = input.ok_or_else(|| ApiError::invalid(Vec::new()))?;
    let generation = GenerationRequest {
        job_id: format!("{}{}", kind.id_prefix(), Uuid::new_v4().simple()),
        input,
        sampling,
        max_tokens,
        stop,
        ignore_eos,
        on_fault: None,
    };
    Ok(OpenAiRequest { generation, stream })
}

/// A text, a list of one text, or token ids.
fn read_prompt(fields: &mut Fields, vocabulary: u32) -> Option<Input> {
    let refuse = |fields: &mut Fields, constraint, message: &str| {
        fields.error("prompt", constraint, message);
        None
    };
    match fields.take("prompt")? {
        Value::String(text) if !text.is_empty() => Some(Input::Prompt(text)),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] if !text.is_empty() => Some(Input::Prompt(text.clone())),
            [Value::String(_), _, ..] | [Value::Array(_), ..] => {
                refuse(fields, Constraint::Unsupported, "may be one prompt only")
            }
            ids => {
                let is_token = |id: &u64| *id < u64::from(vocabulary);
                let token = |id: &Value| Some(TokenId(id.as_u64().filter(is_token)? as u32));
                match ids.iter().map(token).collect::<Option<Vec<_>>>() {
                    Some(tokens) if !tokens.is_empty() => Some(Input::Tokens(tokens)),
                    _ => refuse(fields, Constraint::Range, "must hold ids of the vocabulary"),
                }
            }
        },
        _ => refuse(
            fields,
            Constraint::Type,
            "must be a non-empty string, or token ids",
        ),
    }
}

/// The newer name and the older one for the same thing.
fn read_max_tokens(fields: &mut Fields, limits: &RequestLimits, kind: Kind) -> u32 {
    let range = 1..=u64::from(limits.max_tokens_out);
    let newer = match kind {
        Kind::Chat => fields.integer("max_completion_tokens", range.clone()),
        Kind::Completion => None,
    };
    let older = fields.integer("max_tokens", range);
    if newer.is_some() && older.is_some() && newer != older {
        let message = "contradicts max_completion_tokens";
        fields.error("max_tokens", Constraint::Conflict, message);
    }
    let default = match kind {
        Kind::Chat => limits.max_tokens_out,
        Kind::Completion => limits.max_tokens_out.min(DEFAULT_COMPLETION_TOKENS),
    };
    newer.or(older).map_or(default, |tokens| tokens as u32)
}

fn read_stream(fields: &mut Fields) -> Option<StreamOptions> {
    let streams = fields.boolean("stream").unwrap_or(false);
    let include_usage = match fields.take("stream_options") {
        None => false,
        Some(_) if !streams => {
            fields.error("stream_options", Constraint::Conflict, "needs stream: true");
            false
        }
        Some(Value::Object(options)) => {
            let mut options = Fields::new(options);
            let include_usage = options.boolean("include_usage").unwrap_or(false);
            options.only(
                "include_obfuscation",
                |value| *value == Value::Bool(false),
                "is not supported: chunks are not padded",
            );
            options.refuse_rest(&[]);
            for error in options.finish().err().into_iter().flatten() {
                let name = format!("stream_options.{}", error.field);
                fields.error(&name, error.constraint, error.message);
            }
            include_usage
        }
        Some(_) => {
            fields.error("stream_options", Constraint::Type, "must be an object");
            false
        }
    };
    streams.then_some(StreamOptions { include_usage })
}

/// Fields that may say what is so anyway, and nothing else.
fn accept_harmless(fields: &mut Fields, kind: Kind) {
    let is_empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    let is_false = |value: &Value| *value == Value::Bool(false);
    fields.only(
        "n",
        |value| value.as_u64() == Some(1),
        "must be 1: one answer at a time",
    );
    fields.only("logit_bias", is_empty, "is not supported");
    match kind {
        Kind::Chat => {
            fields.only("logprobs", is_false, "is not supported");
            fields.only(
                "top_logprobs",
                |value| value.as_u64() == Some(0),
                "is not supported",
            );
            fields.only("tools", is_empty, "is not supported");
            fields.only("tool_choice", |value| *value == "none", "is not supported");
            fields.only(
                "parallel_tool_calls",
                Value::is_boolean,
                "must be true or false",
            );
            fields.only("store", is_false, "is not supported: nothing is stored");
            let is_text = |value: &Value| *value == serde_json::json!({"type": "text"});
            fields.only(
                "response_format",
                is_text,
                "may be {\"type\": \"text\"} only",
            );
            let is_text = |value: &Value| *value == serde_json::json!(["text"]);
            fields.only("modalities", is_text, "may be [\"text\"] only");
        }
        Kind::Completion => {
            fields.only("best_of", |value| value.as_u64() == Some(1), "must be 1");
            fields.only("echo", is_false, "is not supported");
            // For `logprobs` of this endpoint even 0 asks for the drawn token's.
            fields.only("logprobs", |_| false, "is not supported");
            fields.only("suffix", |value| *value == "", "is not supported");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OnFault;
    use crate::http::error::Dialect;
    use serde_json::json;

    const LIMITS: RequestLimits = RequestLimits {
        max_tokens_in: None,
        max_tokens_out: 100,
        max_prompt_chars: 1000,
        inference_timeout: None,
        on_fault: OnFault::Resume,
    };

    fn read_json(kind: Kind, mut body: Value) -> Result<OpenAiRequest, String> {
        body.as_object_mut()
            .unwrap()
            .entry("seed")
            .or_insert(json!(1));
        let Value::Object(map) = body else {
            unreachable!("tests write objects")
        };
        read(Fields::new(map), &LIMITS, 10, kind)
            .map_err(|error| error.body(Dialect::OpenAi)["error"]["message"].to_string())
    }

    fn chat(extra: Value) -> Result<OpenAiRequest, String> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        read_json(Kind::Chat, body)
    }

    #[test]
    fn what_clients_always_send_is_accepted() {
        let request = chat(json!({
            "n": 1, "stream": true, "stream_options": {"include_usage": true}, "tools": [],
            "logprobs": false, "response_format": {"type": "text"}, "temperature": 0.5,
            "max_completion_tokens": 7, "stop": ["x"], "seed": 5, "user": null,
        }))
        .unwrap();
        assert_eq!(
            request.stream,
            Some(StreamOptions {
                include_usage: true
            })
        );
        assert_eq!(request.generation.max_tokens, 7);
        assert_eq!(request.generation.sampling.seed, 5);
        assert!(request.generation.job_id.starts_with("chatcmpl-"));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (field, value) in [
            ("n", json!(2)),
            ("tools", json!([{"type": "function"}])),
            ("logprobs", json!(true)),
            ("logit_bias", json!({"5": 1})),
            ("response_format", json!({"type": "json_object"})),
            ("user", json!("me")),
            ("reasoning_effort", json!("low")),
            ("max_tokens", json!(101)),
            ("stream_options", json!({"include_usage": true})),
            ("temprature", json!(1)),
        ] {
            let message = chat(json!({ field: value })).unwrap_err();
            assert!(message.contains(field), "{field}: {message}");
        }
        let message = chat(json!({"stream": true, "stream_options": {"x": 1}})).unwrap_err();
        assert!(message.contains("stream_options.x"), "{message}");
    }

    #[test]
    fn prompts_are_one_text_or_token_ids() {
        let input = |prompt: Value| {
            let read = read_json(Kind::Completion, json!({"prompt": prompt}));
            read.map(|request| request.generation.input)
        };
        assert_eq!(input(json!("a")), Ok(Input::Prompt("a".to_owned())));
        assert_eq!(input(json!(["a"])), Ok(Input::Prompt("a".to_owned())));
        assert_eq!(
            input(json!([1, 9])),
            Ok(Input::Tokens(vec![TokenId(1), TokenId(9)]))
        );
        for wrong in [
            json!(""),
            json!([]),
            json!(["a", "b"]),
            json!([10]),
            json!([[1]]),
            json!(3),
        ] {
            assert!(
                input(wrong.clone()).unwrap_err().contains("prompt"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn each_endpoint_has_its_own_default_length() {
        assert_eq!(chat(json!({})).unwrap().generation.max_tokens, 100);
        let request = read_json(Kind::Completion, json!({"prompt": "a"})).unwrap();
        assert_eq!(request.generation.max_tokens, 16);
        let both = json!({"max_tokens": 3, "max_completion_tokens": 4});
        assert!(chat(both).unwrap_err().contains("contradicts"));
    }
}
