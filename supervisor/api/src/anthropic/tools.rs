//! Fields `tools` and `tool_choice` of the Messages API. A tool is
//! `{"type": "custom", "name", "description", "input_schema", "strict"}`.

use super::content::take_cache_control;
use crate::fields::{self, Fields, Names, among, inside};
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, Mistakes};
use crate::schema;
use crate::tools::choice::{Choice, Wanted};
use crate::tools::{Form, MAX_TOOLS, NAME_CHARS, Tool, Tools, read_list, settle, why_not};
use serde_json::json;
use worker_orcd_text::tools::ChatTerms;

pub(super) const FIELDS: &[&str] = &["tools", "tool_choice"];

/// Name of the field that forbids several calls.
const PARALLEL: &str = "tool_choice.disable_parallel_tool_use";

const TOOL: Names = |name| {
    let own: &[&str] = &["type", "name", "description", "input_schema", "strict"];
    let of_servers: &[&str] = &["cache_control", "eager_input_streaming", "allowed_callers"];
    among(
        name,
        &[own, of_servers, &["defer_loading", "input_examples"]],
    )
};
const CHOICE: Names = |name| among(name, &[&["type", "name", "disable_parallel_tool_use"]]);

const FORM: Form = Form {
    names: TOOL,
    read: read_tool,
    parameters: "input_schema",
    items: "tools",
    is_left_out: |_| false,
};

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    fields.describe("tools", || match why_not(terms) {
        Some(_) => schema::values([json!([])]),
        None => schema::list(fields::shape(TOOL, read_tool), &(0..=MAX_TOOLS)),
    });
    let list = read_list(fields, &FORM, max_chars, terms);
    let wanted = read_choice(fields, terms);
    settle(fields, list, wanted, PARALLEL)
}

fn read_tool(mut fields: Fields<'_>) -> Result<Option<Tool>, Mistakes> {
    let is_custom = |value: Json<'_>| value.text().as_deref() == Some("custom");
    let rule = "must be custom: tools of Anthropic's own are not here";
    fields.only("type", || schema::values(["custom"]), is_custom, rule);
    let tool = Tool::read(&mut fields, "input_schema");
    let schema = fields.has("input_schema").then_some(());
    fields.required("input_schema", schema);
    accept_harmless(&mut fields);
    fields.finish().map(|()| tool)
}

fn accept_harmless(fields: &mut Fields<'_>) {
    take_cache_control(fields);
    // Without effect: arguments are always streamed as they arrive.
    fields.boolean("eager_input_streaming");
    let is_at_once = |value: Json<'_>| value.boolean() == Some(false);
    let rule = "may be false only: all tools are shown";
    fields.only(
        "defer_loading",
        || schema::values([false]),
        is_at_once,
        rule,
    );
    let is_empty = |value: Json<'_>| value.kind() == Kind::List && value.is_empty();
    let rule = "are not supported, unless there are none";
    fields.only(
        "input_examples",
        || schema::values([json!([])]),
        is_empty,
        rule,
    );
    let direct = || json!(["direct"]);
    let is_direct = |value: Json<'_>| value.small() == Some(direct());
    let rule = "may be direct only";
    fields.only(
        "allowed_callers",
        || schema::values([direct()]),
        is_direct,
        rule,
    );
}

fn read_choice(fields: &mut Fields<'_>, terms: &ChatTerms) -> Wanted {
    fields.describe("tool_choice", || {
        let single = || {
            (
                "disable_parallel_tool_use",
                schema::or_null(schema::boolean()),
            )
        };
        let kind = |kinds: &[&'static str]| ("type", schema::values(kinds.iter().copied()));
        match why_not(terms) {
            Some(_) => schema::closed_object([kind(&["auto", "none"]), single()], &["type"]),
            None => schema::closed_object([kind(&["auto", "none", "any"]), single()], &["type"]),
        }
    });
    let free = Wanted {
        choice: Choice::Auto,
        is_parallel: true,
    };
    let Some(given) = fields.take("tool_choice") else {
        return free;
    };
    let mut wanted = free;
    inside(fields, "tool_choice", given, CHOICE, |mut object| {
        wanted = read_choice_object(&mut object);
        object.finish()
    });
    wanted
}

fn read_choice_object(fields: &mut Fields<'_>) -> Wanted {
    let kinds = ["auto", "none", "any", "tool"].map(|kind| (kind, kind));
    let kind = fields.word("type", &kinds);
    let kind = fields.required("type", kind);
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
    Wanted {
        choice,
        is_parallel: !is_single,
    }
}

#[cfg(test)]
mod tests;
