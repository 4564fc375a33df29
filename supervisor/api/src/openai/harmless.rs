//! Fields of the OpenAI API that change no answer.
//!
//! One table serves both endpoints.

use super::Kind;
use crate::fields::Fields;
use crate::no_effect::{self, NoEffect, object, text, values};

const UNSUPPORTED: &str = "is not supported";
const BOTH_BOOLEANS: &[&str] = &["true", "false"];

const fn may_be(name: &'static str, accepted: &'static [&'static str]) -> NoEffect {
    values(name, accepted, UNSUPPORTED)
}

pub(super) const EVERYWHERE: [NoEffect; 17] = [
    values(
        "service_tier",
        &["\"auto\"", "\"default\""],
        "may be auto or default only",
    ),
    // Equal prompts give the same bits with and without the cache.
    values("cache_prompt", BOTH_BOOLEANS, "must be true or false"),
    values("store", BOTH_BOOLEANS, "must be true or false"),
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
    values(
        "repeat_penalty",
        &["1"],
        "is called repetition_penalty here",
    ),
    may_be("typical_p", &["1"]),
    may_be("mirostat", &["0"]),
    may_be("dry_multiplier", &["0"]),
    may_be("xtc_probability", &["0"]),
];

pub(super) const CHAT: [NoEffect; 7] = [
    values(
        "functions",
        &["[]"],
        "is not supported: it is called tools now",
    ),
    values(
        "function_call",
        &["\"none\"", "\"auto\""],
        "is not supported: it is called tool_choice now",
    ),
    values("modalities", &["[\"text\"]"], "may be [\"text\"] only"),
    values(
        "best_of",
        &["1"],
        "is not supported: n is the number of choices",
    ),
    may_be("add_special_tokens", &["false"]),
    may_be("documents", &["[]"]),
    may_be("echo", &["false"]),
];

pub(super) const COMPLETION: [NoEffect; 2] = [
    may_be("suffix", &["\"\""]),
    may_be("add_special_tokens", &["true"]),
];

/// Labels of the client's application, and hints that could only save time.
pub(super) const LABELS: [NoEffect; 6] = [
    text("user"),
    object("metadata"),
    text("safety_identifier"),
    text("prompt_cache_key"),
    text("prompt_cache_retention"),
    // Answers have ids of their own. X-Correlation-Id is the client's.
    text("request_id"),
];

/// Known fields of the OpenAI API that are always refused. The list distinguishes them from misspelled fields.
pub(super) const REFUSED: &[&str] = &["audio", "moderation", "web_search_options"];

fn table(kind: Kind) -> impl Iterator<Item = &'static NoEffect> {
    let own: &[NoEffect] = match kind {
        Kind::Chat => &CHAT,
        Kind::Completion => &COMPLETION,
    };
    EVERYWHERE.iter().chain(own).chain(&LABELS)
}

/// Removes all fields without effect, and records an error for each unsupported value.
pub(super) fn accept(fields: &mut Fields<'_>, kind: Kind) {
    no_effect::accept(fields, table(kind));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Constraint;
    use crate::no_effect::Accepts;
    use crate::openai::request::reader;

    const KINDS: [Kind; 2] = [Kind::Chat, Kind::Completion];

    fn accept_one(kind: Kind, name: &str, value: &str) -> Result<(), Constraint> {
        let body = format!("{{\"{name}\": {value}}}");
        let mut fields = Fields::parse(&body, reader(kind).names).unwrap();
        accept(&mut fields, kind);
        let told = |mistakes: crate::mistakes::Mistakes| {
            assert_eq!(mistakes.listed()[0].field, name);
            mistakes.listed()[0].constraint
        };
        fields.finish().map_err(told)
    }

    #[test]
    fn every_value_of_the_table_is_accepted_and_no_other() {
        let long = format!("[\"{}\"]", "x".repeat(1000));
        for kind in KINDS {
            for field in table(kind) {
                let (right, wrong): (&[&str], &[&str]) = match field.accepts {
                    Accepts::Values(values) => {
                        (values, &["7", "[7]", "{\"a\": 7}", "\"other\"", &long])
                    }
                    Accepts::AnyText => (&["\"me\"", "\"\""], &["7", "{}", "[]"]),
                    Accepts::AnyObject => (&["{\"a\": \"b\"}", "{}"], &["7", "\"a\"", "[]"]),
                };
                let name = field.name;
                for value in right.iter().chain(&["null"]) {
                    assert_eq!(accept_one(kind, name, value), Ok(()), "{name}: {value}");
                }
                for other in wrong {
                    let refused = accept_one(kind, name, other);
                    assert_eq!(refused, Err(Constraint::Unsupported), "{name}: {other}");
                }
            }
            for name in REFUSED {
                assert_eq!(accept_one(kind, name, "null"), Ok(()));
                assert!(accept_one(kind, name, "{}").is_err(), "{name}");
            }
        }
    }
}
