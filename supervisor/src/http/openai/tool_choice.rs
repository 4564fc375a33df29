//! `tool_choice` and `parallel_tool_calls`: whether a model calls, what, and how often.

use super::tools::MAX_TOOLS;
use crate::http::fields::{Fields, Names, among};
use crate::http::json::{Json, Kind};
use crate::http::mistakes::{Constraint, FieldError, Mistakes};
use crate::http::openapi::schema::{self, Shape};
use crate::http::structure::Asked;
use crate::text::Structure;
use crate::text::tools::{CallRules, Function};
use worker_orcd_grammar::limits::MAX_GRAMMAR_BYTES;

pub(super) const FIELD: &str = "tool_choice";
pub(super) const PARALLEL: &str = "parallel_tool_calls";

const NAMED: Names = |name| among(name, &[&["type", "function"]]);
const FUNCTION: Names = |name| among(name, &[&["name"]]);
const CHOSEN: Names = |name| among(name, &[&["type", ALLOWED_TOOLS]]);
const ALLOWED: Names = |name| among(name, &[&["mode", "tools"]]);

pub(in crate::http) const ALLOWED_TOOLS: &str = "allowed_tools";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::http) enum Choice {
    /// The model is shown no tools.
    None,
    /// The model may call.
    #[default]
    Auto,
    /// The model must call.
    Required,
    /// The model must call this function, once.
    Named(String),
    /// The model is shown all tools, and may call these alone, or must.
    Allowed { names: Vec<String>, must_call: bool },
}

/// What a request says of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) kind: Choice,
    /// There may be several calls in one answer.
    is_parallel: bool,
}

/// `has_tools`: this model can have tools at all.
pub(super) fn read(fields: &mut Fields<'_>, has_tools: bool) -> Wanted {
    fields.says(FIELD, || match has_tools {
        true => {
            let words = schema::values(["none", "auto", "required"]);
            schema::any_of([words, shape_of_named(), shape_of_allowed()])
        }
        false => schema::values(["none", "auto"]),
    });
    Wanted {
        kind: read_choice(fields),
        is_parallel: fields.boolean(PARALLEL).unwrap_or(true),
    }
}

fn shape_of_named() -> Shape {
    let function = schema::closed_object([("name", schema::text())], &["name"]);
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

fn read_choice(fields: &mut Fields<'_>) -> Choice {
    let Some(given) = fields.take(FIELD) else {
        return Choice::Auto;
    };
    match (given.kind(), given.text().as_deref()) {
        (_, Some("none")) => return Choice::None,
        (_, Some("auto")) => return Choice::Auto,
        (_, Some("required")) => return Choice::Required,
        (Kind::Object, _) => {
            let read = match is_of_allowed(given) {
                true => read_chosen(given, fields.mistakes()),
                false => read_named(given, fields.mistakes()).map(|name| name.map(Choice::Named)),
            };
            match read {
                Ok(choice) => return choice.unwrap_or(Choice::Auto),
                Err(wrong) => fields.mistakes().extend(|| format!("{FIELD}."), wrong),
            }
        }
        _ => {
            let rule = "must be none, auto, required, or name functions";
            fields.error(FIELD, Constraint::Unsupported, rule);
        }
    }
    Choice::Auto
}

/// `{"type": "function", "function": {"name": …}}`
fn read_named(given: Json<'_>, outside: &Mistakes) -> Result<Option<String>, Mistakes> {
    let Some(mut fields) = Fields::of(given, NAMED, outside) else {
        return Ok(None);
    };
    let kind = fields.word("type", &[("function", ())]);
    fields.required("type", kind);
    let function = fields.take("function");
    let function = fields.required("function", function);
    let mut name = None;
    if let Some(function) = function {
        match Fields::of(function, FUNCTION, fields.mistakes()) {
            Some(mut inner) => {
                name = inner.text("name", &(1..=usize::MAX));
                name = inner.required("name", name);
                if let Err(wrong) = inner.finish() {
                    fields.mistakes().extend(|| "function.".to_owned(), wrong);
                }
            }
            None => fields.error("function", Constraint::Type, "must be an object"),
        }
    }
    fields.finish().map(|()| name)
}

/// True for a choice of type `allowed_tools`.
pub(in crate::http) fn is_of_allowed(choice: Json<'_>) -> bool {
    let mut is_allowed = false;
    choice.each_member(|name, value| {
        is_allowed |= name == "type" && value.text().as_deref() == Some(ALLOWED_TOOLS);
    });
    is_allowed
}

/// `{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}`
fn read_chosen(given: Json<'_>, outside: &Mistakes) -> Result<Option<Choice>, Mistakes> {
    let Some(mut fields) = Fields::of(given, CHOSEN, outside) else {
        return Ok(None);
    };
    fields.word("type", &[(ALLOWED_TOOLS, ())]);
    let allowed = fields.take(ALLOWED_TOOLS);
    let mut choice = None;
    if let Some(allowed) = fields.required(ALLOWED_TOOLS, allowed) {
        match Fields::of(allowed, ALLOWED, fields.mistakes()) {
            Some(inside) => match read_allowed(inside) {
                Ok(read) => choice = read,
                Err(wrong) => {
                    let place = || format!("{ALLOWED_TOOLS}.");
                    fields.mistakes().extend(place, wrong);
                }
            },
            None => fields.error(ALLOWED_TOOLS, Constraint::Type, "must be an object"),
        }
    }
    fields.finish().map(|()| choice)
}

fn read_allowed(mut fields: Fields<'_>) -> Result<Option<Choice>, Mistakes> {
    let mode = fields.word("mode", &[("auto", false), ("required", true)]);
    let mode = fields.required("mode", mode);
    let list = fields.take("tools");
    let list = fields.required("tools", list);
    let (mut names, mut count) = (Vec::new(), 0);
    let is_list = list.is_none_or(|list| {
        let mistakes = fields.mistakes();
        list.each_element(|item| {
            let place = || format!("tools[{count}].");
            match read_named(item, mistakes) {
                Ok(Some(name)) if count < MAX_TOOLS => names.push(name),
                Ok(Some(_)) => {}
                Ok(None) => mistakes.note(|| {
                    let place = format!("tools[{count}]");
                    FieldError::new(place, Constraint::Type, "must be an object")
                }),
                Err(wrong) => mistakes.extend(place, wrong),
            }
            count += 1;
        })
    });
    if !is_list {
        fields.error("tools", Constraint::Type, "must be a list of functions");
    } else if list.is_some() && !(1..=MAX_TOOLS).contains(&count) {
        let rule = format!("must be from 1 to {MAX_TOOLS}");
        fields.error("tools", Constraint::Length, rule);
    }
    fields.finish().map(|()| {
        let allowed = |must_call| Choice::Allowed { names, must_call };
        mode.map(allowed)
    })
}

/// What the answer is held to: `None` where nothing has to be sure. `has_none`: no tools were given.
pub(super) fn settle(
    fields: &mut Fields<'_>,
    wanted: &Wanted,
    functions: Option<Vec<Function>>,
    has_none: bool,
) -> Option<Asked> {
    let Some(functions) = functions else {
        if !matches!(wanted.kind, Choice::Auto | Choice::None) && has_none {
            fields.error(FIELD, Constraint::Conflict, "needs tools");
        }
        return None;
    };
    let (held, must_call) = match &wanted.kind {
        Choice::None => return None,
        Choice::Auto => {
            let is_free = wanted.is_parallel && functions.iter().all(|it| !it.is_strict);
            if is_free {
                return None;
            }
            (functions, false)
        }
        Choice::Required => (functions, true),
        Choice::Named(name) => {
            let Some(named) = functions.into_iter().find(|it| it.name == *name) else {
                fields.error(FIELD, Constraint::Conflict, "names none of the tools");
                return None;
            };
            (vec![named], true)
        }
        Choice::Allowed { names, must_call } => {
            let is_known = |name: &String| functions.iter().any(|it| it.name == *name);
            if !names.iter().all(is_known) {
                let rule = "allows a function that is none of the tools";
                fields.error(FIELD, Constraint::Conflict, rule);
                return None;
            }
            let mut allowed = functions;
            allowed.retain(|it| names.contains(&it.name));
            (allowed, *must_call)
        }
    };
    let functions = with_objects(fields, held)?;
    let field = match wanted.kind {
        Choice::Auto if wanted.is_parallel => "tools",
        Choice::Auto => PARALLEL,
        _ => FIELD,
    };
    if fields.is_true("ignore_eos") {
        let rule = format!("cannot be given together with {field}");
        fields.error("ignore_eos", Constraint::Conflict, rule);
    }
    let is_one = matches!(wanted.kind, Choice::Named(_)) || !wanted.is_parallel;
    let rules = CallRules {
        functions,
        must_call,
        may_repeat: !is_one,
    };
    let structure = Structure::Calls(rules);
    Some(Asked { field, structure })
}

/// Arguments are objects: a schema that does not say so is made to say it.
fn with_objects(fields: &mut Fields<'_>, functions: Vec<Function>) -> Option<Vec<Function>> {
    let (mut wrong, mut bytes) = (fields.mistakes().inside(), 0);
    let objects = functions.into_iter().map(|function| {
        let parameters = function.parameters.map(|schema| {
            bytes += schema.len();
            object_schema(&schema).unwrap_or_else(|| {
                let place = format!("[{}].function.parameters", function.place);
                let rule = "must have type: object";
                wrong.note(|| FieldError::new(place, Constraint::Unsupported, rule));
                schema
            })
        });
        Function {
            parameters,
            ..function
        }
    });
    let objects = objects.collect();
    if bytes > MAX_GRAMMAR_BYTES {
        let rule = format!("must have at most {MAX_GRAMMAR_BYTES} bytes of parameters in all");
        wrong.note(|| FieldError::new("", Constraint::Length, rule));
    }
    let is_right = wrong.is_empty();
    fields.mistakes().extend(|| "tools".to_owned(), wrong);
    is_right.then_some(objects)
}

/// `None` for a schema of something else.
fn object_schema(schema: &str) -> Option<String> {
    let (mut kind, mut is_empty) = (None, true);
    let visit = |name: &str, value: Json<'_>| {
        is_empty = false;
        if name == "type" {
            kind = Some(value.text().is_some_and(|text| text == "object"));
        }
    };
    crate::http::json::each_member_of(schema, visit).ok()?;
    match kind {
        Some(true) => Some(schema.to_owned()),
        Some(false) => None,
        None => {
            let rest = schema.trim_start().strip_prefix('{')?;
            let comma = if is_empty { "" } else { "," };
            Some(format!("{{\"type\":\"object\"{comma}{rest}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_one_of_an_object_or_made_so() {
        for (schema, object) in [
            ("{}", Some("{\"type\":\"object\"}")),
            ("{\"type\":\"object\"}", Some("{\"type\":\"object\"}")),
            (
                "{\"$ref\":\"#/a\"}",
                Some("{\"type\":\"object\",\"$ref\":\"#/a\"}"),
            ),
            ("{\"type\":[\"object\",\"null\"]}", None),
            ("{\"type\":\"string\"}", None),
        ] {
            assert_eq!(object_schema(schema).as_deref(), object, "{schema}");
        }
    }
}
