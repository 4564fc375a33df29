//! Disjointness of schemas: no value is valid under both. Undecided pairs count as overlapping.
//!
//! Keywords that only some validators check exclude nothing: a format, and siblings of a reference.

use super::budget::Budget;
use super::references::References;
use super::texts;
use super::types::Types;
use llguidance::derivre::RegexAst;
use serde_json::Value;

/// Maximum length of a chain of references, and depth of nested schemas.
const MAX_DEPTH: usize = 16;

/// Below this, every JSON parser distinguishes an integer from its neighbours.
const EXACT: f64 = 9_007_199_254_740_992.0;

static ANYTHING: Value = Value::Bool(true);

pub(super) struct Comparison<'a> {
    pub(super) references: &'a References<'a>,
    pub(super) budget: &'a Budget,
    /// Draft 4: no `const`, and `exclusiveMinimum` is not a number.
    pub(super) is_draft_4: bool,
}

impl<'a> Comparison<'a> {
    /// True if no value of these types is valid under both.
    pub(super) fn exclude(&self, one: &Value, other: &Value, within: Types) -> bool {
        self.compare(one, other, within, MAX_DEPTH)
    }

    fn compare(&self, one: &Value, other: &Value, within: Types, depth: usize) -> bool {
        if depth == 0 || !self.budget.allows_comparison() {
            return false;
        }
        let (one, other) = (self.resolved(one), self.resolved(other));
        let common = within.and(self.types_at(one, depth));
        let common = common.and(self.types_at(other, depth));
        common.is_none()
            || self.constants_exclude(one, other, common, depth)
            || self.constants_exclude(other, one, common, depth)
            || self.parts_exclude(one, other, common, depth)
            || self.parts_exclude(other, one, common, depth)
            || common.each().all(|it| match it {
                Types::NUMBER => ranges_exclude(self.range(one), self.range(other)),
                Types::STRING => self.texts_exclude(texts::expressions(one), other),
                Types::ARRAY => self.arrays_exclude(one, other, depth),
                Types::OBJECT => {
                    self.objects_exclude(one, other, depth)
                        || self.objects_exclude(other, one, depth)
                }
                _ => false,
            })
    }

    /// End of a chain of references.
    pub(super) fn resolved<'v>(&self, schema: &'v Value) -> &'v Value
    where
        'a: 'v,
    {
        let mut schema = schema;
        for _ in 0..MAX_DEPTH {
            let Some(reference) = schema.get("$ref") else {
                return schema;
            };
            let target = reference.as_str().and_then(|it| self.references.target(it));
            schema = target.unwrap_or(&ANYTHING);
        }
        &ANYTHING
    }

    /// Types that values of a schema may have.
    pub(super) fn types(&self, schema: &Value) -> Types {
        self.types_at(schema, MAX_DEPTH)
    }

    fn types_at(&self, schema: &Value, depth: usize) -> Types {
        let schema = self.resolved(schema);
        if schema == &Value::Bool(false) {
            return Types::NONE;
        }
        let mut types = Types::named(schema);
        if depth == 0 || !self.budget.allows_comparison() {
            return types;
        }
        if let Some(values) = self.constants(schema) {
            let all = values.iter().map(|it| Types::of(it));
            types = types.and(all.fold(Types::NONE, Types::or));
        }
        let parts = |name| list(schema, name).map(|it| self.types_at(it, depth - 1));
        types = parts("allOf").fold(types, Types::and);
        for name in ["anyOf", "oneOf"] {
            if schema.get(name).is_some_and(Value::is_array) {
                types = types.and(parts(name).fold(Types::NONE, Types::or));
            }
        }
        types
    }

    /// True if a number with a fraction may be valid.
    pub(super) fn has_fractions(&self, schema: &Value) -> bool {
        let mut parts = self.parts(schema, MAX_DEPTH).into_iter();
        parts.all(|part| match part.get("type") {
            Some(Value::Array(names)) => names.iter().any(|name| name == "number"),
            Some(name) => name == "number",
            None => true,
        })
    }

    /// The complete list of valid values, if there is one.
    pub(super) fn constants<'v>(&self, schema: &'v Value) -> Option<Vec<&'v Value>> {
        match (schema.get("const"), schema.get("enum")) {
            (Some(value), _) if !self.is_draft_4 => Some(vec![value]),
            (_, Some(Value::Array(values))) => Some(values.iter().collect()),
            _ => None,
        }
    }

    fn constants_exclude(&self, one: &Value, other: &Value, within: Types, depth: usize) -> bool {
        let Some(values) = self.constants(one) else {
            return false;
        };
        let mut values = values.into_iter().filter(|it| within.has(Types::of(it)));
        values.all(|value| self.lacks_at(other, value, depth))
    }

    /// True if a value is not valid under a schema.
    pub(super) fn lacks(&self, schema: &Value, value: &Value) -> bool {
        self.lacks_at(schema, value, MAX_DEPTH)
    }

    fn lacks_at(&self, schema: &Value, value: &Value, depth: usize) -> bool {
        if depth == 0 || !self.budget.allows_comparison() {
            return false;
        }
        let schema = self.resolved(schema);
        if !self.types_at(schema, depth).has(Types::of(value)) {
            return true;
        }
        let lacks = |part: &Value| self.lacks_at(part, value, depth - 1);
        let of_any =
            |name| schema.get(name).is_some_and(Value::is_array) && list(schema, name).all(lacks);
        let constants = self.constants(schema);
        constants.is_some_and(|all| all.iter().all(|it| !are_equal(it, value)))
            || list(schema, "allOf").any(lacks)
            || of_any("anyOf")
            || of_any("oneOf")
            || match value {
                Value::Number(number) => {
                    let at = number.as_f64();
                    at.is_some_and(|at| ranges_exclude(self.range(schema), Range::only(at)))
                }
                Value::String(text) => {
                    self.texts_exclude(vec![RegexAst::Literal(text.clone())], schema)
                }
                Value::Object(members) => {
                    let is_wrong = |(name, value): (&String, &Value)| {
                        let mut schemas = property(schema, name);
                        schemas.any(|it| self.lacks_at(it, value, depth - 1))
                    };
                    names(schema, "required").any(|name| !members.contains_key(name))
                        || members.iter().any(is_wrong)
                }
                _ => false,
            }
    }

    /// True if schemas that `one` applies in place exclude the other.
    fn parts_exclude(&self, one: &Value, other: &Value, within: Types, depth: usize) -> bool {
        let exclude = |part: &Value| self.compare(part, other, within, depth - 1);
        let of_any =
            |name| one.get(name).is_some_and(Value::is_array) && list(one, name).all(exclude);
        list(one, "allOf").any(exclude) || of_any("anyOf") || of_any("oneOf")
    }

    fn range(&self, schema: &Value) -> Range {
        Range::of(schema, self.is_draft_4)
    }

    fn texts_exclude(&self, one: Vec<RegexAst>, other: &Value) -> bool {
        let other = texts::expressions(other);
        !one.is_empty()
            && !other.is_empty()
            && self.budget.allows_expression()
            && texts::have_nothing_in_common([one, other].concat())
    }

    /// True if their lengths exclude each other, or their common first items.
    fn arrays_exclude(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let count = |schema: &Value, name: &str| schema.get(name).and_then(Value::as_u64);
        let least = |schema| count(schema, "minItems").unwrap_or(0);
        let most = |schema| count(schema, "maxItems").unwrap_or(u64::MAX);
        let is_free = |schema: &Value| schema.get("prefixItems").is_some();
        let first = |schema| is_free(schema).then_some(&ANYTHING);
        let items = |schema| first(schema).or(all_items(schema)).unwrap_or(&ANYTHING);
        least(one) > most(other)
            || least(other) > most(one)
            || least(one).max(least(other)) > 0
                && self.compare(items(one), items(other), Types::ALL, depth - 1)
    }

    /// True if they differ in a property that `one` requires.
    fn objects_exclude(&self, one: &Value, other: &Value, depth: usize) -> bool {
        let mut required = self.parts(one, depth).into_iter();
        let mut required = required.by_ref().flat_map(|part| names(part, "required"));
        required.any(|name| {
            let schemas = |schema| {
                let parts = self.parts(schema, depth).into_iter();
                parts
                    .flat_map(|part| property(part, name))
                    .collect::<Vec<_>>()
            };
            let (mine, theirs) = (schemas(one), schemas(other));
            theirs.iter().any(|theirs| {
                mine.is_empty() && self.compare(&ANYTHING, theirs, Types::ALL, depth - 1)
                    || mine
                        .iter()
                        .any(|mine| self.compare(mine, theirs, Types::ALL, depth - 1))
            })
        })
    }

    /// A schema and all its parts by `allOf`.
    fn parts<'v>(&self, schema: &'v Value, depth: usize) -> Vec<&'v Value>
    where
        'a: 'v,
    {
        let schema = self.resolved(schema);
        let mut parts = vec![schema];
        if depth > 0 && self.budget.allows_comparison() {
            parts.extend(list(schema, "allOf").flat_map(|it| self.parts(it, depth - 1)));
        }
        parts
    }
}

fn list<'v>(schema: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    schema
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

pub(super) fn names<'v>(schema: &'v Value, name: &str) -> impl Iterator<Item = &'v str> + use<'v> {
    list(schema, name).filter_map(Value::as_str)
}

/// Schemas of a property: its own, or that of unnamed properties.
fn property<'v>(schema: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    let own = schema.get("properties").and_then(|all| all.get(name));
    let all = own.or_else(|| match schema.get("patternProperties") {
        None => schema.get("additionalProperties"),
        Some(_) => None,
    });
    all.into_iter()
}

/// Schema of each item of a list.
fn all_items(schema: &Value) -> Option<&Value> {
    schema.get("items").filter(|it| !it.is_array())
}

/// Numbers between two bounds, each inclusive or exclusive.
#[derive(Clone, Copy)]
struct Range {
    low: f64,
    is_above: bool,
    high: f64,
    is_below: bool,
}

impl Range {
    fn only(at: f64) -> Self {
        Self {
            low: at,
            is_above: false,
            high: at,
            is_below: false,
        }
    }

    fn of(schema: &Value, is_draft_4: bool) -> Self {
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let is_true = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let mut range = Self {
            low: number("minimum").unwrap_or(f64::NEG_INFINITY),
            is_above: is_true("exclusiveMinimum"),
            high: number("maximum").unwrap_or(f64::INFINITY),
            is_below: is_true("exclusiveMaximum"),
        };
        let exclusive = |name| number(name).filter(|_| !is_draft_4);
        if let Some(low) = exclusive("exclusiveMinimum").filter(|low| *low >= range.low) {
            (range.low, range.is_above) = (low, true);
        }
        if let Some(high) = exclusive("exclusiveMaximum").filter(|high| *high <= range.high) {
            (range.high, range.is_below) = (high, true);
        }
        range
    }
}

fn ranges_exclude(one: Range, other: Range) -> bool {
    let is_under = |one: Range, other: Range| {
        one.high < other.low
            || one.high == other.low && (one.is_below || other.is_above) && one.high.abs() < EXACT
    };
    is_under(one, other) || is_under(other, one)
}

/// Numbers are equal by value, in any notation.
fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| are_equal(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            let same = |(name, value)| other.get(name).is_some_and(|it| are_equal(value, it));
            one.len() == other.len() && one.iter().all(same)
        }
        (one, other) => one == other,
    }
}
