//! Fields `tools` and `tool_choice` of the Messages API. A tool is
//! `{"type": "custom", "name", "description", "input_schema", "strict"}`.

use super::content::CACHE_CONTROL;
use crate::fields::{Fields, Names, inside};
use crate::mistakes::{Constraint, Mistakes};
use crate::no_effect::{NoEffect, accept, names, values};
use crate::schema;
use crate::tools::choice::{CallPolicy, Choice};
use crate::tools::{NAME_CHARS, Tool, ToolFormat, Tools, read_functions, settle, why_not};
use worker_orcd_text::tools::ChatTerms;

pub(super) const FIELDS: &[&str] = &["tools", "tool_choice"];

/// Name of the field that forbids several calls.
const PARALLEL: &str = "tool_choice.disable_parallel_tool_use";

const TOOL: Names = &[
    &["type", "name", "description", "input_schema", "strict"],
    &["cache_control", "eager_input_streaming"],
    &names(&HARMLESS),
];
const CHOICE: Names = &[&["type", "name", "disable_parallel_tool_use"]];

const KIND: NoEffect = values(
    "type",
    &["\"custom\""],
    "must be custom: tools of Anthropic's own are not here",
);

const HARMLESS: [NoEffect; 3] = [
    values(
        "defer_loading",
        &["false"],
        "may be false only: all tools are shown",
    ),
    values(
        "input_examples",
        &["[]"],
        "are not supported, unless there are none",
    ),
    values("allowed_callers", &["[\"direct\"]"], "may be direct only"),
];

const FORMAT: ToolFormat = ToolFormat {
    names: TOOL,
    read: read_tool,
    parameters: "input_schema",
    items: "tools",
    is_left_out: |_| false,
};

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    let list = read_functions(fields, &FORMAT, max_chars, terms);
    let wanted = read_choice(fields, terms);
    settle(fields, list, wanted, PARALLEL)
}

fn read_tool(mut fields: Fields<'_>) -> Result<Option<Tool>, Mistakes> {
    accept(&mut fields, &[KIND]);
    let tool = Tool::read(&mut fields, "input_schema");
    let schema = fields.has("input_schema").then_some(());
    fields.required("input_schema", schema);
    accept(&mut fields, &[CACHE_CONTROL]);
    // Without effect: arguments are always streamed as they arrive.
    fields.boolean("eager_input_streaming");
    accept(&mut fields, &HARMLESS);
    fields.finish().map(|()| tool)
}

fn read_choice(fields: &mut Fields<'_>, terms: &ChatTerms) -> CallPolicy {
    let shape = || {
        let kinds: &[&str] = match why_not(terms) {
            Some(_) => &["auto", "none"],
            None => &["auto", "none", "any"],
        };
        let kind = ("type", schema::values(kinds.iter().copied()));
        let is_single = schema::or_null(schema::boolean());
        schema::closed_object([kind, ("disable_parallel_tool_use", is_single)], &["type"])
    };
    let mut wanted = CallPolicy::FREE;
    let Some(given) = fields.given("tool_choice", shape) else {
        return wanted;
    };
    inside(fields, "tool_choice", given, CHOICE, |mut object| {
        wanted = read_choice_object(&mut object);
        object.finish()
    });
    wanted
}

fn read_choice_object(fields: &mut Fields<'_>) -> CallPolicy {
    let kinds = ["auto", "none", "any", "tool"].map(|kind| (kind, kind));
    let kind = fields.must("type", |it, name| it.word(name, &kinds));
    let name = fields.text("name", &NAME_CHARS);
    match kind {
        Some("tool") if name.is_none() && !fields.has("name") => {
            fields.error("name", Constraint::Required, "is required");
        }
        Some("auto" | "none" | "any") if name.is_some() => {
            fields.error("name", Constraint::Conflict, "is for type tool");
        }
        _ => {}
    }
    let is_single = fields.boolean("disable_parallel_tool_use").unwrap_or(false);
    let choice = match (kind, name) {
        (Some("none"), _) => Choice::None,
        (Some("any"), _) => Choice::Required,
        (Some("tool"), Some(name)) => Choice::Named(name),
        _ => Choice::Auto,
    };
    CallPolicy {
        choice,
        is_parallel: !is_single,
    }
}

#[cfg(test)]
mod tests;
