//! Negation of a schema: the invalid values, as schemas in the compiler's dialect.
//!
//! Each value that is valid under one of the pieces is invalid under the schema, for every validator: keywords that
//! only some check (a format, siblings of a reference) yield no piece. A condition that no grammar can express, such as
//! a text that does not match an expression, is lost. Losses are returned by type, so that the caller can refuse.

use super::types::Types;
use super::{Keywords, Reader, numbers, texts, wrong};
use crate::error::GrammarError;
use serde_json::{Value, json};

/// Maximum depth of nested schemas.
pub(super) const MAX_DEPTH: usize = 8;

/// Maximum numbers of an enumeration that is negated as ranges between them.
const MAX_NUMBERS: usize = 16;

/// Maximum combinations of the pieces of alternatives that must all be invalid.
const MAX_WAYS: usize = 64;

/// Keywords without pieces, with the types that they apply to.
const LOST: &[(&str, Types)] = &[
    ("multipleOf", Types::NUMBER),
    ("pattern", Types::STRING),
    ("format", Types::STRING),
    ("items", Types::ARRAY),
    ("prefixItems", Types::ARRAY),
    ("uniqueItems", Types::ARRAY),
    ("contains", Types::ARRAY),
    ("unevaluatedItems", Types::ARRAY),
    ("patternProperties", Types::OBJECT),
    ("propertyNames", Types::OBJECT),
    ("dependencies", Types::OBJECT),
    ("dependentRequired", Types::OBJECT),
    ("dependentSchemas", Types::OBJECT),
    ("unevaluatedProperties", Types::OBJECT),
    ("maxProperties", Types::OBJECT),
    ("if", Types::ALL),
    ("$dynamicRef", Types::ALL),
    ("$recursiveRef", Types::ALL),
];

#[derive(Default)]
pub(super) struct Negation {
    pub(super) pieces: Vec<Value>,
    /// Types of values, and the keyword that makes them invalid.
    pub(super) lost: Vec<(Types, String)>,
}

impl Negation {
    fn lose(&mut self, types: Types, keyword: &str) {
        self.lost.push((types, keyword.to_owned()));
    }
}

impl Reader<'_> {
    /// Negates a schema. `names`: properties that distinguish an object if it may have no others.
    pub(super) fn negated(
        &mut self,
        schema: &Value,
        at: &str,
        names: &[String],
        depth: usize,
    ) -> Result<Negation, GrammarError> {
        let mut out = Negation::default();
        if depth == 0 || !self.budget.allows_piece() {
            out.lose(Types::ALL, "a schema that is too large");
            return Ok(out);
        }
        let keywords = match schema {
            Value::Bool(true) => return Ok(out),
            Value::Bool(false) => {
                out.pieces.push(typed(Types::ALL, json!({})));
                return Ok(out);
            }
            Value::Object(keywords) => keywords,
            _ => return Err(wrong(at, "a schema is an object, true or false")),
        };
        if let Some(reference) = keywords.get("$ref") {
            let target = reference.as_str().and_then(|it| self.references.target(it));
            let Some(target) = target else {
                out.lose(Types::ALL, "$ref");
                return Ok(out);
            };
            return self.negated(target, at, names, depth - 1);
        }
        let types = self.other_types(schema, &mut out);
        self.other_constants(schema, types, &mut out);
        for (name, value) in keywords {
            if let Some((_, about)) = LOST.iter().find(|(lost, _)| lost == name) {
                out.lose(types.and(*about), name);
            }
            self.other_numbers(keywords, name, value, types, &mut out);
            other_lengths(name, value, types, &mut out);
        }
        if types.has(Types::OBJECT) {
            self.other_objects(keywords, at, names, depth, &mut out)?;
        }
        self.other_parts(keywords, at, names, depth, &mut out)?;
        Ok(out)
    }

    /// The pieces that overlap a schema.
    ///
    /// # Errors
    /// The keyword that is lost for a type of value without any piece.
    pub(super) fn left(
        &self,
        schema: &Value,
        within: Types,
        negation: &Negation,
    ) -> Result<Vec<Value>, String> {
        let comparison = self.comparison();
        let types = within.and(comparison.types(schema));
        let overlaps = |piece: &&Value| !comparison.exclude(schema, piece, within);
        let left: Vec<Value> = negation.pieces.iter().filter(overlaps).cloned().collect();
        let all = left.iter().map(|it| comparison.types(it));
        let all = all.fold(Types::NONE, Types::or);
        let missing = |(lost, keyword): &&(Types, String)| {
            // Only numbers with a fraction are lost to `type`.
            let is_whole = keyword == "type" && !comparison.has_fractions(schema);
            !is_whole && types.and(*lost).has(Types::ALL.without(all))
        };
        match negation.lost.iter().find(missing) {
            Some((_, keyword)) => Err(keyword.clone()),
            None => Ok(left),
        }
    }

    /// Adds the other types, and returns the types that the other keywords apply to.
    fn other_types(&self, schema: &Value, out: &mut Negation) -> Types {
        let types = Types::named(schema);
        let others = Types::ALL.without(types);
        if !others.is_none() {
            out.pieces.push(typed(others, json!({})));
        }
        let is_named = |name: &str| match schema.get("type") {
            Some(Value::Array(names)) => names.iter().any(|it| it == name),
            own => own.is_some_and(|it| it == name),
        };
        if is_named("integer") && !is_named("number") {
            out.lose(Types::NUMBER, "type");
        }
        types
    }

    fn other_constants(&self, schema: &Value, types: Types, out: &mut Negation) {
        let Some(values) = self.comparison().constants(schema) else {
            return;
        };
        let mut free = Types::NONE;
        for one in types.each() {
            let own = values.iter().filter(|it| Types::of(it) == one);
            let own: Vec<&Value> = own.copied().collect();
            match one {
                one if own.is_empty() => free = free.or(one),
                Types::BOOLEAN if own.windows(2).all(|it| it[0] == it[1]) => {
                    let other = own[0] == &Value::Bool(false);
                    out.pieces.push(json!({"enum": [other]}));
                }
                Types::NUMBER => match numbers_between(&own) {
                    Some(ranges) => out.pieces.extend(ranges),
                    None => out.lose(one, "enum"),
                },
                Types::STRING => {
                    let own: Vec<&str> = own.iter().filter_map(|it| it.as_str()).collect();
                    match texts::all_but(&own) {
                        Some(pattern) => {
                            out.pieces
                                .push(json!({"type": "string", "pattern": pattern}));
                        }
                        None => out.lose(one, "enum"),
                    }
                }
                Types::ARRAY | Types::OBJECT => out.lose(one, "enum"),
                _ => {}
            }
        }
        if !free.is_none() {
            out.pieces.push(typed(free, json!({})));
        }
    }

    /// Numbers on the other side of a bound.
    fn other_numbers(
        &self,
        keywords: &Keywords,
        name: &str,
        value: &Value,
        types: Types,
        out: &mut Negation,
    ) {
        let is_true = |name: &str| keywords.get(name) == Some(&Value::Bool(true));
        let bound = match name {
            "minimum" if is_true("exclusiveMinimum") => "maximum",
            "minimum" => "exclusiveMaximum",
            "maximum" if is_true("exclusiveMaximum") => "minimum",
            "maximum" => "exclusiveMinimum",
            // Draft 4 has no numbers there.
            "exclusiveMinimum" if value.is_number() && !self.is_draft_4 => "maximum",
            "exclusiveMaximum" if value.is_number() && !self.is_draft_4 => "minimum",
            _ => return,
        };
        if types.has(Types::NUMBER) {
            match numbers_of(&json!({bound: value})) {
                Some(piece) => out.pieces.push(piece),
                None => out.lose(Types::NUMBER, name),
            }
        }
    }

    fn other_objects(
        &mut self,
        keywords: &Keywords,
        at: &str,
        names: &[String],
        depth: usize,
        out: &mut Negation,
    ) -> Result<(), GrammarError> {
        let required = keywords.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            out.pieces
                .push(json!({"type": "object", "properties": {name: false}}));
        }
        let none = Keywords::new();
        let properties = keywords.get("properties").and_then(Value::as_object);
        let properties = properties.unwrap_or(&none);
        for (name, schema) in properties {
            let inner = self.negated(schema, at, &[], depth - 1)?;
            let lost = inner.lost.into_iter().map(|(_, why)| (Types::OBJECT, why));
            out.lost.extend(lost);
            if !inner.pieces.is_empty() {
                let inner = any_of(inner.pieces);
                out.pieces.push(
                    json!({"type": "object", "required": [name], "properties": {name: inner}}),
                );
            }
        }
        if keywords.get("minProperties").and_then(Value::as_u64) == Some(1) {
            out.pieces
                .push(json!({"type": "object", "additionalProperties": false}));
        } else if keywords.contains_key("minProperties") {
            out.lose(Types::OBJECT, "minProperties");
        }
        match keywords.get("additionalProperties") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) if !keywords.contains_key("patternProperties") => {
                let mut others = names.iter().filter(|it| !properties.contains_key(*it));
                let mut others = others.by_ref().peekable();
                if others.peek().is_none() {
                    out.lose(Types::OBJECT, "additionalProperties");
                }
                let others = others.map(|name| json!({"type": "object", "required": [name]}));
                out.pieces.extend(others);
            }
            Some(_) => out.lose(Types::OBJECT, "additionalProperties"),
        }
        Ok(())
    }

    /// Negates the schemas that are applied in place.
    fn other_parts(
        &mut self,
        keywords: &Keywords,
        at: &str,
        names: &[String],
        depth: usize,
        out: &mut Negation,
    ) -> Result<(), GrammarError> {
        let list = |name: &str| keywords.get(name).and_then(Value::as_array);
        for part in list("allOf").into_iter().flatten() {
            let inner = self.negated(part, at, names, depth - 1)?;
            out.pieces.extend(inner.pieces);
            out.lost.extend(inner.lost);
        }
        for name in ["anyOf", "oneOf"] {
            let Some(parts) = list(name) else { continue };
            let mut all = Vec::new();
            for part in parts {
                let inner = self.negated(part, at, names, depth - 1)?;
                out.lost.extend(inner.lost);
                all.push(inner.pieces);
            }
            let ways = all
                .iter()
                .try_fold(1_usize, |ways, it| ways.checked_mul(it.len()));
            match (ways, all.len()) {
                // No value violates all of them.
                (Some(0), _) => {}
                (Some(_), 1) => out.pieces.extend(all.pop().unwrap_or_default()),
                (Some(ways), _) if ways <= MAX_WAYS => {
                    let all: Vec<Value> = all.into_iter().map(any_of).collect();
                    out.pieces.push(json!({"allOf": all}));
                }
                _ => out.lose(Types::ALL, name),
            }
        }
        if let Some(schema) = keywords.get("not") {
            // The place is not the schema's own after a reference.
            if !self.references.is_one_document() {
                out.lose(Types::ALL, "not");
                return Ok(());
            }
            let piece = self.schema(schema, &format!("{at}/not"))?;
            out.pieces.push(piece);
        }
        Ok(())
    }
}

/// Values of these types; numbers within bounds, as everywhere.
pub(super) fn typed(types: Types, mut schema: Value) -> Value {
    if let Some(keywords) = schema.as_object_mut() {
        keywords.insert("type".to_owned(), json!(types.names()));
        let given = keywords.clone();
        // There are no bounds that could be wrong.
        let _no_error = numbers::write(&given, keywords);
    }
    schema
}

/// Values that are valid under one of them.
pub(super) fn any_of(mut schemas: Vec<Value>) -> Value {
    match schemas.len() {
        1 => schemas.remove(0),
        _ => json!({"anyOf": schemas}),
    }
}

fn numbers_of(bounds: &Value) -> Option<Value> {
    let mut out = Keywords::new();
    out.insert("type".to_owned(), json!("number"));
    numbers::write(bounds.as_object()?, &mut out).ok()?;
    let bound = |name: &str| out.get(name).and_then(Value::as_f64);
    // Two adjacent numbers have none between them.
    let is_empty = bound("minimum")
        .zip(bound("maximum"))
        .is_some_and(|(low, high)| low > high);
    Some(if is_empty {
        Value::Bool(false)
    } else {
        Value::Object(out)
    })
}

/// Ranges below the first number, between two, and above the last.
fn numbers_between(numbers: &[&Value]) -> Option<Vec<Value>> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(|one, other| one.as_f64().partial_cmp(&other.as_f64()).expect("no NaN"));
    numbers.dedup_by(|one, other| one.as_f64() == other.as_f64());
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    if numbers.len() > MAX_NUMBERS {
        return None;
    }
    let mut ranges = vec![
        json!({"exclusiveMaximum": first}),
        json!({"exclusiveMinimum": last}),
    ];
    let between = numbers.windows(2);
    ranges.extend(between.map(|it| json!({"exclusiveMinimum": it[0], "exclusiveMaximum": it[1]})));
    ranges.iter().map(numbers_of).collect()
}

/// Texts and lists that are shorter or longer.
fn other_lengths(name: &str, value: &Value, types: Types, out: &mut Negation) {
    let (keyword, about, kind) = match name {
        "minLength" => ("maxLength", Types::STRING, "string"),
        "maxLength" => ("minLength", Types::STRING, "string"),
        "minItems" => ("maxItems", Types::ARRAY, "array"),
        "maxItems" => ("minItems", Types::ARRAY, "array"),
        _ => return,
    };
    let length = value
        .as_u64()
        .and_then(|length| match keyword.starts_with("max") {
            true => length.checked_sub(1),
            false => length.checked_add(1),
        });
    if let Some(length) = length.filter(|_| types.has(about)) {
        out.pieces.push(json!({"type": kind, keyword: length}));
    }
}
