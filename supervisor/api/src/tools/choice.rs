//! Tool choice: which functions an answer may or must call, and how often. Resolved to a constraint on the answer.

use super::MAX_TOOLS;
use crate::fields::Fields;
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, FieldError, Mistakes};
use crate::structure::Asked;
use worker_orcd_grammar::limits::MAX_GRAMMAR_BYTES;
use worker_orcd_text::Structure;
use worker_orcd_text::tools::{CallRules, Function};

pub(crate) const FIELD: &str = "tool_choice";
pub(crate) const ALLOWED_TOOLS: &str = "allowed_tools";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// No calls: the template receives no tools.
    None,
    /// Calls are optional.
    #[default]
    Auto,
    /// One or more calls are required.
    Required,
    /// One call, of this function, is required.
    Named(String),
    /// The template receives all tools, but only these may be called. `must_call`: a call is required.
    Allowed { names: Vec<String>, must_call: bool },
}

/// Tool choice of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallPolicy {
    pub choice: Choice,
    /// Several calls in one answer are allowed.
    pub is_parallel: bool,
}

impl CallPolicy {
    /// Any number of calls, or none.
    pub(crate) const FREE: Self = Self {
        choice: Choice::Auto,
        is_parallel: true,
    };
}

/// Reads `tool_choice`: a word, or an object that `named` or `allowed` parses.
pub(crate) fn read(
    fields: &mut Fields<'_>,
    named: fn(Json<'_>, &Mistakes) -> Result<Option<String>, Mistakes>,
    allowed: fn(Json<'_>, &Mistakes) -> Result<Option<Choice>, Mistakes>,
) -> Choice {
    let Some(given) = fields.take(FIELD) else {
        return Choice::Auto;
    };
    match (given.kind(), given.text().as_deref()) {
        (_, Some("none")) => return Choice::None,
        (_, Some("auto")) => return Choice::Auto,
        (_, Some("required")) => return Choice::Required,
        (Kind::Object, _) => {
            let kind = given.member("type").and_then(Json::text);
            let read = match kind.as_deref() == Some(ALLOWED_TOOLS) {
                true => allowed(given, fields.mistakes()),
                false => named(given, fields.mistakes()).map(|name| name.map(Choice::Named)),
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

/// Reads the fields `mode` and `tools` of an `allowed_tools` choice: the allowed functions, and whether a call is
/// required. `read` parses each tool, unless `is_left_out` accepts it.
pub(crate) fn read_allowed(
    fields: &mut Fields<'_>,
    read: fn(Json<'_>, &Mistakes) -> Result<Option<String>, Mistakes>,
    is_left_out: fn(Json<'_>) -> bool,
) -> Option<Choice> {
    let modes = [("auto", false), ("required", true)];
    let mode = fields.must("mode", |it, name| it.word(name, &modes));
    let list = fields.must("tools", Fields::take)?;
    let (mut names, mut kept, mut count) = (Vec::new(), 0, 0);
    let mistakes = fields.mistakes();
    let is_list = list.each_element(|item| {
        let place = || format!("tools[{count}].");
        if count < MAX_TOOLS && !is_left_out(item) {
            kept += 1;
            match read(item, mistakes) {
                Ok(Some(name)) => names.push(name),
                Ok(None) => mistakes.note(|| {
                    let place = format!("tools[{count}]");
                    FieldError::new(place, Constraint::Type, "must be an object")
                }),
                Err(wrong) => mistakes.extend(place, wrong),
            }
        }
        count += 1;
    });
    if !is_list {
        fields.error("tools", Constraint::Type, "must be a list of functions");
    } else if kept == 0 || count > MAX_TOOLS {
        let rule = format!("must be from 1 to {MAX_TOOLS}");
        fields.error("tools", Constraint::Length, rule);
    }
    mode.map(|must_call| Choice::Allowed { names, must_call })
}

/// Constraint on the answer. `None` if the choice requires nothing. `has_none`: the request contains no tools.
/// `parallel`: the API's name of the field that forbids several calls.
pub(crate) fn settle(
    fields: &mut Fields<'_>,
    wanted: &CallPolicy,
    functions: Option<Vec<Function>>,
    has_none: bool,
    parallel: &'static str,
) -> Option<Asked> {
    let Some(functions) = functions else {
        if !matches!(wanted.choice, Choice::Auto | Choice::None) && has_none {
            fields.error(FIELD, Constraint::Conflict, "needs tools");
        }
        return None;
    };
    let (held, must_call) = match &wanted.choice {
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
    let field = match wanted.choice {
        Choice::Auto if wanted.is_parallel => "tools",
        Choice::Auto => parallel,
        _ => FIELD,
    };
    if fields.is_true("ignore_eos") {
        let rule = format!("cannot be given together with {field}");
        fields.error("ignore_eos", Constraint::Conflict, rule);
    }
    let is_one = matches!(wanted.choice, Choice::Named(_)) || !wanted.is_parallel;
    let rules = CallRules {
        functions,
        must_call,
        may_repeat: !is_one,
    };
    let structure = Structure::Calls(rules);
    Some(Asked { field, structure })
}

/// Adds `"type": "object"` to schemas without a type, because arguments are objects. `None` if a schema has another
/// type.
fn with_objects(fields: &mut Fields<'_>, functions: Vec<Function>) -> Option<Vec<Function>> {
    let (mut wrong, mut bytes) = (fields.mistakes().inside(), 0);
    let objects = functions.into_iter().map(|function| {
        let parameters = function.parameters.map(|schema| {
            bytes += schema.len();
            object_schema(&schema).unwrap_or_else(|| {
                let rule = "must have type: object";
                let error = || FieldError::new(&*function.path, Constraint::Unsupported, rule);
                wrong.note(error);
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
        wrong.note(|| FieldError::new("tools", Constraint::Length, rule));
    }
    let is_right = wrong.is_empty();
    fields.mistakes().extend(String::new, wrong);
    is_right.then_some(objects)
}

/// Schema of an object. `None` if the schema has another type.
fn object_schema(schema: &str) -> Option<String> {
    let (mut kind, mut is_empty) = (None, true);
    let visit = |name: &str, value: Json<'_>| {
        is_empty = false;
        if name == "type" {
            kind = Some(value.text().is_some_and(|text| text == "object"));
        }
    };
    crate::json::each_member_of(schema, visit).ok()?;
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
