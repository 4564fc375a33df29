//! APIs from the client's side: content of an event, ids of an answer, and the complete output of the model.

use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Execute,
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
}

/// Pieces of an answer in order, by part: a choice, or `ALL`.
pub type Parts = BTreeMap<String, Vec<Value>>;

/// Content of an event.
#[derive(Debug, Default, PartialEq)]
pub struct Received {
    /// Part and piece.
    pub piece: Option<(String, Value)>,
    /// Whether it contains output of the model.
    pub is_word: bool,
    /// Name with which the answer can be cancelled or resumed.
    pub name: Option<String>,
    pub end: Option<End>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Complete,
    /// Error event.
    Error(Value),
}

/// Output of the model in one choice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    pub text: String,
    pub calls: Vec<Call>,
    /// Cut by a limit.
    pub is_cut: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    pub name: String,
    pub arguments: String,
}

impl Outcome {
    /// Whether it is only a complete text of this kind.
    pub fn is_text(&self, is_right: fn(&str) -> bool) -> bool {
        !self.is_cut && self.calls.is_empty() && is_right(&self.text)
    }
}

/// Part for data of no choice in particular.
const ALL: &str = "all";

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Self::Execute => "/execute",
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// # Errors
    /// It is no event of this API.
    pub fn read(self, name: &str, data: &str) -> Result<Received, String> {
        if data == "[DONE]" && matches!(self, Self::Chat | Self::Completions) {
            return Ok(Received {
                end: Some(End::Complete),
                ..Received::default()
            });
        }
        let data = serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?;
        match self {
            Self::Execute => execute(name, data),
            Self::Chat | Self::Completions => Ok(chunk(data)),
            Self::Responses => Ok(response(data)),
            Self::Messages => Ok(message(data)),
            Self::Embeddings => Err("embeddings are no stream".to_owned()),
        }
    }

    /// Output of each choice.
    pub fn outcomes(self, is_streamed: bool, parts: &Parts) -> Vec<Outcome> {
        let whole = || parts.get(ALL).and_then(|pieces| pieces.last());
        match self {
            Self::Chat | Self::Completions if is_streamed => {
                let choices = parts.iter().filter(|(part, _)| *part != ALL);
                choices.map(|(_, chunks)| of_chunks(chunks)).collect()
            }
            Self::Chat | Self::Completions => {
                let choices = whole().and_then(|it| it["choices"].as_array());
                choices.into_iter().flatten().map(of_choice).collect()
            }
            Self::Responses if is_streamed => {
                vec![of_response(&whole().unwrap_or(&Value::Null)["response"])]
            }
            Self::Responses => whole().map(of_response).into_iter().collect(),
            Self::Messages if is_streamed => vec![of_message_events(&parts[ALL])],
            Self::Messages => whole().map(of_message).into_iter().collect(),
            Self::Execute | Self::Embeddings => Vec::new(),
        }
    }
}

/// Parts of an unstreamed answer.
pub fn whole(body: Value) -> Parts {
    Parts::from([(ALL.to_owned(), vec![anonymous(body)])])
}

fn execute(name: &str, data: Value) -> Result<Received, String> {
    let mut told = Received::default();
    match name {
        "started" => {}
        "token" => {
            told.is_word = true;
            told.piece = Some(("0".to_owned(), json!([data["i"], data["t"]])));
        }
        "end" => {
            let facts = json!([
                data["stop_reason"],
                data["tokens_out"],
                data["tokens_in"],
                data["stop_sequence_matched"],
            ]);
            told.piece = Some((ALL.to_owned(), facts));
            told.end = Some(End::Complete);
        }
        "error" => told.end = Some(End::Error(data)),
        _ => return Err(format!("an event named {name:?}")),
    }
    Ok(told)
}

fn chunk(data: Value) -> Received {
    if data.get("error").is_some() {
        return Received {
            end: Some(End::Error(data)),
            ..Received::default()
        };
    }
    let name = data["id"].as_str().map(str::to_owned);
    let choice = &data["choices"][0];
    let part = match choice["index"].as_u64() {
        Some(index) => index.to_string(),
        None => ALL.to_owned(),
    };
    // The role precedes every token.
    let is_word = choice.is_object() && choice["delta"]["role"].is_null();
    Received {
        piece: Some((part, anonymous(data))),
        is_word,
        name,
        end: None,
    }
}

fn response(data: Value) -> Received {
    let kind = data["type"].as_str().unwrap_or_default().to_owned();
    let end = match kind.as_str() {
        "response.completed" | "response.incomplete" => Some(End::Complete),
        "response.failed" | "error" => Some(End::Error(data.clone())),
        _ => None,
    };
    Received {
        name: data["response"]["id"].as_str().map(str::to_owned),
        is_word: kind.ends_with(".delta"),
        // An error is no piece.
        piece: (!matches!(end, Some(End::Error(_)))).then(|| (ALL.to_owned(), anonymous(data))),
        end,
    }
}

fn message(data: Value) -> Received {
    let name = data["message"]["id"].as_str().map(str::to_owned);
    let (is_word, end) = match data["type"].as_str() {
        // Keep-alive.
        Some("ping") => return Received::default(),
        Some("error") => {
            return Received {
                end: Some(End::Error(data)),
                ..Received::default()
            };
        }
        Some("message_stop") => (false, Some(End::Complete)),
        Some("content_block_delta") => (true, None),
        _ => (false, None),
    };
    Received {
        piece: Some((ALL.to_owned(), anonymous(data))),
        is_word,
        name,
        end,
    }
}

/// Removes ids and times, which differ between answers, and the counts of cached tokens and of drafts.
fn anonymous(mut value: Value) -> Value {
    hide(&mut value);
    value
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(cached) = fields.remove("cache_read_input_tokens") {
                let input = fields["input_tokens"].as_u64().unwrap_or(0);
                fields["input_tokens"] = json!(input + cached.as_u64().unwrap_or(0));
            }
            for (name, field) in fields {
                match name.as_str() {
                    "id" | "item_id" | "call_id" if field.is_string() => *field = json!("its own"),
                    "created"
                    | "created_at"
                    | "completed_at"
                    | "cached_tokens"
                    | "completion_tokens_details" => {
                        *field = json!("its own");
                    }
                    _ => hide(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hide),
        _ => {}
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn of_choice(choice: &Value) -> Outcome {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    Outcome {
        text: text(&message["content"]).to_owned() + text(&choice["text"]),
        calls: calls.map(|call| function(&call["function"])).collect(),
        is_cut: choice["finish_reason"] == "length",
    }
}

fn function(call: &Value) -> Call {
    Call {
        name: text(&call["name"]).to_owned(),
        arguments: text(&call["arguments"]).to_owned(),
    }
}

fn of_chunks(chunks: &[Value]) -> Outcome {
    let mut outcome = Outcome {
        is_cut: true,
        ..Outcome::default()
    };
    for choice in chunks.iter().map(|chunk| &chunk["choices"][0]) {
        let delta = &choice["delta"];
        outcome.text += text(&delta["content"]);
        outcome.text += text(&choice["text"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap_or(0) as usize;
            if outcome.calls.len() <= index {
                outcome.calls.resize(index + 1, Call::default());
            }
            outcome.calls[index].name += text(&call["function"]["name"]);
            outcome.calls[index].arguments += text(&call["function"]["arguments"]);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            outcome.is_cut = reason == "length";
        }
    }
    outcome
}

fn of_response(response: &Value) -> Outcome {
    let mut outcome = Outcome {
        is_cut: response["status"] != "completed",
        ..Outcome::default()
    };
    for item in response["output"].as_array().into_iter().flatten() {
        match text(&item["type"]) {
            "function_call" => outcome.calls.push(function(item)),
            "message" => outcome.text += text(&item["content"][0]["text"]),
            _ => {}
        }
    }
    outcome
}

fn of_message(message: &Value) -> Outcome {
    let mut outcome = Outcome {
        is_cut: message["stop_reason"] == "max_tokens",
        ..Outcome::default()
    };
    for block in message["content"].as_array().into_iter().flatten() {
        outcome.text += text(&block["text"]);
        if block["type"] == "tool_use" {
            outcome.calls.push(Call {
                name: text(&block["name"]).to_owned(),
                arguments: block["input"].to_string(),
            });
        }
    }
    outcome
}

fn of_message_events(events: &[Value]) -> Outcome {
    let mut outcome = Outcome {
        is_cut: true,
        ..Outcome::default()
    };
    for event in events {
        let block = &event["content_block"];
        if block["type"] == "tool_use" {
            outcome.calls.push(Call {
                name: text(&block["name"]).to_owned(),
                arguments: String::new(),
            });
        }
        outcome.text += text(&event["delta"]["text"]);
        if let Some(call) = outcome.calls.last_mut() {
            call.arguments += text(&event["delta"]["partial_json"]);
        }
        if let Some(reason) = event["delta"]["stop_reason"].as_str() {
            outcome.is_cut = reason == "max_tokens";
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(api: Api, events: &[Value]) -> Parts {
        let mut parts = Parts::new();
        for event in events {
            let told = api.read("message", &event.to_string()).unwrap();
            if let Some((part, piece)) = told.piece {
                parts.entry(part).or_default().push(piece);
            }
        }
        parts
    }

    #[test]
    fn what_names_this_very_answer_is_hidden_and_nothing_else() {
        let answer = |id: &str, cached: u64, said: &str| {
            let usage = json!({"input_tokens": 9 - cached, "cache_read_input_tokens": cached});
            whole(json!({"id": id, "created": cached, "content": said, "usage": usage}))
        };
        assert_eq!(answer("a", 2, "hi"), answer("b", 5, "hi"));
        assert_ne!(answer("a", 2, "hi"), answer("a", 2, "ho"));
        let more =
            whole(json!({"id": "a", "created": 2, "content": "hi", "usage": {"input_tokens": 9}}));
        assert_eq!(answer("a", 2, "hi"), more);
    }

    #[test]
    fn streamed_and_whole_are_put_together_alike() {
        let chunk = |index: u64, delta: Value, reason: Value| json!({"id": "a", "choices": [{"index": index, "delta": delta, "finish_reason": reason}]});
        let call = |name: Value, arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"name": name, "arguments": arguments}}]});
        let streamed = parts(
            Api::Chat,
            &[
                chunk(0, json!({"role": "assistant"}), json!(null)),
                chunk(1, json!({"role": "assistant"}), json!(null)),
                chunk(1, json!({"content": "a"}), json!(null)),
                chunk(0, call(json!("f"), ""), json!(null)),
                chunk(1, json!({"content": "b"}), json!("length")),
                chunk(0, call(json!(null), "{}"), json!("tool_calls")),
            ],
        );
        let choice =
            |message: Value, reason: &str| json!({"message": message, "finish_reason": reason});
        let called = json!({"content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
        let body = json!({"choices": [
            choice(called, "tool_calls"), choice(json!({"content": "ab"}), "length"),
        ]});
        let outcomes = Api::Chat.outcomes(true, &streamed);
        assert_eq!(outcomes, Api::Chat.outcomes(false, &whole(body)));
        assert_eq!(
            (outcomes[1].text.as_str(), outcomes[1].is_cut),
            ("ab", true)
        );

        let block = |block: Value| json!({"type": "content_block_start", "content_block": block});
        let delta = |delta: Value| json!({"type": "content_block_delta", "delta": delta});
        let streamed = parts(
            Api::Messages,
            &[
                block(json!({"type": "text", "text": ""})),
                delta(json!({"text": "ab"})),
                block(json!({"type": "tool_use", "name": "f", "input": {}})),
                delta(json!({"partial_json": "{}"})),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
            ],
        );
        let content =
            json!([{"type": "text", "text": "ab"}, {"type": "tool_use", "name": "f", "input": {}}]);
        let body = whole(json!({"content": content, "stop_reason": "tool_use"}));
        let outcomes = Api::Messages.outcomes(true, &streamed);
        assert_eq!(outcomes, Api::Messages.outcomes(false, &body));
        assert_eq!(outcomes[0].calls.len(), 1);

        let item = json!({"type": "message", "content": [{"text": "ab"}]});
        let body = json!({"status": "completed", "output": [item]});
        let event = json!({"type": "response.completed", "response": body});
        let outcomes = Api::Responses.outcomes(true, &parts(Api::Responses, &[event]));
        assert_eq!(outcomes, Api::Responses.outcomes(false, &whole(body)));
        assert_eq!(outcomes[0].text, "ab");
    }

    #[test]
    fn errors_and_ends_are_told_apart() {
        let end = |api: Api, data: Value| api.read("message", &data.to_string()).unwrap().end;
        let failed = json!({"error": {"code": "cancelled"}});
        assert_eq!(end(Api::Chat, failed.clone()), Some(End::Error(failed)));
        for (api, kind, is_error) in [
            (Api::Responses, "response.failed", true),
            (Api::Responses, "response.incomplete", false),
            (Api::Messages, "error", true),
            (Api::Messages, "message_stop", false),
        ] {
            let found = end(api, json!({"type": kind}));
            assert_eq!(matches!(found, Some(End::Error(_))), is_error, "{kind}");
        }
        assert_eq!(
            Api::Chat.read("message", "[DONE]").unwrap().end,
            Some(End::Complete)
        );
        assert!(Api::Execute.read("unknown", "{}").is_err());
    }
}
