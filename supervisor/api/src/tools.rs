//! Tools of a request, independent of the API: each API's reader parses its own form into [`Tool`]s and a [`CallPolicy`].
//!
//! The chat template shows tools to the model as a list of
//! `{"type": "function", "function": {"name", "description", "parameters"}}`. The keys have this order for every client.
//! Requirements of the client (a call, at most one call, arguments that match a strict schema) become a
//! [`Structure`](worker_orcd_text::Structure), a grammar that constrains the answer.
//!
//! Deliberately absent: fields of one API only, and parsing of the model's calls.

pub(super) mod choice;

use crate::fields::{self, Fields, Names, each, element};
use crate::json::Json;
use crate::messages::tool_calls::NUMBERS;
use crate::mistakes::{Constraint, Mistakes};
use crate::schema;
use crate::structure::Asked;
use choice::{CallPolicy, Choice};
use serde_json::json;
use worker_orcd_text::json_texts;
use worker_orcd_text::tools::{ChatTerms, Function};

/// Maximum number of tools. The OpenAI API's limit.
pub(super) const MAX_TOOLS: usize = 128;

pub(super) const NAME_CHARS: std::ops::RangeInclusive<usize> = 1..=64;

/// Hint about caching. It has no effect, because every prompt is cached. Clients set it on either object of a tool.
pub(super) const CACHE_CONTROL: &str = "cache_control";

/// Tools of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// List for the chat template. `None` without tools, and if the client forbids calls.
    pub(super) shown: Option<String>,
    /// Constraint on the answer.
    pub(super) asked: Option<Asked>,
    pub(super) choice: Choice,
}

/// Function of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tool {
    name: String,
    description: Option<String>,
    /// JSON object.
    parameters: Option<String>,
    is_strict: bool,
}

/// Format of tools in one API.
pub(super) struct ToolFormat {
    pub(super) names: Names,
    pub(super) read: fn(Fields<'_>) -> Result<Option<Tool>, Mistakes>,
    /// Path of the arguments' schema, relative to the tool.
    pub(super) parameters: &'static str,
    /// Description of the list's items, for error messages.
    pub(super) items: &'static str,
    /// True for a tool that is ignored.
    pub(super) is_left_out: fn(Json<'_>) -> bool,
}

/// Functions of a request.
#[derive(Debug, Default)]
pub(super) struct List {
    /// List for the template, and the functions. `None` if there are none, or if one is invalid.
    functions: Option<(String, Vec<Function>)>,
    /// The request contains no functions.
    is_empty: bool,
}

impl Tool {
    /// Reads `name`, `description`, `strict`, and the field `parameters`. The caller reads other fields. `None` if one
    /// is invalid.
    pub(super) fn read(fields: &mut Fields<'_>, parameters: &str) -> Option<Self> {
        let name = fields.must("name", |it, name| it.text(name, &NAME_CHARS));
        let description = fields.text("description", &(0..=usize::MAX));
        let parameters = read_parameters(fields, parameters);
        let is_strict = fields.boolean("strict").unwrap_or(false);
        Some(Self {
            name: name?,
            description,
            parameters,
            is_strict,
        })
    }

    /// JSON for the template.
    fn shown(&self) -> String {
        let mut function = format!("{{\"name\":{}", json!(self.name));
        if let Some(description) = &self.description {
            function.push_str(&format!(",\"description\":{}", json!(description)));
        }
        if let Some(parameters) = &self.parameters {
            function.push_str(&format!(",\"parameters\":{parameters}"));
        }
        format!("{{\"type\":\"function\",\"function\":{function}}}}}")
    }
}

fn read_parameters(fields: &mut Fields<'_>, field: &str) -> Option<String> {
    let object = fields.given(field, schema::any_object)?.object_text();
    let object = object.and_then(|it| json_texts::map_object(it, &mut str::to_owned));
    if object.is_none() {
        let rule = "must be an object, not nested too deep";
        fields.error(field, Constraint::Type, rule);
    }
    if object
        .as_deref()
        .is_some_and(|it| !json_texts::keeps_numbers(it))
    {
        fields.error(field, Constraint::Range, NUMBERS);
    }
    object
}

/// Reason for which this model cannot have tools. `None` if it can.
pub(super) fn why_not(terms: &ChatTerms) -> Option<&'static str> {
    if !terms.shows_tools {
        Some("cannot be shown: the model's chat template does not ask for tools")
    } else if terms.parsing.calls.is_none() {
        Some("cannot be called: it is not known how this model writes calls (--tool-call-parser)")
    } else {
        None
    }
}

/// Reads `tools` of an API that has functions alone.
pub(super) fn read_functions(
    fields: &mut Fields<'_>,
    form: &ToolFormat,
    max_chars: usize,
    terms: &ChatTerms,
) -> List {
    fields.describe("tools", || match why_not(terms) {
        Some(_) => schema::values([json!([])]),
        None => schema::list(fields::shape(form.names, form.read), &(0..=MAX_TOOLS)),
    });
    read_list(fields, form, max_chars, terms)
}

/// Field of a tool that this model's calls cannot express, relative to the tool, and the rule that it breaks.
fn objection(tool: &Tool, form: &ToolFormat, terms: &ChatTerms) -> Option<(String, String)> {
    let syntax = terms.parsing.calls?;
    let parameters = tool.parameters.as_deref();
    if let Some(rule) = syntax.objection_to_name(&tool.name) {
        let object = form.parameters.rsplit_once('.');
        let object = object.map_or(String::new(), |(object, _)| format!(".{object}"));
        return Some((format!("{object}.name"), rule.to_owned()));
    }
    let rule = syntax.objection_to_schema(parameters?)?;
    Some((format!(".{}", form.parameters), rule))
}

/// Reads `tools`. The caller has described its schema.
pub(super) fn read_list(
    fields: &mut Fields<'_>,
    form: &ToolFormat,
    max_chars: usize,
    terms: &ChatTerms,
) -> List {
    let Some(list) = fields.take("tools") else {
        return List {
            functions: None,
            is_empty: true,
        };
    };
    let why_not = why_not(terms);
    let (mut shown, mut functions) = (Vec::new(), Vec::new());
    let mut kept = 0;
    let count = each(fields.mistakes(), "tools", list, |index, item, outside| {
        if index >= MAX_TOOLS || (form.is_left_out)(item) {
            return Ok(());
        }
        kept += 1;
        if why_not.is_some() {
            return Ok(());
        }
        let object = Fields::of(item, form.names, outside);
        if let Some(tool) = element(object, outside, "must be an object", form.read)? {
            if let Some((field, rule)) = objection(&tool, form, terms) {
                return Err(outside.only(&field, Constraint::Unsupported, rule));
            }
            shown.push(tool.shown());
            functions.push(Function {
                path: format!("tools[{index}].{}", form.parameters),
                name: tool.name,
                parameters: tool.parameters,
                is_strict: tool.is_strict,
            });
        }
        Ok(())
    });
    let tools = format!("[{}]", shown.join(","));
    let is_empty = count.is_some() && kept == 0;
    let (constraint, rule) = if count.is_none() {
        let rule = format!("must be a list of {}", form.items);
        (Constraint::Type, rule)
    } else if count > Some(MAX_TOOLS) {
        (Constraint::Length, format!("must be at most {MAX_TOOLS}"))
    } else if is_empty {
        return List {
            functions: None,
            is_empty,
        };
    } else if let Some(rule) = why_not {
        (Constraint::Unsupported, rule.to_owned())
    } else if tools.chars().count() > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        (Constraint::Length, rule)
    } else if !json_texts::is_whole(&tools) {
        (Constraint::Json, "are nested too deep".to_owned())
    } else {
        return List {
            functions: Some((tools, functions)),
            is_empty,
        };
    };
    fields.error("tools", constraint, rule);
    List::default()
}

/// Constraint on the answer, and list for the template. `parallel`: the API's name of the field that forbids several
/// calls.
pub(super) fn settle(
    fields: &mut Fields<'_>,
    list: List,
    wanted: CallPolicy,
    parallel: &'static str,
) -> Tools {
    let (shown, functions) = list.functions.unzip();
    let asked = choice::settle(fields, &wanted, functions, list.is_empty, parallel);
    Tools {
        shown: shown.filter(|_| wanted.choice != Choice::None),
        asked,
        choice: wanted.choice,
    }
}
