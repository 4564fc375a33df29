//! Whether no value is valid under two schemas. Where that is not seen, they are taken to overlap.

use super::references::References;
use serde_json::Value;
use std::cell::Cell;

/// Schemas looked at for one `oneOf`.
const MAX_WORK: usize = 20_000;

/// References followed one behind another, and schemas inside of schemas.
const MAX_DEPTH: usize = 16;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// Each excludes each other.
pub(super) fn all(references: &References<'_>, schemas: &[Value]) -> bool {
    let comparison = Comparison {
        references,
        left: Cell::new(MAX_WORK),
    };
    schemas.iter().enumerate().all(|(index, one)| {
        let others = &schemas[index + 1..];
        others
            .iter()
            .all(|other| comparison.exclude(one, other, MAX_DEPTH))
    })
}

struct Comparison<'a> {
    references: &'a References<'a>,
    left: Cell<usize>,
}

impl Comparison<'_> {
    fn exclude(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let left = self.left.get();
        if left == 0 || depth == 0 {
            return false;
        }
        self.left.set(left - 1);
        if one == &Value::Bool(false) || other == &Value::Bool(false) {
            return true;
        }
        self.parts_exclude(one, other, depth)
            || self.parts_exclude(other, one, depth)
            || types_exclude(one, other)
            || constants(one)
                .is_some_and(|one| constants(other).is_some_and(|it| differ(&one, &it)))
            || self.objects_exclude(one, other, depth)
            || self.objects_exclude(other, one, depth)
    }

    /// Schemas that `one` applies in place.
    fn parts_exclude(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let exclude = |part: &Value| self.exclude(part, other, depth - 1);
        let list = |name: &str| one.get(name).and_then(Value::as_array);
        let of_any = |name| list(name).is_some_and(|parts| parts.iter().all(exclude));
        let target = one.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| self.references.target(reference));
        target.is_some_and(exclude)
            || list("allOf").is_some_and(|parts| parts.iter().any(exclude))
            || of_any("anyOf")
            || of_any("oneOf")
    }

    /// Both are of objects only, and differ in a property that `one` requires.
    fn objects_exclude(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let is_object = |schema| self.types(schema, depth) == ["object"];
        if !is_object(one) && !is_object(other) {
            return false;
        }
        let required = one.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        names
            .into_iter()
            .any(|name| match (property(one, name), property(other, name)) {
                (Some(mine), Some(theirs)) => self.exclude(mine, theirs, depth - 1),
                (None, Some(theirs)) => theirs == &Value::Bool(false),
                (_, None) => false,
            })
    }

    /// Types that a schema names itself, or by constants.
    fn types(&self, schema: &Value, depth: usize) -> Vec<&'static str> {
        if let Some(Value::String(reference)) = schema.get("$ref")
            && depth > 0
            && let Some(target) = self.references.target(reference)
            && schema.get("type").is_none()
        {
            return self.types(target, depth - 1);
        }
        types(schema)
    }
}

/// What stands for a property: its own schema, or that of names that no keyword names.
fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let own = schema.get("properties").and_then(|all| all.get(name));
    own.or_else(|| match schema.get("patternProperties") {
        None => schema.get("additionalProperties"),
        Some(_) => None,
    })
}

fn types(schema: &Value) -> Vec<&'static str> {
    let named = |name: &str| {
        let name = if name == "integer" { "number" } else { name };
        TYPES.into_iter().find(|it| *it == name)
    };
    if let Some(values) = constants(schema) {
        return values.into_iter().map(type_of).collect();
    }
    match schema.get("type") {
        Some(Value::String(name)) => named(name).into_iter().collect(),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .filter_map(named)
            .collect(),
        _ => TYPES.to_vec(),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn types_exclude(one: &Value, other: &Value) -> bool {
    let (one, other) = (types(one), types(other));
    one.iter().all(|it| !other.contains(it))
}

fn constants(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// No value of one list is equal to one of the other. Numbers are, whatever they are written as; what has
/// parts is not looked into.
fn differ(one: &[&Value], other: &[&Value]) -> bool {
    one.len() * other.len() <= MAX_WORK
        && one.iter().all(|one| {
            other.iter().all(|other| match (one, other) {
                (Value::Number(one), Value::Number(other)) => one.as_f64() != other.as_f64(),
                (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => false,
                (one, other) => one != other,
            })
        })
}
