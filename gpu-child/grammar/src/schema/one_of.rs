//! `oneOf`: disjoint alternatives, or each restricted to values that no other accepts.

use super::conditions::own_names;
use super::disjoint::Comparison;
use super::negation::MAX_DEPTH;
use super::types::Types;
use super::{Keywords, Out, Reader, wrong};
use crate::error::GrammarError;
use serde_json::{Map, Value, json};

/// Maximum number of overlapping alternatives.
const MAX_ALTERNATIVES: usize = 48;

/// Maximum number of schemas for values that are valid under one alternative alone.
const MAX_WAYS: usize = 64;

const UNCLEAR: &str = "its alternatives are not seen to exclude each other";

impl Reader<'_> {
    pub(super) fn one_of(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        let Some(value) = keywords.get("oneOf") else {
            return Ok(());
        };
        let inside = format!("{at}/oneOf");
        let alternatives = value
            .as_array()
            .ok_or_else(|| wrong(&inside, "it must be a list"))?;
        let context = context(keywords, alternatives);
        let wholes = alternatives.iter().map(|it| all_of(&[&context, it]));
        let alone = Alone {
            wholes: wholes.collect(),
            alternatives,
            names: own_names(&[keywords]),
            within: Types::keyword(keywords.get("type")),
        };
        let overlaps = alone.overlaps(&self.comparison());
        let schemas = match overlaps.iter().all(Vec::is_empty) || self.is_lenient {
            true => self.list(value, &inside)?,
            false => Value::Array(self.alone(&alone, &overlaps, &inside)?),
        };
        match keywords.contains_key("anyOf") {
            true => out.more.push(json!({"anyOf": schemas})),
            false => drop(out.applied.insert("anyOf".to_owned(), schemas)),
        }
        Ok(())
    }

    /// Schemas of the values that are valid under one alternative alone.
    fn alone(
        &mut self,
        alone: &Alone<'_>,
        overlaps: &[Vec<usize>],
        at: &str,
    ) -> Result<Vec<Value>, GrammarError> {
        let cannot = |why: &str| wrong(at, &format!("oneOf cannot be followed: {UNCLEAR} ({why})"));
        if overlaps.iter().filter(|it| !it.is_empty()).count() > MAX_ALTERNATIVES {
            return Err(cannot("they are too many"));
        }
        let mut out = Vec::new();
        for (index, others) in overlaps.iter().enumerate() {
            let place = format!("{at}/{index}");
            let own = self.schema(&alone.alternatives[index], &place)?;
            let ways = match alone.constants(&self.comparison(), index, others) {
                Some(values) if values.is_empty() => Vec::new(),
                Some(values) => vec![vec![json!({"enum": values})]],
                None => self
                    .ways_alone(alone, index, others, &place)
                    .map_err(|why| cannot(&why))?,
            };
            for way in ways {
                let mut parts = vec![own.clone()];
                parts.extend(way);
                out.push(match parts.len() {
                    1 => parts.remove(0),
                    _ => json!({"allOf": parts}),
                });
            }
            if out.len() > MAX_WAYS.max(alone.alternatives.len()) {
                return Err(cannot("they differ in too many ways"));
            }
        }
        match out.is_empty() {
            true => Err(cannot("nothing is valid under one of them alone")),
            false => Ok(out),
        }
    }

    /// Conditions beside an alternative that exclude all others: all of one of these lists.
    fn ways_alone(
        &mut self,
        alone: &Alone<'_>,
        index: usize,
        others: &[usize],
        at: &str,
    ) -> Result<Vec<Vec<Value>>, String> {
        let names = alone.names_of(&self.comparison(), index);
        let mut ways: Vec<Vec<Value>> = vec![Vec::new()];
        let mut lost = None;
        for other in others {
            let other = &alone.alternatives[*other];
            let negation = self.negated(other, at, &names, MAX_DEPTH);
            let negation = negation.map_err(|error| error.to_string())?;
            let mut further = Vec::new();
            for way in ways {
                let clear = way.iter().filter(|it| is_read_as_clients(it));
                let whole: Vec<&Value> = [&alone.wholes[index]].into_iter().chain(clear).collect();
                let whole = all_of(&whole);
                if self.comparison().exclude(&whole, other, alone.within) {
                    further.push(way);
                    continue;
                }
                match self.left(&whole, alone.within, &negation) {
                    Ok(left) if left.iter().any(|it| way.contains(it)) => further.push(way),
                    Ok(left) => further.extend(left.into_iter().map(|piece| {
                        let mut way = way.clone();
                        way.push(piece);
                        way
                    })),
                    Err(keyword) => {
                        lost = Some(format!("{index} and another differ in {keyword}"));
                        if way.is_empty() {
                            return Err(lost.unwrap_or_default());
                        }
                    }
                }
            }
            if further.len() > MAX_WAYS {
                return Err("they differ in too many ways".to_owned());
            }
            ways = further;
        }
        match lost {
            Some(why) if ways.is_empty() => Err(why),
            _ => Ok(ways),
        }
    }
}

struct Alone<'a> {
    alternatives: &'a [Value],
    /// Alternatives, each combined with the keywords beside them.
    wholes: Vec<Value>,
    /// Property names in the keywords beside them.
    names: Vec<String>,
    within: Types,
}

impl Alone<'_> {
    /// Overlaps: for each alternative, the indices of those that may have a value in common with it.
    fn overlaps(&self, comparison: &Comparison<'_>) -> Vec<Vec<usize>> {
        let mut out = vec![Vec::new(); self.wholes.len()];
        for (index, one) in self.wholes.iter().enumerate() {
            for other in index + 1..self.wholes.len() {
                if !comparison.exclude(one, &self.alternatives[other], self.within) {
                    out[index].push(other);
                    out[other].push(index);
                }
            }
        }
        out
    }

    /// Exclusive values of alternatives with a list of values: those that none of the others accepts.
    fn constants(
        &self,
        comparison: &Comparison<'_>,
        index: usize,
        others: &[usize],
    ) -> Option<Vec<Value>> {
        let values = comparison.constants(comparison.resolved(&self.alternatives[index]))?;
        let lacks = |value, other: &usize| comparison.lacks(&self.alternatives[*other], value);
        let own = values
            .into_iter()
            .filter(|value| others.iter().all(|it| lacks(value, it)));
        Some(own.cloned().collect())
    }

    fn names_of(&self, comparison: &Comparison<'_>, index: usize) -> Vec<String> {
        let own = comparison.resolved(&self.alternatives[index]).as_object();
        let mut names = own.map_or_else(Vec::new, |own| own_names(&[own]));
        names.extend(self.names.iter().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// True if a piece in the compiler's dialect has the same meaning in a client's: references do not, and no classes
/// inside classes.
fn is_read_as_clients(piece: &Value) -> bool {
    let text = piece.to_string();
    !text.contains("$ref") && !text.contains("[[")
}

fn all_of(schemas: &[&Value]) -> Value {
    json!({"allOf": schemas})
}

/// Keywords beside alternatives that help to distinguish them: the types, and the required properties.
fn context(keywords: &Keywords, alternatives: &[Value]) -> Value {
    let none = Keywords::new();
    let required = |schema: &Keywords| {
        let names = schema.get("required").and_then(Value::as_array).cloned();
        names.unwrap_or_default()
    };
    let own = required(keywords);
    let theirs = alternatives
        .iter()
        .filter_map(Value::as_object)
        .flat_map(required);
    let names: Vec<Value> = own.iter().cloned().chain(theirs).collect();
    let names = names.iter().filter_map(Value::as_str);
    let properties = keywords.get("properties").and_then(Value::as_object);
    let properties = properties.unwrap_or(&none);
    let properties =
        names.filter_map(|name| Some((name.to_owned(), properties.get(name)?.clone())));
    let properties: Map<String, Value> = properties.collect();
    let mut out = Keywords::new();
    out.insert("properties".to_owned(), Value::Object(properties));
    out.insert("required".to_owned(), Value::Array(own));
    if let Some(types) = keywords.get("type") {
        out.insert("type".to_owned(), types.clone());
    }
    Value::Object(out)
}
