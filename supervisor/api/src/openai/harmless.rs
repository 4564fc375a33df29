//! Fields that change no answer: labels, and fields with values that request the default behaviour.
//!
//! One table serves both endpoints. A field is accepted with the listed values. Any other value is refused with the
//! field's name.

use super::Kind;
use crate::fields::Fields;
use crate::json::{Json, Kind as JsonKind};
use crate::schema::{self, Shape};
use serde_json::Value;
use utoipa::openapi::Type;

struct Harmless {
    name: &'static str,
    /// Accepted values, as JSON.
    values: &'static [&'static str],
    /// Error message for other values.
    otherwise: &'static str,
}

const UNSUPPORTED: &str = "is not supported";
const BOTH_BOOLEANS: &[&str] = &["true", "false"];

const fn may_be(name: &'static str, values: &'static [&'static str]) -> Harmless {
    Harmless {
        name,
        values,
        otherwise: UNSUPPORTED,
    }
}

const fn must_be(
    name: &'static str,
    values: &'static [&'static str],
    otherwise: &'static str,
) -> Harmless {
    Harmless {
        name,
        values,
        otherwise,
    }
}

const EVERYWHERE: &[Harmless] = &[
    must_be(
        "service_tier",
        &["\"auto\"", "\"default\""],
        "may be auto or default only",
    ),
    // Equal prompts give the same bits with and without the cache.
    must_be("cache_prompt", BOTH_BOOLEANS, "must be true or false"),
    must_be("store", BOTH_BOOLEANS, "must be true or false"),
    // vLLM's fields.
    may_be("bad_words", &["[]"]),
    // The beginning of a prompt that is too long goes.
    may_be("truncation_side", &["\"left\""]),
    may_be("skip_special_tokens", &["true"]),
    may_be("spaces_between_special_tokens", &["true"]),
    may_be("include_stop_str_in_output", &["false"]),
    may_be("use_beam_search", &["false"]),
    may_be("length_penalty", &["1"]),
    may_be("priority", &["0"]),
    may_be("include_reasoning", &["true"]),
    // llama-server's fields. `repeat_penalty: 1` is read earlier, because it overrides a penalty that the model file
    // recommends.
    must_be(
        "repeat_penalty",
        &["1"],
        "is called repetition_penalty here",
    ),
    may_be("typical_p", &["1"]),
    may_be("mirostat", &["0"]),
    may_be("dry_multiplier", &["0"]),
    may_be("xtc_probability", &["0"]),
];

const CHAT: &[Harmless] = &[
    must_be(
        "functions",
        &["[]"],
        "is not supported: it is called tools now",
    ),
    must_be(
        "function_call",
        &["\"none\"", "\"auto\""],
        "is not supported: it is called tool_choice now",
    ),
    must_be("modalities", &["[\"text\"]"], "may be [\"text\"] only"),
    must_be(
        "best_of",
        &["1"],
        "is not supported: n is the number of choices",
    ),
    may_be("add_special_tokens", &["false"]),
    may_be("documents", &["[]"]),
    may_be("echo", &["false"]),
];

const COMPLETION: &[Harmless] = &[
    may_be("suffix", &["\"\""]),
    may_be("add_special_tokens", &["true"]),
];

/// Labels of the client's application, and hints that could only save time.
const LABELS: &[(&str, JsonKind, &str)] = &[
    ("user", JsonKind::Text, "must be a string"),
    ("metadata", JsonKind::Object, "must be an object"),
    ("safety_identifier", JsonKind::Text, "must be a string"),
    ("prompt_cache_key", JsonKind::Text, "must be a string"),
    ("prompt_cache_retention", JsonKind::Text, "must be a string"),
    ("prediction", JsonKind::Object, "must be an object"),
    // Answers have ids of their own. X-Correlation-Id is the client's.
    ("request_id", JsonKind::Text, "must be a string"),
];

/// Known fields of the OpenAI API that are always refused. The list distinguishes them from misspelled fields.
const REFUSED: &[&str] = &["audio", "moderation", "web_search_options"];

fn table(kind: Kind) -> impl Iterator<Item = &'static Harmless> {
    let own: &[Harmless] = match kind {
        Kind::Chat => CHAT,
        Kind::Completion => COMPLETION,
    };
    EVERYWHERE.iter().chain(own)
}

/// Name of the field, from the tables of this module.
pub(super) fn known(kind: Kind, name: &str) -> Option<&'static str> {
    let labels = LABELS.iter().map(|(label, ..)| *label);
    let names = table(kind).map(|field| field.name).chain(labels);
    names
        .chain(REFUSED.iter().copied())
        .find(|known| *known == name)
}

/// Removes all fields without effect, and records an error for each unsupported value.
pub(super) fn accept(fields: &mut Fields, kind: Kind) {
    for field in table(kind) {
        let is_harmless = |value: Json<'_>| match value.small() {
            Some(value) => field.values.iter().any(|text| is_same(&value, text)),
            None => false,
        };
        let shape = || schema::values(field.values.iter().map(|text| parsed(text)));
        fields.only(field.name, shape, is_harmless, field.otherwise);
    }
    for (label, kind, otherwise) in LABELS {
        let is_of_kind = |value: Json<'_>| value.kind() == *kind;
        fields.only(label, || shape_of(*kind), is_of_kind, otherwise);
    }
}

fn shape_of(label: JsonKind) -> Shape {
    match label {
        JsonKind::Object => schema::of_type(Type::Object),
        _ => schema::text(),
    }
}

/// True for equal JSON values. 1.0 equals 1.
fn is_same(value: &Value, text: &str) -> bool {
    let wanted = parsed(text);
    match (value.as_f64(), wanted.as_f64()) {
        (Some(value), Some(wanted)) => value == wanted,
        _ => *value == wanted,
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Constraint;

    const KINDS: [Kind; 2] = [Kind::Chat, Kind::Completion];

    fn accept_one(kind: Kind, name: &str, value: &str) -> Result<(), Constraint> {
        let body = format!("{{\"{name}\": {value}}}");
        let names = match kind {
            Kind::Chat => |name: &str| known(Kind::Chat, name),
            Kind::Completion => |name: &str| known(Kind::Completion, name),
        };
        let mut fields = Fields::parse(&body, names).unwrap();
        accept(&mut fields, kind);
        let told = |mistakes: crate::mistakes::Mistakes| {
            assert_eq!(mistakes.listed()[0].field, name);
            mistakes.listed()[0].constraint
        };
        fields.finish().map_err(told)
    }

    #[test]
    fn every_value_of_the_table_is_accepted_and_no_other() {
        for kind in KINDS {
            for field in table(kind) {
                for value in field.values.iter().chain(&["null"]) {
                    assert_eq!(
                        accept_one(kind, field.name, value),
                        Ok(()),
                        "{}",
                        field.name
                    );
                }
                let long = format!("[\"{}\"]", "x".repeat(1000));
                for other in ["7", "[7]", "{\"a\": 7}", "\"other\"", &long] {
                    let refused = accept_one(kind, field.name, other);
                    assert_eq!(refused, Err(Constraint::Unsupported), "{}", field.name);
                }
            }
        }
    }

    #[test]
    fn labels_say_what_they_like() {
        for kind in KINDS {
            for (label, value_kind, _) in LABELS {
                let (right, wrong) = match value_kind {
                    JsonKind::Object => ("{\"a\": \"b\"}", "\"a\""),
                    _ => ("\"me\"", "{}"),
                };
                assert_eq!(accept_one(kind, label, right), Ok(()), "{label}");
                assert!(accept_one(kind, label, wrong).is_err(), "{label}");
            }
            for name in REFUSED {
                assert_eq!(accept_one(kind, name, "null"), Ok(()));
                assert!(accept_one(kind, name, "{}").is_err(), "{name}");
            }
        }
    }

    #[test]
    fn no_field_is_twice_in_the_table() {
        for kind in KINDS {
            let mut names: Vec<_> = table(kind).map(|field| field.name).collect();
            names.extend(LABELS.iter().map(|(label, ..)| *label));
            names.extend(REFUSED);
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{names:?}");
        }
    }
}
