//! Types of functions' parameters, by their JSON Schema. [`Syntax::Qwen3Coder`](super::Syntax) writes strings without
//! quotes, so only the type distinguishes the text `12` from the number.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{BitAnd, BitOr};
use std::sync::Arc;

/// Maximum bytes of a function's schema. Its types are read from a tree of values, which takes many times its memory.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// Maximum nesting of applied schemas and references. Beyond, a parameter may have any type.
const MAX_DEPTH: u32 = 32;

/// Set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Types(u8);

impl Types {
    const NONE: Self = Self(0);
    pub(super) const NULL: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INTEGER: Self = Self(4);
    pub(super) const FRACTION: Self = Self(8);
    pub(super) const NUMBER: Self = Self(4 | 8);
    pub(super) const STRING: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const OBJECT: Self = Self(64);
    pub(super) const ALL: Self = Self(127);

    const NAMES: [(&str, Self); 7] = [
        ("null", Self::NULL),
        ("boolean", Self::BOOLEAN),
        ("number", Self::NUMBER),
        ("integer", Self::INTEGER),
        ("string", Self::STRING),
        ("array", Self::ARRAY),
        ("object", Self::OBJECT),
    ];

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Names for the keyword `type`.
    pub(super) fn names(self) -> Vec<&'static str> {
        let names = Self::NAMES.iter().filter(|(name, types)| match *name {
            "integer" => self & Self::NUMBER == Self::INTEGER,
            _ => self & *types == *types,
        });
        names.map(|(name, _)| *name).collect()
    }

    /// Type of the JSON value that begins with this character.
    pub(super) fn begun_by(c: char) -> Self {
        match c {
            '{' => Self::OBJECT,
            '[' => Self::ARRAY,
            '"' => Self::STRING,
            't' | 'f' => Self::BOOLEAN,
            'n' => Self::NULL,
            '-' | '0'..='9' => Self::NUMBER,
            _ => Self::NONE,
        }
    }

    fn named(value: &Value) -> Self {
        match value {
            Value::Array(names) => names.iter().map(Self::named).fold(Self::NONE, BitOr::bitor),
            name => {
                let known = Self::NAMES
                    .iter()
                    .find(|(known, _)| name.as_str() == Some(*known));
                known.map_or(Self::ALL, |(_, types)| *types)
            }
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

impl BitOr for Types {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Types {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Types of the parameters of a request's functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(Option<Arc<BTreeMap<String, Arc<OfFunction>>>>);

/// Types of the parameters of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OfFunction {
    /// Types by name, except those that are the same as `others`.
    named: BTreeMap<String, Types>,
    /// Types of all other parameters.
    others: Types,
}

impl Default for OfFunction {
    fn default() -> Self {
        Self {
            named: BTreeMap::new(),
            others: Types::STRING,
        }
    }
}

impl Parameters {
    pub const NONE: Self = Self(None);

    /// Types of the functions in the list for the chat template.
    #[must_use]
    pub fn of_tools(tools: &str) -> Self {
        #[derive(Deserialize)]
        struct Tool<'a> {
            #[serde(borrow)]
            function: Function<'a>,
        }
        #[derive(Deserialize)]
        struct Function<'a> {
            name: String,
            #[serde(borrow)]
            parameters: Option<&'a RawValue>,
        }
        let tools: Vec<Tool<'_>> = serde_json::from_str(tools).unwrap_or_default();
        let functions = tools.into_iter().map(|Tool { function }| {
            let schema = function.parameters.map(RawValue::get);
            (function.name, Arc::new(OfFunction::of_schema(schema)))
        });
        Self(Some(Arc::new(functions.collect())))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn of_function(&self, name: &str) -> Option<&Arc<OfFunction>> {
        self.0.as_ref()?.get(name)
    }
}

impl OfFunction {
    /// Types by a function's schema. Without one, or if it is too long, all parameters are strings.
    pub(super) fn of_schema(schema: Option<&str>) -> Self {
        let schema = schema.filter(|it| it.len() <= MAX_SCHEMA_BYTES);
        let root = schema.and_then(|it| serde_json::from_str::<Value>(it).ok());
        let mut out = Self::default();
        if let Some(root) = root {
            Reader::new(&root).collect(&root, &mut out, MAX_DEPTH);
            let others = out.others;
            out.named.retain(|_, types| *types != others);
        }
        out
    }

    pub(super) fn types(&self, parameter: &str) -> Types {
        *self.named.get(parameter).unwrap_or(&self.others)
    }

    /// Types for the grammar compiler: those by name, and those of all other parameters.
    pub(super) fn written(&self) -> Value {
        let named = self.named.iter();
        let named = named.map(|(name, types)| (name.clone(), json!(types.names())));
        json!({"named": named.collect::<Map<_, _>>(), "others": self.others.names()})
    }
}

/// Schemas that a schema applies in place.
fn applied<'a>(schema: &'a Value, root: &'a Value) -> impl Iterator<Item = &'a Value> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter();
    let lists = lists.filter_map(|name| schema.get(name)?.as_array());
    lists.flatten().chain(referenced(schema, root))
}

/// Target of a reference within the schema.
fn referenced<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// Reader of one function's schema. Each part is read once, however many references lead there.
struct Reader<'a> {
    root: &'a Value,
    /// Types of schemas, by address.
    known: HashMap<*const Value, Types>,
    /// Schemas with collected parameters, by address.
    collected: HashSet<*const Value>,
}

impl<'a> Reader<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            known: HashMap::new(),
            collected: HashSet::new(),
        }
    }

    /// Adds the parameters of an object's schema, and of those that it applies in place.
    fn collect(&mut self, schema: &'a Value, out: &mut OfFunction, depth: u32) {
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        if !self.collected.insert(schema) {
            return;
        }
        let members = schema.get("properties").and_then(Value::as_object);
        for (name, schema) in members.into_iter().flatten() {
            let types = self.found(schema);
            let known = out.named.entry(name.clone()).or_insert(types);
            *known = *known | types;
        }
        if let Some(others @ Value::Object(_)) = schema.get("additionalProperties") {
            out.others = self.found(others);
        }
        for inside in applied(schema, self.root) {
            self.collect(inside, out, depth);
        }
    }

    /// Types of a parameter. A schema without a valid value is read as that of a string.
    fn found(&mut self, schema: &'a Value) -> Types {
        match self.types_of(schema, MAX_DEPTH) {
            Types::NONE => Types::STRING,
            types => types,
        }
    }

    fn types_of(&mut self, schema: &'a Value, depth: u32) -> Types {
        let Value::Object(keywords) = schema else {
            return if *schema == Value::Bool(false) {
                Types::NONE
            } else {
                Types::ALL
            };
        };
        let address = std::ptr::from_ref(schema);
        if let Some(types) = self.known.get(&address) {
            return *types;
        }
        if depth == 0 {
            return Types::ALL;
        }
        // Where a schema leads back to itself, any type is possible.
        self.known.insert(address, Types::ALL);
        let mut types = keywords.get("type").map_or(Types::ALL, Types::named);
        if let Some(value) = keywords.get("const") {
            types = types & Types::of_value(value);
        }
        if let Some(Value::Array(values)) = keywords.get("enum") {
            let values = values.iter().map(Types::of_value);
            types = types & values.fold(Types::NONE, BitOr::bitor);
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = keywords.get(name) {
                let each = schemas.iter().map(|it| self.types_of(it, depth - 1));
                types = types & each.fold(Types::NONE, BitOr::bitor);
            }
        }
        if let Some(Value::Array(schemas)) = keywords.get("allOf") {
            let each = schemas.iter().map(|it| self.types_of(it, depth - 1));
            types = each.fold(types, BitAnd::bitand);
        }
        if let Some(target) = referenced(schema, self.root) {
            types = types & self.types_of(target, depth - 1);
        }
        self.known.insert(address, types);
        types
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: &Value) -> Types {
        let schema = json!({"properties": {"p": schema}, "$defs": {
            "n": {"type": "integer"}, "endless": {"$ref": "#/$defs/endless"},
            "wide": {"anyOf": [{"$ref": "#/$defs/wide"}, {"$ref": "#/$defs/wide"}]},
        }});
        OfFunction::of_schema(Some(&schema.to_string())).types("p")
    }

    #[test]
    fn types_are_those_of_all_valid_values() {
        let nullable = Types::STRING | Types::NULL;
        for (schema, types) in [
            (json!({"type": "string"}), Types::STRING),
            (json!({"type": "integer", "minimum": 1}), Types::INTEGER),
            (json!({"type": "number"}), Types::NUMBER),
            (json!({"type": ["string", "null"]}), nullable),
            (
                json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
                nullable,
            ),
            (json!({"enum": ["a", null]}), nullable),
            (
                json!({"type": "string", "enum": ["a", null]}),
                Types::STRING,
            ),
            (json!({"const": 1.5}), Types::NUMBER),
            (
                json!({"$ref": "#/$defs/n", "description": "A count."}),
                Types::INTEGER,
            ),
            (
                json!({"allOf": [{"type": ["integer", "array"]}, {"type": ["array", "object"]}]}),
                Types::ARRAY,
            ),
            (
                json!({"oneOf": [{"type": "object"}, {"type": "boolean"}]}),
                Types::OBJECT | Types::BOOLEAN,
            ),
            (json!({"description": "anything"}), Types::ALL),
            (json!(true), Types::ALL),
            (json!({"type": "integer", "enum": ["a"]}), Types::STRING),
            (json!(false), Types::STRING),
            (json!({"$ref": "#/$defs/endless"}), Types::ALL),
            (json!({"$ref": "#/$defs/wide"}), Types::ALL),
            (json!({"$ref": "#/nowhere"}), Types::ALL),
        ] {
            assert_eq!(of(&schema), types, "{schema}");
        }
    }

    #[test]
    fn parameters_without_a_schema_are_strings_unless_another_schema_covers_them() {
        let of = |schema: &Value| OfFunction::of_schema(Some(&schema.to_string())).types("q");
        assert_eq!(of(&json!({"additionalProperties": true})), Types::STRING);
        let counted = json!({"additionalProperties": {"type": "integer"}});
        assert_eq!(of(&counted), Types::INTEGER);
        let q = json!({"properties": {"q": {"type": "array"}}});
        let applied = json!({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": q}});
        assert_eq!(of(&applied), Types::ARRAY);
        let long = json!({"description": "x".repeat(MAX_SCHEMA_BYTES), "properties": {"q": {"type": "array"}}});
        assert_eq!(of(&long), Types::STRING);
        assert_eq!(OfFunction::of_schema(None).types("q"), Types::STRING);
    }

    #[test]
    fn a_schema_is_read_once_however_many_references_lead_to_it() {
        let again = json!({"$ref": "#"});
        let wide = json!({"$ref": "#/$defs/w"});
        let names = (0..5000).map(|n| (format!("p{n}"), wide.clone()));
        let schema = json!({
            "allOf": vec![again; 8],
            "properties": names.collect::<Map<_, _>>(),
            "$defs": {"w": {"enum": vec![0; 1000], "anyOf": vec![wide; 2]}},
        });
        let of_function = OfFunction::of_schema(Some(&schema.to_string()));
        assert_eq!(of_function.types("p7"), Types::INTEGER);
    }

    #[test]
    fn another_supervisor_reads_the_same() {
        let tools = json!([
            {"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}},
            {"type": "function", "function": {"name": "g"}},
        ]);
        let parameters = Parameters::of_tools(&tools.to_string());
        let of_f = parameters.of_function("f").unwrap();
        assert_eq!(
            (of_f.types("n"), of_f.types("m")),
            (Types::INTEGER, Types::STRING)
        );
        assert!(parameters.of_function("g").is_some() && parameters.of_function("h").is_none());
        let written = serde_json::to_string(&parameters).unwrap();
        let read: Parameters = serde_json::from_str(&written).unwrap();
        assert_eq!(read, parameters);
    }

    #[test]
    fn names_are_those_of_the_keyword() {
        assert_eq!((Types::INTEGER | Types::NULL).names(), ["null", "integer"]);
        assert_eq!(
            (Types::NUMBER | Types::STRING).names(),
            ["number", "string"]
        );
    }
}
