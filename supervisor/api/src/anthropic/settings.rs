//! Fields `thinking` and `output_config`, which become variables of the chat template, and fields that change no
//! answer.
//!
//! A template that uses `enable_thinking` or `reasoning_effort` receives them, as with `chat_template_kwargs` of chat.
//! Other templates are not affected. `budget_tokens` bounds the reasoning, and `disabled` bounds it to 0 tokens, with
//! any template.

use super::content::CACHE_CONTROL;
use crate::error::THREAD;
use crate::fields::{Fields, Names, nested};
use crate::no_effect::{NoEffect, accept, object, values};
use crate::structure::formats;
use crate::thinking_budget::Budget;
use worker_orcd_ipc::Grammar;
use worker_orcd_text::template::TemplateSetting;

pub(super) const FIELDS: &[&str] = &["thinking", "output_config"];

/// Fields without effect. `diagnostics` requests reasons for cache misses, which this worker does not report. Keeping all
/// of an earlier turn's reasoning is the only supported edit, because it changes nothing.
pub(super) const HARMLESS: [NoEffect; 7] = [
    CACHE_CONTROL,
    object("metadata"),
    object("diagnostics"),
    values(
        "service_tier",
        &["\"auto\"", "\"standard_only\""],
        "may be auto or standard_only",
    ),
    values("speed", &["\"standard\""], "may be standard only"),
    values(
        "mcp_servers",
        &["[]"],
        "are not supported: this worker asks no other server",
    ),
    values(
        "context_management",
        &[
            r#"{"edits": []}"#,
            r#"{"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}"#,
        ],
        "may keep all reasoning, and do nothing else",
    ),
];

/// Known fields of the API that are always refused. The list distinguishes them from misspelled fields.
pub(super) const REFUSED: &[&str] = &[
    "container",
    "fallbacks",
    "inference_geo",
    "output_format",
    THREAD,
];

/// Name of the field that bounds the reasoning.
const BUDGET: &str = "thinking.budget_tokens";

const THINKING: Names = &[&["type", "budget_tokens", "display"]];
const OUTPUT: Names = &[&["effort", "format"]];

const EFFORTS: &[(&str, &str)] = &[
    ("low", "low"),
    ("medium", "medium"),
    ("high", "high"),
    ("xhigh", "xhigh"),
    ("max", "max"),
];

/// Settings of both fields.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) of_template: Vec<(String, TemplateSetting)>,
    pub(super) budget: Option<Budget>,
    /// Constraint on the answer.
    pub(super) format: Option<Grammar>,
}

pub(super) fn read(fields: &mut Fields<'_>) -> Settings {
    let thinking = valid_part(fields, "thinking", THINKING, read_thinking);
    let output = valid_part(fields, "output_config", OUTPUT, read_output);
    let (effort, format) = output.unwrap_or_default();
    let (thinks, tokens) = thinking.unzip();
    let thinks = thinks.map(|thinks| ("enable_thinking", TemplateSetting::Flag(thinks)));
    let effort =
        effort.map(|effort| ("reasoning_effort", TemplateSetting::Word(effort.to_owned())));
    let settings = thinks.into_iter().chain(effort);
    let settings = settings.map(|(name, setting)| (name.to_owned(), setting));
    Settings {
        of_template: settings.collect(),
        budget: tokens.flatten().map(|tokens| Budget {
            tokens,
            field: BUDGET,
        }),
        format,
    }
}

/// Reads an object inside the body. What is valid in it counts beside mistakes, which other fields may contradict.
fn valid_part<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    names: Names,
    read: fn(&mut Fields<'_>) -> Option<T>,
) -> Option<T> {
    let mut found = None;
    nested(fields, name, names, |mut inside| {
        found = read(&mut inside);
        inside.finish()
    });
    found
}

/// Whether reasoning is enabled, and its bound in tokens.
fn read_thinking(fields: &mut Fields<'_>) -> Option<(bool, Option<u32>)> {
    let kinds = [("enabled", true), ("adaptive", true), ("disabled", false)];
    let thinks = fields.must("type", |it, name| it.word(name, &kinds));
    let tokens = fields.integer("budget_tokens", 0..=u64::MAX);
    let rule = "may be summarized or updates only: thinking is returned as it is generated";
    let kinds = &["\"summarized\"", "\"updates\""];
    accept(fields, &[values("display", kinds, rule)]);
    // A bound above 32 bits exceeds every answer, so it is cut.
    let tokens = tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    thinks.map(|thinks| (thinks, if thinks { tokens } else { Some(0) }))
}

fn read_output(fields: &mut Fields<'_>) -> Option<(Option<&'static str>, Option<Grammar>)> {
    let effort = fields.word("effort", EFFORTS);
    Some((effort, formats::read_of_output(fields)))
}
