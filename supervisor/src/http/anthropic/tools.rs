//! `tools` and `tool_choice`: the OpenAI API's in other words.
//!
//! They are read here as far as the words differ, written as chat has them, and read by
//! [chat's own reader](crate::http::openai::tools), which knows what this model can have. Its mistakes are told under
//! the names that the client used.

use super::content::take_cache_control;
use crate::http::fields::{Fields, Names, among};
use crate::http::json::{Json, Kind};
use crate::http::mistakes::{Constraint, FieldError, Mistakes};
use crate::http::openai::tools::{self as openai, Tools};
use crate::http::openapi::schema;
use crate::text::tools::ChatTerms;
use serde_json::{Value, json};
use utoipa::openapi::Type;

pub(super) const FIELDS: &[&str] = &["tools", "tool_choice"];

const TOOL: Names = |name| {
    let own: &[&str] = &["type", "name", "description", "input_schema", "strict"];
    let of_servers: &[&str] = &["cache_control", "eager_input_streaming", "allowed_callers"];
    among(
        name,
        &[own, of_servers, &["defer_loading", "input_examples"]],
    )
};
const CHOICE: Names = |name| among(name, &[&["type", "name", "disable_parallel_tool_use"]]);

/// Longest name of a function, as chat has it.
const NAME_CHARS: std::ops::RangeInclusive<usize> = 1..=64;

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    let tools = read_tools(fields, terms);
    let (choice, is_parallel) = read_choice(fields, terms);
    let choice = choice.map_or_else(String::new, |choice| format!(",\"tool_choice\":{choice}"));
    let body = format!("{{\"tools\":[{tools}]{choice},\"parallel_tool_calls\":{is_parallel}}}");
    let names: Names = |name| among(name, &[openai::FIELDS]);
    let Ok(mut chat) = Fields::parse(&body, names) else {
        return Tools::default();
    };
    let tools = openai::read(&mut chat, max_chars, terms);
    if let Err(wrong) = chat.finish() {
        for error in wrong.listed() {
            let field = own_name(&error.field);
            fields.error(&field, error.constraint, error.message.clone());
        }
    }
    tools
}

/// What a field of chat is called here.
pub(super) fn own_name(field: &str) -> String {
    match field {
        "parallel_tool_calls" => "tool_choice.disable_parallel_tool_use".to_owned(),
        field => {
            let field = field.replacen(".function.parameters", ".input_schema", 1);
            field.replacen(".function", "", 1)
        }
    }
}

/// The members of chat's list.
fn read_tools(fields: &mut Fields<'_>, terms: &ChatTerms) -> String {
    fields.says("tools", || match openai::why_not(terms) {
        Some(_) => schema::values([json!([])]),
        None => {
            let read = |fields: Fields<'_>| drop(read_tool(fields));
            let tool = Fields::described(TOOL, read).into_shape();
            schema::list(tool, &(0..=openai::MAX_TOOLS))
        }
    });
    let Some(list) = fields.take("tools") else {
        return String::new();
    };
    let (mistakes, mut tools, mut count) = (fields.mistakes(), Vec::new(), 0);
    let mut all_right = true;
    let is_list = list.each_element(|item| {
        let read = match Fields::of(item, TOOL, mistakes) {
            Some(tool) => read_tool(tool).map_err(|wrong| (".", wrong)),
            None => {
                let rule = "must be an object";
                Err(("", FieldError::new("", Constraint::Type, rule).into()))
            }
        };
        match read {
            Ok(tool) => tools.push(tool),
            Err((dot, wrong)) => {
                all_right = false;
                mistakes.extend(|| format!("tools[{count}]{dot}"), wrong);
            }
        }
        count += 1;
    });
    if !is_list {
        fields.error("tools", Constraint::Type, "must be a list of tools");
    }
    // Where one is left out, the others have the wrong numbers.
    match all_right {
        true => tools.join(","),
        false => String::new(),
    }
}

/// The tool as chat has it.
fn read_tool(mut fields: Fields<'_>) -> Result<String, Mistakes> {
    let is_custom = |value: Json<'_>| value.text().as_deref() == Some("custom");
    let rule = "must be custom: tools of Anthropic's own are not here";
    fields.only("type", || schema::values(["custom"]), is_custom, rule);
    let name = fields.text("name", &NAME_CHARS);
    let name = fields.required("name", name);
    let description = fields.text("description", &(0..=usize::MAX));
    fields.says("input_schema", || schema::of_type(Type::Object));
    let schema = fields.take("input_schema");
    let schema = fields.required("input_schema", schema);
    let parameters = schema.and_then(Json::object_text);
    if schema.is_some() && parameters.is_none() {
        fields.error("input_schema", Constraint::Type, "must be an object");
    }
    let is_strict = fields.boolean("strict").unwrap_or(false);
    accept_harmless(&mut fields);
    fields.finish()?;
    let description =
        description.map_or_else(String::new, |it| format!(",\"description\":{}", json!(it)));
    Ok(format!(
        "{{\"type\":\"function\",\"function\":{{\"name\":{}{description},\"parameters\":{},\"strict\":{is_strict}}}}}",
        json!(name),
        parameters.unwrap_or("{}")
    ))
}

fn accept_harmless(fields: &mut Fields<'_>) {
    take_cache_control(fields);
    // Arguments are told as they come, always.
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

/// Chat's `tool_choice`, and its `parallel_tool_calls`.
fn read_choice(fields: &mut Fields<'_>, terms: &ChatTerms) -> (Option<Value>, bool) {
    // What chat's reader takes of it.
    fields.says("tool_choice", || {
        let single = || {
            (
                "disable_parallel_tool_use",
                schema::or_null(schema::boolean()),
            )
        };
        let kind = |kinds: &[&'static str]| ("type", schema::values(kinds.iter().copied()));
        match openai::why_not(terms) {
            Some(_) => schema::closed_object([kind(&["auto", "none"]), single()], &["type"]),
            None => schema::closed_object([kind(&["auto", "none", "any"]), single()], &["type"]),
        }
    });
    let Some(given) = fields.take("tool_choice") else {
        return (None, true);
    };
    let Some(mut inside) = Fields::of(given, CHOICE, fields.mistakes()) else {
        fields.error("tool_choice", Constraint::Type, "must be an object");
        return (None, true);
    };
    let read = read_choice_object(&mut inside);
    if let Err(wrong) = inside.finish() {
        fields
            .mistakes()
            .extend(|| "tool_choice.".to_owned(), wrong);
    }
    read
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    None,
    Any,
    Tool,
}

fn read_choice_object(fields: &mut Fields<'_>) -> (Option<Value>, bool) {
    let choices = [
        ("auto", Choice::Auto),
        ("none", Choice::None),
        ("any", Choice::Any),
        ("tool", Choice::Tool),
    ];
    let choice = fields.word("type", &choices);
    let choice = fields.required("type", choice);
    let name = fields.text("name", &NAME_CHARS);
    match choice {
        Some(Choice::Tool) if name.is_none() && !fields.has("name") => {
            fields.error("name", Constraint::Required, "is required");
        }
        Some(Choice::Auto | Choice::None | Choice::Any) if name.is_some() => {
            fields.error("name", Constraint::Conflict, "is for type tool");
        }
        _ => {}
    }
    let is_single = fields.boolean("disable_parallel_tool_use").unwrap_or(false);
    let choice = choice.map(|choice| match choice {
        Choice::Auto => json!("auto"),
        Choice::None => json!("none"),
        Choice::Any => json!("required"),
        Choice::Tool => json!({"type": "function", "function": {"name": name}}),
    });
    (choice, !is_single)
}

#[cfg(test)]
mod tests;
