//! `response_format` of the OpenAI API and `structured_outputs` of vLLM: the grammar of an answer.
//!
//! ```text
//! "response_format": {"type": "json_schema", "json_schema": {"name": "point", "schema": {…}}}
//! "response_format": {"type": "json_object", "schema": {…}}             Together, llama-server
//! "json_schema": {…}, or "grammar": "root ::= …" (GBNF)                 llama-server
//! "structured_outputs": {"regex": "[0-9]+"}         or json, json_object, choice, grammar
//! ```
//!
//! Schemas, expressions and grammars are not interpreted here: the engine compiles them in an isolated process.

pub mod formats;

use crate::fields::{Fields, Names, inside};
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, Mistakes};
use crate::schema::{self, Shape};
use serde::de::IgnoredAny;
use serde_json::json;
use worker_orcd_grammar::limits::MAX_GRAMMAR_BYTES;
use worker_orcd_ipc::Grammar;
use worker_orcd_text::Structure;

/// Fields of both kinds of completion.
pub const FIELDS: &[&str] = &[FORMAT, SCHEMA, GBNF, OUTPUTS];

/// The corresponding field of the Responses API.
pub(super) const TEXT_FORMAT: &str = "text.format";
pub(super) const OUTPUT_FORMAT: &str = "output_config.format";

const FORMAT: &str = "response_format";
const SCHEMA: &str = "json_schema";
const GBNF: &str = "grammar";
const OUTPUTS: &str = "structured_outputs";

/// Rules in the grammars of tool calls (`worker_orcd_text::tools`), with settings that only the supervisor writes.
const OF_CALLS: [&str; 2] = ["%parameters", "%dict"];

const OF_FORMAT: Names = &[&["type", "json_schema", "schema"]];
const OF_SCHEMA: Names = &[&["name", "description", "schema", "strict"]];
const OF_OUTPUTS: Names = &[KINDS];

/// Types of formats, by number.
const FORMATS: &[(&str, u8)] = &[("text", 0), ("json_object", 1), ("json_schema", 2)];

/// Kinds of grammars, as named by vLLM.
const KINDS: &[&str] = &["json", "json_object", "regex", "choice", "grammar"];

/// Length of a schema's name, as in the OpenAI API.
const NAME_CHARS: std::ops::RangeInclusive<usize> = 1..=64;

const ANY_OBJECT: &str = "{\"type\":\"object\"}";

/// Grammar of an answer, and its field in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub field: &'static str,
    pub structure: Structure,
}

/// Notes all mistakes. `None`: unconstrained text. `has_tools`: the model may call tools.
pub fn read(fields: &mut Fields<'_>, has_tools: bool) -> Option<Asked> {
    let given = [
        (FORMAT, read_format(fields)),
        (SCHEMA, read_top_schema(fields)),
        (GBNF, read_gbnf(fields)),
        (OUTPUTS, read_outputs(fields)),
    ];
    fields.describe_rule(rule_of_others);
    let given = given.into_iter();
    let mut given = given.filter_map(|(field, grammar)| grammar.map(|grammar| (field, grammar)));
    let (field, grammar) = given.next()?;
    for (other, _) in given {
        let rule = format!("cannot be given together with {field}");
        fields.error(other, Constraint::Conflict, rule);
    }
    if has_tools {
        let rule = "cannot be given together with tools that may be called";
        fields.error(field, Constraint::Conflict, rule);
    }
    // A grammar's end must end the answer.
    if fields.is_true("ignore_eos") {
        let rule = format!("cannot be given together with {field}");
        fields.error("ignore_eos", Constraint::Conflict, rule);
    }
    let structure = Structure::Answer(grammar);
    Some(Asked { field, structure })
}

fn read_format(fields: &mut Fields<'_>) -> Option<Grammar> {
    let given = fields.given(FORMAT, format_shape)?;
    inside(fields, FORMAT, given, OF_FORMAT, |mut format| {
        let kind = format.must("type", |it, name| it.word(name, FORMATS));
        let schema = match kind {
            Some(1) => {
                let given = format.take("schema");
                let schema = given.map(|it| read_schema(&mut format, "schema", it));
                let free = || Some(ANY_OBJECT.to_owned());
                schema.unwrap_or_else(free).map(Grammar::JsonSchema)
            }
            Some(2) => {
                let given = format.must("json_schema", Fields::take);
                given.and_then(|it| {
                    inside(&mut format, "json_schema", it, OF_SCHEMA, read_named_schema).flatten()
                })
            }
            _ => None,
        };
        format.finish().map(|()| schema)
    })
    .flatten()
}

/// An empty one has no effect.
fn read_top_schema(fields: &mut Fields<'_>) -> Option<Grammar> {
    let given = fields.given(SCHEMA, schema::any_object)?;
    let is_empty = given.kind() == Kind::Object && given.is_empty();
    let schema = (!is_empty).then(|| read_schema(fields, SCHEMA, given));
    schema.flatten().map(Grammar::JsonSchema)
}

/// An empty one has no effect.
fn read_gbnf(fields: &mut Fields<'_>) -> Option<Grammar> {
    let text = fields.text(GBNF, &(0..=usize::MAX))?;
    let is_followed = !text.is_empty() && is_short(fields, GBNF, text.len());
    is_followed.then_some(Grammar::Gbnf(text))
}

fn read_named_schema(mut fields: Fields<'_>) -> Result<Option<Grammar>, Mistakes> {
    let (_, schema) = take_named_schema(&mut fields);
    fields.finish()?;
    Ok(schema.map(Grammar::JsonSchema))
}

/// Name, which is optional in llama-server and vLLM, and schema.
fn take_named_schema(fields: &mut Fields<'_>) -> (Option<String>, Option<String>) {
    let name = fields.text("name", &NAME_CHARS);
    // Neither field has an effect: the schema is always enforced.
    let _ = fields.text("description", &(0..=usize::MAX));
    let _ = fields.boolean("strict");
    (name, take_schema(fields))
}

fn take_schema(fields: &mut Fields<'_>) -> Option<String> {
    let schema = fields.must("schema", Fields::take);
    schema.and_then(|given| read_schema(fields, "schema", given))
}

/// A JSON Schema that is an object, as text of the body.
fn read_schema(fields: &mut Fields<'_>, name: &str, given: Json<'_>) -> Option<String> {
    let Some(schema) = given.object_text() else {
        fields.error(name, Constraint::Type, "must be an object");
        return None;
    };
    is_short(fields, name, schema.len()).then(|| schema.to_owned())
}

fn is_short(fields: &mut Fields<'_>, name: &str, bytes: usize) -> bool {
    if bytes > MAX_GRAMMAR_BYTES {
        let rule = format!("must have at most {MAX_GRAMMAR_BYTES} bytes");
        fields.error(name, Constraint::Length, rule);
    }
    bytes <= MAX_GRAMMAR_BYTES
}

fn read_outputs(fields: &mut Fields<'_>) -> Option<Grammar> {
    let given = fields.given(OUTPUTS, outputs_shape)?;
    inside(fields, OUTPUTS, given, OF_OUTPUTS, |mut outputs| {
        let kinds: Vec<&str> = KINDS
            .iter()
            .copied()
            .filter(|kind| outputs.has(kind))
            .collect();
        let grammar = match kinds.as_slice() {
            [only] => read_kind(&mut outputs, only),
            _ => {
                let rule = format!("must be given alone: one of {}", KINDS.join(", "));
                let first = kinds.first().copied().unwrap_or("json");
                outputs.error(first, Constraint::Conflict, rule);
                for kind in KINDS {
                    outputs.take(kind);
                }
                None
            }
        };
        outputs.finish().map(|()| grammar)
    })
    .flatten()
}

fn read_kind(outputs: &mut Fields<'_>, kind: &str) -> Option<Grammar> {
    let text = |outputs: &mut Fields<'_>| {
        let text = outputs.text(kind, &(1..=usize::MAX))?;
        is_short(outputs, kind, text.len()).then_some(text)
    };
    match kind {
        "json" => {
            let given = outputs.take(kind)?;
            let schema = match given.kind() {
                // Text of a schema, as in vLLM.
                Kind::Text => {
                    let text = outputs.text_of(kind, given, &(1..=usize::MAX))?;
                    let is_object = text.trim_start().starts_with('{')
                        && serde_json::from_str::<IgnoredAny>(&text).is_ok();
                    if !is_object {
                        let rule = "must be a schema, or the text of one: a JSON object";
                        outputs.error(kind, Constraint::Type, rule);
                        return None;
                    }
                    is_short(outputs, kind, text.len()).then_some(text)
                }
                _ => read_schema(outputs, kind, given),
            };
            schema.map(Grammar::JsonSchema)
        }
        "json_object" => {
            if outputs.boolean(kind)? {
                return Some(Grammar::JsonSchema(ANY_OBJECT.to_owned()));
            }
            let rule = "must be true";
            outputs.error(kind, Constraint::Unsupported, rule);
            None
        }
        "regex" => text(outputs).map(Grammar::Regex),
        "grammar" => {
            let text = text(outputs)?;
            if let Some(name) = OF_CALLS.into_iter().find(|it| text.contains(it)) {
                let rule = format!("must not contain {name}, which is for tool calls");
                outputs.error(kind, Constraint::Unsupported, rule);
                return None;
            }
            Some(Grammar::Lark(text))
        }
        _ => read_choice(outputs, kind).map(Grammar::Choice),
    }
}

fn read_choice(outputs: &mut Fields<'_>, kind: &str) -> Option<Vec<String>> {
    let given = outputs.take(kind)?;
    let (mut texts, mut bytes, mut are_texts) = (Vec::new(), 0, true);
    let is_list = given.each_element(|element| {
        let text = element.text().filter(|text| !text.is_empty());
        are_texts &= text.is_some();
        if let Some(text) = text {
            // One byte for each separator.
            bytes += text.len() + 1;
            if bytes <= MAX_GRAMMAR_BYTES {
                texts.push(text.into_owned());
            }
        }
    });
    if !is_list || !are_texts || texts.is_empty() {
        let rule = "must be a list of non-empty strings, at least one";
        outputs.error(kind, Constraint::Type, rule);
        return None;
    }
    is_short(outputs, kind, bytes).then_some(texts)
}

/// Rule against other fields: constrained text has an end, and cannot be a tool call. It does not exclude both fields
/// together: with one more alternative Schemathesis generates no body.
fn rule_of_others() -> Shape {
    let no_tools = schema::or_null(schema::values([json!([])]));
    let ends = schema::or_null(schema::values([false]));
    let text = schema::closed_object([("type", schema::values(["text"]))], &["type"]);
    schema::any_of([
        schema::object_with(
            [],
            [
                (FORMAT, schema::or_null(text)),
                (SCHEMA, schema::values([json!({}), json!(null)])),
                (GBNF, schema::values([json!(""), json!(null)])),
                (OUTPUTS, schema::null()),
            ],
        ),
        schema::object_with([], [("tools", no_tools), ("ignore_eos", ends)]),
    ])
}

/// Fields of [`take_named_schema`].
fn named_schema() -> [(&'static str, Shape); 4] {
    [
        ("name", schema::text_of(&NAME_CHARS)),
        ("description", schema::or_null(schema::text())),
        ("schema", schema::any_object()),
        ("strict", schema::or_null(schema::boolean())),
    ]
}

/// No schema can describe which schemas are supported.
fn format_shape() -> Shape {
    let schema = schema::closed_object(named_schema(), &["schema"]);
    let typed = |kind: &str| ("type", schema::values([kind]));
    let of_object = schema::or_null(schema::any_object());
    let held = [
        ("type", schema::values(["json_schema"])),
        ("json_schema", schema),
    ];
    schema::any_of([
        schema::closed_object([typed("text")], &["type"]),
        schema::closed_object([typed("json_object"), ("schema", of_object)], &["type"]),
        schema::closed_object(held, &["type", "json_schema"]),
    ])
}

fn outputs_shape() -> Shape {
    let only = |kind: &'static str, shape: Shape| schema::closed_object([(kind, shape)], &[kind]);
    let text = || schema::text_of(&(1..=usize::MAX));
    let json = schema::any_of([schema::any_object(), text()]);
    schema::any_of([
        only("json", json),
        only("json_object", schema::values([true])),
        only("regex", text()),
        only("choice", schema::list(text(), &(1..=usize::MAX))),
        only("grammar", text()),
    ])
}

/// Code of the OpenAI API for a grammar in this field that is not supported.
#[must_use]
pub fn openai_code(field: &str) -> &'static str {
    match field {
        FORMAT | SCHEMA | TEXT_FORMAT | OUTPUT_FORMAT | formats::FORMAT => "invalid_json_schema",
        GBNF | OUTPUTS => "invalid_grammar",
        _ => "invalid_function_parameters",
    }
}

#[cfg(test)]
mod tests;
