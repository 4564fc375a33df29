//! Fields `thinking` and `output_config`, which become variables of the chat template, and fields that change no
//! answer.
//!
//! A template that uses `enable_thinking` or `reasoning_effort` receives them, as with `chat_template_kwargs` of chat.
//! Other templates are not affected. `budget_tokens` bounds the reasoning, and `disabled` bounds it to 0 tokens, with
//! any template.

use super::content::take_cache_control;
use crate::error::THREAD;
use crate::fields::{Fields, Names, among, nested};
use crate::json::{Json, Kind};
use crate::schema::{self, Shape};
use crate::structure::formats;
use crate::thinking_budget::Budget;
use serde_json::{Value, json};
use utoipa::openapi::Type;
use worker_orcd_ipc::Grammar;
use worker_orcd_text::template::TemplateSetting;

pub(super) const FIELDS: &[&str] = &[
    "thinking",
    "output_config",
    "cache_control",
    "context_management",
    "diagnostics",
    "metadata",
    "mcp_servers",
    "service_tier",
    "speed",
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

const THINKING: Names = |name| among(name, &[&["type", "budget_tokens", "display"]]);
const OUTPUT: Names = |name| among(name, &[&["effort", "format"]]);

const EFFORTS: &[(&str, &str)] = &[
    ("low", "low"),
    ("medium", "medium"),
    ("high", "high"),
    ("xhigh", "xhigh"),
    ("max", "max"),
];

/// Edit of an earlier turn's reasoning. Keeping all of it is the only supported rule, because it changes nothing.
const KEEPS_THOUGHTS: &str = "clear_thinking_20251015";

/// Settings of both fields.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) of_template: Vec<(String, TemplateSetting)>,
    pub(super) budget: Option<Budget>,
    /// Constraint on the answer.
    pub(super) format: Option<Grammar>,
}

pub(super) fn read(fields: &mut Fields<'_>) -> Settings {
    let thinking = object(fields, "thinking", THINKING, read_thinking);
    let output = object(fields, "output_config", OUTPUT, read_output);
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
fn object<T>(
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
    let thinks = fields.word("type", &kinds);
    let thinks = fields.required("type", thinks);
    let tokens = fields.integer("budget_tokens", 0..=u64::MAX);
    let rule = "may be summarized or updates only: thinking is returned as it is generated";
    fields.only_words("display", &["summarized", "updates"], rule);
    // A bound above 32 bits exceeds every answer, so it is cut.
    let tokens = tokens.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX));
    thinks.map(|thinks| (thinks, if thinks { tokens } else { Some(0) }))
}

fn read_output(fields: &mut Fields<'_>) -> Option<(Option<&'static str>, Option<Grammar>)> {
    let effort = fields.word("effort", EFFORTS);
    Some((effort, formats::read_of_output(fields)))
}

/// Removes all fields without effect, and records an error for each unsupported value.
pub(super) fn accept_harmless(fields: &mut Fields<'_>) {
    take_cache_control(fields);
    let is_object = |value: Json<'_>| value.kind() == Kind::Object;
    let shape = || schema::of_type(Type::Object);
    // `diagnostics` requests reasons for cache misses, which this worker does not report.
    for label in ["metadata", "diagnostics"] {
        fields.only(label, shape, is_object, "must be an object");
    }
    let rule = "may be auto or standard_only";
    fields.only_words("service_tier", &["auto", "standard_only"], rule);
    fields.only_words("speed", &["standard"], "may be standard only");
    let is_none = |value: Json<'_>| value.kind() == Kind::List && value.is_empty();
    let rule = "are not supported: this worker asks no other server";
    fields.only("mcp_servers", || schema::values([json!([])]), is_none, rule);
    let rule = "may keep all thoughts, and do nothing else";
    fields.only("context_management", edits, keeps_everything, rule);
}

fn kept() -> [Value; 2] {
    let nothing = json!({"edits": []});
    let all = json!({"edits": [{"type": KEEPS_THOUGHTS, "keep": "all"}]});
    [nothing, all]
}

fn edits() -> Shape {
    schema::values(kept())
}

fn keeps_everything(value: Json<'_>) -> bool {
    value.small().is_some_and(|value| kept().contains(&value))
}
