//! Answer formats of the Responses API and Anthropic's, nested in another field, and Ollama's.
//!
//! ```text
//! "format": "json", or a schema
//! "text": {"format": {"type": "json_schema", "name": "point", "schema": {…}}}
//! "output_config": {"format": {"type": "json_schema", "schema": {…}}}
//! ```

use super::{
    ANY_OBJECT, Asked, FORMATS, named_schema, read_schema, take_named_schema, take_schema,
};
use crate::fields::{Fields, Names, inside};
use crate::json::Kind;
use crate::mistakes::Constraint;
use crate::schema::{self, Shape};
use serde_json::{Value, json};
use worker_orcd_ipc::Grammar;
use worker_orcd_text::Structure;

pub const FORMAT: &str = "format";

const OF_TEXT: Names = &[&["type", "name", "description", "schema", "strict"]];
const OF_OUTPUT: Names = &[&["type", "schema"]];

/// `format` of the Responses API's `text`: the grammar, and the value that the response repeats.
pub fn read_of_text(fields: &mut Fields<'_>) -> Option<(Grammar, Value)> {
    let given = fields.given(FORMAT, text_shape)?;
    inside(fields, FORMAT, given, OF_TEXT, |mut format| {
        let kind = format.must("type", |it, name| it.word(name, FORMATS));
        let named = match kind {
            Some(2) => {
                let (name, schema) = take_named_schema(&mut format);
                format.required("name", name).zip(schema)
            }
            _ => None,
        };
        format.finish()?;
        Ok(match kind {
            Some(1) => {
                let object = Grammar::JsonSchema(ANY_OBJECT.to_owned());
                Some((object, json!({"type": "json_object"})))
            }
            _ => named.map(|(name, schema)| {
                // It was read as an object. A schema that nests too deeply for this parser is refused later.
                let keywords: Value = serde_json::from_str(&schema).unwrap_or_default();
                let told = json!({"type": "json_schema", "name": name, "schema": keywords});
                (Grammar::JsonSchema(schema), told)
            }),
        })
    })
    .flatten()
}

/// `format` of Anthropic's `output_config`.
pub fn read_of_output(fields: &mut Fields<'_>) -> Option<Grammar> {
    let given = fields.given(FORMAT, output_shape)?;
    inside(fields, FORMAT, given, OF_OUTPUT, |mut format| {
        format.must("type", |it, name| it.word(name, &[("json_schema", ())]));
        let schema = take_schema(&mut format);
        format.finish()?;
        Ok(schema.map(Grammar::JsonSchema))
    })
    .flatten()
}

/// `format` of Ollama's API. An empty text has no effect.
pub fn read_of_ollama(fields: &mut Fields<'_>) -> Option<Grammar> {
    let shape = || schema::any_of([schema::values(["json", ""]), schema::any_object()]);
    let given = fields.given(FORMAT, shape)?;
    let schema = match (given.kind(), given.text().as_deref()) {
        (Kind::Object, _) => read_schema(fields, FORMAT, given),
        (_, Some("")) => None,
        (_, Some("json")) => Some(ANY_OBJECT.to_owned()),
        _ => {
            fields.error(FORMAT, Constraint::Type, "must be json or a JSON Schema");
            None
        }
    };
    schema.map(Grammar::JsonSchema)
}

/// Grammar of a format or of tools, which exclude each other. `field`: field of the format.
pub fn settle(
    fields: &mut Fields<'_>,
    field: &'static str,
    format: Option<Grammar>,
    has_tools: bool,
    calls: Option<Asked>,
) -> Option<Asked> {
    fields.describe_rule(|| rule_of_tools(field));
    let Some(grammar) = format else {
        return calls;
    };
    if has_tools {
        let rule = "cannot be given together with tools that may be called";
        fields.error(field, Constraint::Conflict, rule);
    }
    let structure = Structure::Answer(grammar);
    Some(Asked { field, structure })
}

fn rule_of_tools(field: &str) -> Shape {
    let no_tools = schema::or_null(schema::values([json!([])]));
    let text = schema::closed_object([("type", schema::values(["text"]))], &["type"]);
    let (outside, free) = match field.split_once('.') {
        Some((outside, _)) => {
            let free = schema::object_with([], [(FORMAT, schema::or_null(text))]);
            (outside, free)
        }
        None => (field, schema::values([""])),
    };
    schema::any_of([
        schema::object_with([], [("tools", no_tools)]),
        schema::object_with([], [(outside, schema::or_null(free))]),
    ])
}

fn text_shape() -> Shape {
    let typed = |kind: &str| schema::closed_object([("type", schema::values([kind]))], &["type"]);
    let kind = [("type", schema::values(["json_schema"]))];
    let members = kind.into_iter().chain(named_schema());
    let held = schema::closed_object(members, &["type", "name", "schema"]);
    schema::any_of([typed("text"), typed("json_object"), held])
}

fn output_shape() -> Shape {
    let kind = schema::values(["json_schema"]);
    let members = [("type", kind), ("schema", schema::any_object())];
    schema::closed_object(members, &["type", "schema"])
}
