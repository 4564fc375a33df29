//! Fields that both APIs call the same: how tokens are drawn, where to stop, what was said.

use super::fields::{Constraint, Fields};
use crate::text::ChatMessage;
use serde_json::Value;
use uuid::Uuid;
use worker_orcd_ipc::Sampling;

/// The OpenAI API knows four; more would be paid for at every character.
const MAX_STOPS: usize = 4;
const MAX_STOP_CHARS: usize = 256;

/// Seeds that are generated are small enough for every JSON reader to give back exactly.
const GENERATED_SEED_BITS: u32 = 53;

/// Reads the fields that decide how tokens are drawn; both APIs call them the same.
pub fn read_sampling(fields: &mut Fields, vocabulary: u64) -> Sampling {
    let defaults = Sampling {
        temperature: 1.0,
        ..Sampling::default()
    };
    let mut number = |name: &str, least: f64, most: f64, default: f32| {
        fields
            .number(name, least..=most)
            .map_or(default, |number| number as f32)
    };
    let temperature = number("temperature", 0.0, 2.0, defaults.temperature);
    let top_p = number("top_p", 0.0, 1.0, defaults.top_p);
    let min_p = number("min_p", 0.0, 1.0, defaults.min_p);
    let frequency_penalty = number("frequency_penalty", -2.0, 2.0, defaults.frequency_penalty);
    let presence_penalty = number("presence_penalty", -2.0, 2.0, defaults.presence_penalty);
    let repetition_penalty = number("repetition_penalty", 0.0, 2.0, defaults.repetition_penalty);
    if repetition_penalty <= 0.0 {
        fields.error(
            "repetition_penalty",
            Constraint::Range,
            "must be above 0 and at most 2",
        );
    }
    Sampling {
        temperature,
        top_k: fields.integer("top_k", 0..=vocabulary).unwrap_or(0) as u32,
        top_p,
        min_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        seed: fields
            .integer("seed", 0..=u64::MAX)
            .unwrap_or_else(generate_seed),
    }
}

/// A string or a list of up to four.
pub fn read_stop(fields: &mut Fields) -> Vec<String> {
    let texts = match fields.take("stop") {
        None => return Vec::new(),
        Some(Value::String(text)) => vec![Value::String(text)],
        Some(Value::Array(texts)) => texts,
        Some(_) => {
            fields.error(
                "stop",
                Constraint::Type,
                "must be a string or a list of strings",
            );
            return Vec::new();
        }
    };
    if texts.len() > MAX_STOPS {
        fields.error(
            "stop",
            Constraint::Length,
            format!("must have at most {MAX_STOPS} strings"),
        );
        return Vec::new();
    }
    let mut stops = Vec::with_capacity(texts.len());
    for (index, text) in texts.into_iter().enumerate() {
        let name = format!("stop[{index}]");
        match text {
            Value::String(text) => {
                stops.extend(fields.of_length(&name, text, &(1..=MAX_STOP_CHARS)));
            }
            _ => fields.error(&name, Constraint::Type, "must be a string"),
        }
    }
    stops
}

/// `[{role, content}, …]`; `content` may be OpenAI's list of text parts.
pub fn read_messages(fields: &mut Fields, max_chars: usize) -> Option<Vec<ChatMessage>> {
    let items = match fields.take("messages")? {
        Value::Array(items) if !items.is_empty() => items,
        _ => {
            fields.error(
                "messages",
                Constraint::Type,
                "must be a list of at least one message",
            );
            return None;
        }
    };
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match read_message(item) {
            Ok(message) => messages.push(message),
            Err((field, constraint, message)) => {
                fields.error(&format!("messages[{index}]{field}"), constraint, message);
            }
        }
    }
    let chars: usize = messages
        .iter()
        .map(|message| message.content.chars().count())
        .sum();
    if chars > max_chars {
        let message = format!("must have at most {max_chars} characters in all");
        fields.error("messages", Constraint::Length, message);
    }
    Some(messages)
}

type Mistake = (&'static str, Constraint, &'static str);

fn read_message(item: Value) -> Result<ChatMessage, Mistake> {
    let Value::Object(mut map) = item else {
        return Err((
            "",
            Constraint::Type,
            "must be an object with role and content",
        ));
    };
    let role = match map.remove("role").as_ref().and_then(Value::as_str) {
        // What the OpenAI API calls developer is what templates call system.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        _ => {
            let rule = "must be system, developer, user or assistant";
            return Err((".role", Constraint::Range, rule));
        }
    };
    let content = match map.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => join_parts(parts)?,
        _ => {
            return Err((
                ".content",
                Constraint::Type,
                "must be a string or a list of text parts",
            ));
        }
    };
    // Clients send back the assistant's messages as they got them, empty fields included.
    map.retain(|_, value| !value.is_null());
    if !map.is_empty() {
        return Err((
            "",
            Constraint::Unknown,
            "must have role and content and nothing else",
        ));
    }
    Ok(ChatMessage {
        role: role.to_owned(),
        content,
    })
}

fn join_parts(parts: Vec<Value>) -> Result<String, Mistake> {
    let mut text = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(part)) => text.push_str(part),
            _ => {
                return Err((
                    ".content",
                    Constraint::Unsupported,
                    "may hold text parts only",
                ));
            }
        }
    }
    Ok(text)
}

fn generate_seed() -> u64 {
    Uuid::new_v4().as_u64_pair().1 & ((1 << GENERATED_SEED_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        match value {
            Value::Object(map) => Fields::new(map),
            _ => unreachable!("tests write objects"),
        }
    }

    #[test]
    fn sampling_has_the_contract_s_defaults_and_ranges() {
        let mut given = fields(json!({"seed": 7}));
        let sampling = read_sampling(&mut given, 10);
        assert_eq!(
            sampling,
            Sampling {
                temperature: 1.0,
                seed: 7,
                ..Sampling::default()
            }
        );
        given.finish().unwrap();

        let mut wrong = fields(json!({
            "temperature": 2.1, "top_p": -0.1, "min_p": 1.5, "top_k": 11,
            "repetition_penalty": 0, "frequency_penalty": 3, "presence_penalty": "x", "seed": -1
        }));
        read_sampling(&mut wrong, 10);
        assert_eq!(wrong.finish().unwrap_err().len(), 8);
    }

    #[test]
    fn stops_are_one_or_up_to_four_non_empty_strings() {
        let read = |value: Value| {
            let mut fields = fields(json!({"stop": value}));
            let stops = read_stop(&mut fields);
            fields.finish().map(|()| stops)
        };
        assert_eq!(read(json!("a")).unwrap(), ["a"]);
        assert_eq!(read(json!(["a", "b"])).unwrap(), ["a", "b"]);
        assert_eq!(read(Value::Null).unwrap(), Vec::<String>::new());
        let errors = read(json!(["", 3, "c"])).unwrap_err();
        assert_eq!(errors[0].field, "stop[0]");
        assert_eq!(errors[1].field, "stop[1]");
        assert!(read(json!(["a", "b", "c", "d", "e"])).is_err());
        assert!(read(json!(3)).is_err());
    }

    #[test]
    fn messages_may_be_text_or_text_parts() {
        let mut given = fields(json!({"messages": [
            {"role": "developer", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": "d", "refusal": null},
        ]}));
        let messages = read_messages(&mut given, 10).unwrap();
        given.finish().unwrap();
        let told: Vec<_> = messages
            .iter()
            .map(|it| (it.role.as_str(), it.content.as_str()))
            .collect();
        assert_eq!(told, [("system", "a"), ("user", "bc"), ("assistant", "d")]);
    }

    #[test]
    fn each_bad_message_is_named() {
        let mut given = fields(json!({"messages": [
            3,
            {"role": "tool", "content": "a"},
            {"role": "user"},
            {"role": "user", "content": [{"type": "image_url"}]},
            {"role": "user", "content": "a", "name": "b"},
            {"role": "user", "content": "0123456789"},
        ]}));
        read_messages(&mut given, 9);
        let errors = given.finish().unwrap_err();
        let named: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            named,
            [
                "messages[0]",
                "messages[1].role",
                "messages[2].content",
                "messages[3].content",
                "messages[4]",
                "messages"
            ]
        );
    }

    #[test]
    fn generated_seeds_survive_a_double() {
        for _ in 0..100 {
            let seed = generate_seed();
            assert_eq!(seed as f64 as u64, seed);
        }
    }
}
