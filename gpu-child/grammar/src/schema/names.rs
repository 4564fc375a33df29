//! `propertyNames` with a list of names, or with one expression: `patternProperties` without others beside them.

use super::negation::typed;
use super::types::Types;
use super::{Keywords, Out, Reader, formats, numbers, pattern, wrong};
use crate::error::GrammarError;
use serde_json::{Map, Value, json};

/// Keywords without effect on a name.
const ANNOTATIONS: &[&str] = &["title", "description", "examples", "default", "$comment"];

impl Reader<'_> {
    pub(super) fn property_names(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        let Some(value) = keywords.get("propertyNames") else {
            return Ok(());
        };
        let inside = format!("{at}/propertyNames");
        let part = self
            .names(value)
            .map_err(|why| wrong(&inside, &format!("propertyNames cannot be followed: {why}")))?;
        let types = Types::keyword(keywords.get("type"));
        out.more.extend(part.map(|part| typed(types, part)));
        Ok(())
    }

    /// Schema of the names; `None`: every name is valid.
    fn names(&self, schema: &Value) -> Result<Option<Value>, String> {
        let alone = schema.as_object().is_none_or(|it| it.len() == 1);
        if schema.get("$ref").is_some() && !alone {
            return Err("what stands beside $ref in it".to_owned());
        }
        let comparison = self.comparison();
        let schema = comparison.resolved(schema);
        let keywords = match schema {
            Value::Bool(true) => return Ok(None),
            Value::Bool(false) => return Ok(Some(json!({"additionalProperties": false}))),
            _ => schema.as_object().ok_or("it is no schema")?,
        };
        let is_said = |name: &&String| !ANNOTATIONS.contains(&name.as_str());
        let mut said: Vec<&str> = keywords
            .keys()
            .filter(is_said)
            .map(String::as_str)
            .collect();
        if Types::named(schema).has(Types::STRING) {
            said.retain(|name| *name != "type");
        }
        match said.as_slice() {
            [] => Ok(None),
            ["const" | "enum"] => match comparison.constants(schema) {
                Some(names) => {
                    let names = names.into_iter().filter_map(Value::as_str);
                    let members: Map<_, _> = names.map(|it| (it.to_owned(), json!(true))).collect();
                    Ok(Some(
                        json!({"properties": members, "additionalProperties": false}),
                    ))
                }
                None => Err("const in draft 4".to_owned()),
            },
            ["pattern"] => {
                let pattern = keywords["pattern"].as_str().ok_or("no text")?;
                Ok(Some(matched(&pattern::translated(pattern)?)))
            }
            ["format"] => {
                let pattern = keywords["format"].as_str().and_then(formats::pattern);
                Ok(pattern.map(|it| matched(&it)))
            }
            ["minLength"]
            | ["maxLength"]
            | ["minLength", "maxLength"]
            | ["maxLength", "minLength"] => {
                let length = |name: &str| match keywords.get(name) {
                    None => Ok(None),
                    Some(value) => numbers::count(value).map(Some).ok_or("no count"),
                };
                let least = length("minLength")?.unwrap_or(0);
                let most = length("maxLength")?.map_or_else(String::new, |it| it.to_string());
                let pattern = format!(r"^[\x00-\x{{10FFFF}}]{{{least},{most}}}$");
                Ok(Some(matched(&pattern)))
            }
            all => Err(format!("{} in it", all.join(", "))),
        }
    }
}

fn matched(pattern: &str) -> Value {
    json!({"patternProperties": {pattern: true}, "additionalProperties": false})
}
