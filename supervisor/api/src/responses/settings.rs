//! Settings of a response, and fields that change no answer.

use crate::effort;
use crate::fields::{Fields, Names, nested};
use crate::json::Json;
use crate::mistakes::Constraint;
use crate::no_effect::{NoEffect, accept, object, text, values};
use crate::schema;
use crate::structure::formats;
use serde_json::Value;
use std::collections::BTreeMap;
use worker_orcd_ipc::{Grammar, MAX_TOP_LOGPROBS};
use worker_orcd_text::template::TemplateSetting;

pub(super) const FIELDS: &[&str] = &[
    "reasoning",
    "text",
    "metadata",
    "include",
    "stream_options",
    "store",
    "top_logprobs",
    "max_tool_calls",
];

/// Fields without effect.
pub(super) const HARMLESS: [NoEffect; 3] = [
    values(
        "background",
        &["false"],
        "is not supported: an answer is computed while its client waits",
    ),
    values(
        "truncation",
        &["\"disabled\""],
        "may be disabled only: nothing is left out of a conversation",
    ),
    values(
        "service_tier",
        &["\"auto\"", "\"default\""],
        "may be auto or default only",
    ),
];

/// Labels of the client's application, and hints that could only save time.
pub(super) const LABELS: [NoEffect; 6] = [
    text("user"),
    text("safety_identifier"),
    text("prompt_cache_key"),
    text("prompt_cache_retention"),
    // vLLM's field.
    text("request_id"),
    // Codex's field.
    object("client_metadata"),
];

/// Known fields of the OpenAI API that are always refused. The list distinguishes them from misspelled fields.
pub(super) const REFUSED: &[&str] = &[
    "previous_response_id",
    "conversation",
    "prompt",
    "context_management",
    "moderation",
];

/// Value of `include`: log probabilities of the tokens of each text.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Accepted values of `include`. The others concern data that no answer of this worker contains.
const INCLUDABLE: &[&str] = &[
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

const SUMMARIES: &[(&str, ())] = &[("auto", ()), ("concise", ()), ("detailed", ())];

/// Maximum number of pairs in `metadata`. The OpenAI API's limit.
const MAX_METADATA: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;

const REASONING: Names = &[&["effort", "summary", "context", "mode"]];
const TEXT: Names = &[&["format", effort::VERBOSITY]];
const STREAM_OPTIONS: Names = &[&["include_obfuscation"]];

#[derive(Debug, Default)]
pub(super) struct Reasoning {
    pub(super) effort: Option<String>,
    /// Variables of the chat template.
    pub(super) settings: Vec<(String, TemplateSetting)>,
}

/// Reads `reasoning`. Its `effort` becomes variables of the chat template. `summary` is accepted, but no summary is
/// generated.
pub(super) fn read_reasoning(fields: &mut Fields<'_>) -> Reasoning {
    let effort = nested(fields, "reasoning", REASONING, |mut inside| {
        let effort = inside.word("effort", effort::EFFORTS);
        inside.word("summary", SUMMARIES);
        let rule = "may be auto only: which reasoning the model sees is the chat template's choice";
        let context = values("context", &["\"auto\""], rule);
        let mode = values("mode", &["\"standard\""], "may be standard only");
        accept(&mut inside, &[context, mode]);
        inside.finish().map(|()| effort)
    });
    let Some(effort) = effort.flatten() else {
        return Reasoning::default();
    };
    Reasoning {
        effort: Some(effort.to_owned()),
        settings: effort::settings_of(effort),
    }
}

/// Settings in `text`.
#[derive(Debug, Default)]
pub(super) struct TextSettings {
    pub(super) format: Option<(Grammar, Value)>,
    pub(super) verbosity: Option<String>,
}

/// Reads `text`: the format, and the verbosity, which the answer repeats and the chat template receives.
pub(super) fn read_text(fields: &mut Fields<'_>) -> TextSettings {
    let text = nested(fields, "text", TEXT, |mut inside| {
        let format = formats::read_of_text(&mut inside);
        let verbosity = inside
            .word(effort::VERBOSITY, effort::VERBOSITIES)
            .map(str::to_owned);
        inside.finish().map(|()| TextSettings { format, verbosity })
    });
    text.unwrap_or_default()
}

/// Reads `metadata`: up to 16 pairs of short texts, which the answer repeats.
pub(super) fn read_metadata(fields: &mut Fields<'_>) -> BTreeMap<String, String> {
    let shape = || {
        let name = schema::text_of(&(0..=MAX_KEY_CHARS));
        let value = schema::text_of(&(0..=MAX_VALUE_CHARS));
        schema::map(name, value, MAX_METADATA, &[])
    };
    let (mut pairs, mut is_right) = (BTreeMap::new(), true);
    let Some(given) = fields.given("metadata", shape) else {
        return pairs;
    };
    let is_object = given.each_member(|name, value| {
        let value = value.text();
        let value = value.filter(|it| it.chars().count() <= MAX_VALUE_CHARS);
        is_right &= name.chars().count() <= MAX_KEY_CHARS;
        match value {
            Some(value) if is_right && pairs.len() < MAX_METADATA => {
                is_right &= pairs.insert(name.to_owned(), value.into_owned()).is_none();
            }
            _ => is_right = false,
        }
    });
    if !is_object || !is_right {
        let rule = format!(
            "must be an object of at most {MAX_METADATA} texts of at most {MAX_VALUE_CHARS} characters, under \
             names of at most {MAX_KEY_CHARS}"
        );
        fields.error("metadata", Constraint::Type, rule);
    }
    pairs
}

/// Number of most likely tokens to list for each token. `None` if no log probabilities are requested. A number
/// above 0 implies them.
pub(super) fn read_logprobs(fields: &mut Fields<'_>) -> Option<u8> {
    let is_included = read_include(fields);
    let top = fields.integer("top_logprobs", 0..=u64::from(MAX_TOP_LOGPROBS));
    let top = top.unwrap_or(0) as u8;
    (is_included || top > 0).then_some(top)
}

/// Removes all fields without effect, and records an error for each unsupported value.
pub(super) fn accept_harmless(fields: &mut Fields<'_>) {
    nested(fields, "stream_options", STREAM_OPTIONS, |mut options| {
        let rule = "is not supported: events are not padded";
        let padded = values("include_obfuscation", &["false"], rule);
        accept(&mut options, &[padded]);
        options.finish()
    });
    // No answer is stored for either value. The answer contains `store: false`.
    fields.boolean("store");
    fields.describe_no_effect("store");
    accept(fields, &HARMLESS);
    // Limit on server-side tools. This server runs none.
    fields.integer("max_tool_calls", 0..=u64::from(u32::MAX));
    fields.describe_no_effect("max_tool_calls");
    accept(fields, &LABELS);
}

/// True if `include` contains log probabilities.
fn read_include(fields: &mut Fields<'_>) -> bool {
    let shape = || schema::list_of(schema::values(INCLUDABLE.iter().copied()));
    let Some(list) = fields.given("include", shape) else {
        return false;
    };
    let (mut is_known, mut has_logprobs) = (true, false);
    let is_list = list.each_element(|item| {
        has_logprobs |= is_text(item, LOGPROBS);
        is_known &= INCLUDABLE.iter().any(|known| is_text(item, known));
    });
    if !is_list {
        fields.error("include", Constraint::Type, "must be a list of strings");
    } else if !is_known {
        let rule = format!("may hold only {}", INCLUDABLE.join(", "));
        fields.error("include", Constraint::Unsupported, rule);
    }
    has_logprobs
}

fn is_text(value: Json<'_>, text: &str) -> bool {
    value.small().as_ref().and_then(Value::as_str) == Some(text)
}
