//! Fields `tool_choice` and `parallel_tool_calls` of chat.

use crate::fields::{Fields, Names, nested};
use crate::json::Json;
use crate::mistakes::Mistakes;
use crate::schema::{self, Shape};
use crate::tools::MAX_TOOLS;
use crate::tools::choice::{self, ALLOWED_TOOLS, CallPolicy, Choice, FIELD, read_allowed};

pub(super) const PARALLEL: &str = "parallel_tool_calls";

const NAMED: Names = &[&["type", "function"]];
const FUNCTION: Names = &[&["name"]];
const CHOSEN: Names = &[&["type", ALLOWED_TOOLS]];
const ALLOWED: Names = &[&["mode", "tools"]];

/// `has_tools`: this model can have tools.
pub(super) fn read(fields: &mut Fields<'_>, has_tools: bool) -> CallPolicy {
    fields.describe(FIELD, || match has_tools {
        true => {
            let words = schema::values(["none", "auto", "required"]);
            schema::any_of([words, shape_of_named(), shape_of_allowed()])
        }
        false => schema::values(["none", "auto"]),
    });
    CallPolicy {
        choice: choice::read(fields, read_named, read_chosen),
        is_parallel: fields.boolean(PARALLEL).unwrap_or(true),
    }
}

fn shape_of_named() -> Shape {
    let name = schema::text_of(&(1..=usize::MAX));
    let function = schema::closed_object([("name", name)], &["name"]);
    let kind = ("type", schema::values(["function"]));
    schema::closed_object([kind, ("function", function)], &["type", "function"])
}

fn shape_of_allowed() -> Shape {
    let mode = ("mode", schema::values(["auto", "required"]));
    let tools = schema::list(shape_of_named(), &(1..=MAX_TOOLS));
    let allowed = schema::closed_object([mode, ("tools", tools)], &["mode", "tools"]);
    let kind = ("type", schema::values([ALLOWED_TOOLS]));
    schema::closed_object([kind, (ALLOWED_TOOLS, allowed)], &["type", ALLOWED_TOOLS])
}

/// Reads `{"type": "function", "function": {"name": …}}`.
fn read_named(given: Json<'_>, outside: &Mistakes) -> Result<Option<String>, Mistakes> {
    let Some(mut fields) = Fields::of(given, NAMED, outside) else {
        return Ok(None);
    };
    fields.must("type", |it, name| it.word(name, &[("function", ())]));
    let name = nested(&mut fields, "function", FUNCTION, |mut inside| {
        let name = inside.must("name", |it, name| it.text(name, &(1..=usize::MAX)));
        inside.finish().map(|()| name)
    });
    let name = fields.required("function", name);
    fields.finish().map(|()| name.flatten())
}

/// Reads `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`.
fn read_chosen(given: Json<'_>, outside: &Mistakes) -> Result<Option<Choice>, Mistakes> {
    let Some(mut fields) = Fields::of(given, CHOSEN, outside) else {
        return Ok(None);
    };
    fields.word("type", &[(ALLOWED_TOOLS, ())]);
    let choice = nested(&mut fields, ALLOWED_TOOLS, ALLOWED, |mut inside| {
        let choice = read_allowed(&mut inside, read_named, |_| false);
        inside.finish().map(|()| choice)
    });
    let choice = fields.required(ALLOWED_TOOLS, choice);
    fields.finish().map(|()| choice.flatten())
}
