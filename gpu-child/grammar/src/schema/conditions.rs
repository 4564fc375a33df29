//! Keywords that exclude values (`not`, `if`, dependencies), as alternatives of schemas without such keywords.

use super::negation::{MAX_DEPTH, any_of, typed};
use super::types::Types;
use super::{Keywords, Out, Reader, references, wrong};
use crate::error::GrammarError;
use serde_json::{Value, json};

/// Maximum combinations of the alternatives of one schema: the compiler writes each of them.
pub(super) const MAX_WAYS: usize = 128;

impl Reader<'_> {
    pub(super) fn conditions(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        self.one_of(keywords, at, out)?;
        if self.is_lenient {
            return Ok(());
        }
        self.not(keywords, at, out)?;
        self.if_then_else(keywords, at, out)?;
        for name in ["dependencies", "dependentRequired", "dependentSchemas"] {
            self.dependencies(keywords, name, at, out)?;
        }
        self.property_names(keywords, at, out)?;
        Ok(())
    }

    fn not(&mut self, keywords: &Keywords, at: &str, out: &mut Out) -> Result<(), GrammarError> {
        let Some(schema) = keywords.get("not") else {
            return Ok(());
        };
        let left = self.others(keywords, "not", schema, at)?;
        out.more.push(match left.is_empty() {
            true => Value::Bool(false),
            false => any_of(left),
        });
        Ok(())
    }

    fn if_then_else(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        let Some(condition) = keywords.get("if") else {
            return Ok(());
        };
        let yes = keywords.get("then").unwrap_or(&Value::Bool(true));
        let no = keywords.get("else").unwrap_or(&Value::Bool(true));
        if yes == no && yes == &Value::Bool(true) {
            return Ok(());
        }
        let left = self.others(keywords, "if", condition, at)?;
        let met = self.schema(condition, &format!("{at}/if"))?;
        let yes = self.schema(yes, &format!("{at}/then"))?;
        let no = self.schema(no, &format!("{at}/else"))?;
        let mut ways = vec![json!({"allOf": [met, yes]})];
        ways.extend(left.into_iter().map(|piece| json!({"allOf": [piece, no]})));
        out.more.push(any_of(ways));
        Ok(())
    }

    /// The rest of a schema if another one inside it is not satisfied.
    fn others(
        &mut self,
        keywords: &Keywords,
        name: &str,
        inner: &Value,
        at: &str,
    ) -> Result<Vec<Value>, GrammarError> {
        let inside = format!("{at}/{name}");
        let negation = self.negated(inner, &inside, &own_names(&[keywords]), MAX_DEPTH)?;
        let whole = Value::Object(keywords.clone());
        let left = self.left(&whole, Types::ALL, &negation);
        left.map_err(|lost| {
            let why = format!("{name} cannot be followed: no grammar says what {lost} leaves");
            wrong(&inside, &why)
        })
    }

    /// Alternatives for each dependency: the property is absent, or present with its requirement.
    fn dependencies(
        &mut self,
        keywords: &Keywords,
        name: &str,
        at: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        let Some(value) = keywords.get(name) else {
            return Ok(());
        };
        let inside = format!("{at}/{name}");
        let all = value
            .as_object()
            .ok_or_else(|| wrong(&inside, "it must be an object"))?;
        let types = Types::keyword(keywords.get("type"));
        for (property, asked) in all {
            let inside = format!("{inside}/{}", references::escaped(property));
            let mut there = vec![json!({"type": "object", "required": [property]})];
            match asked {
                Value::Array(names) if names.iter().all(Value::is_string) => {
                    there.push(json!({"type": "object", "required": names}));
                }
                schema => there.push(self.schema(schema, &inside)?),
            }
            if !may_have(keywords, property) {
                continue;
            }
            let away = typed(types, json!({"properties": {property: false}}));
            out.more.push(json!({"anyOf": [away, {"allOf": there}]}));
        }
        Ok(())
    }
}

/// Number of combinations of a schema's alternatives, in the compiler's dialect: alternatives are added, conjunctions
/// multiplied.
pub(super) fn ways(schema: &Value) -> usize {
    let parts = |name: &str| schema.get(name).and_then(Value::as_array);
    let alternatives = parts("anyOf").map_or(1, |all| {
        all.iter().map(ways).fold(0, usize::saturating_add).max(1)
    });
    let together = parts("allOf").into_iter().flatten().map(ways);
    together.fold(alternatives, usize::saturating_mul)
}

/// Property names in schemas.
pub(super) fn own_names(schemas: &[&Keywords]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for keywords in schemas {
        let properties = keywords.get("properties").and_then(Value::as_object);
        out.extend(properties.into_iter().flat_map(|it| it.keys().cloned()));
        let required = keywords.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        out.extend(required.map(str::to_owned));
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// True if an object may have a property of this name.
fn may_have(keywords: &Keywords, name: &str) -> bool {
    let own = keywords.get("properties").and_then(|it| it.get(name));
    let is_closed = keywords.get("additionalProperties") == Some(&Value::Bool(false))
        && !keywords.contains_key("patternProperties");
    !(own.is_none() && is_closed || own == Some(&Value::Bool(false)))
}
