//! Parameters of a function between tags, after `%parameters` in a Lark text:
//!
//! ```text
//! <parameter=city>
//! Paris
//! </parameter>
//! <parameter=days>
//! 2
//! </parameter>
//! ```
//!
//! A string is written without quotes and escapes, any other value as JSON. The parser of calls distinguishes them by the
//! parameter's types, which are given: so where both are allowed, a text that it would read as JSON is no string here.
//! Parameters have the order of the schema. A keyword that is not followed is an error, or ignored if the schema is
//! lenient.

pub(crate) mod raw;

use crate::error::GrammarError;
use crate::inline::{ESCAPES, JSON, SETTINGS};
use crate::limits::MAX_GRAMMAR_BYTES;
use crate::rules::{Rules, quoted};
use crate::schema;
use crate::schema::{escaped, wrong};
use raw::Raw;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

pub(crate) const PARAMETERS: &str = "%parameters";

const VALUE: &str = "parameter-value";

/// End of a value, with the line end before it.
const END: &str = "\n</parameter>\n";

/// Texts at which a parser may end a value. No string contains one.
const ENDS: [&str; 2] = [r"<\/parameter>", r"<\/function>[ \t\n\r]*<\/tool_call>"];

/// Characters of a parameter's name: those that its tag can express, as many as a parser reads.
const MAX_NAME_BYTES: usize = 256;

/// Maximum bytes of the rules of parameters, each with the definitions that it refers to.
const MAX_EXPANDED_BYTES: usize = 16 * MAX_GRAMMAR_BYTES;

/// Keywords that would have to hold for the whole object.
const UNFOLLOWED: [&str; 15] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "const",
    "enum",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
];

/// Keywords of the dialect that are followed. Behind a reference others may stand.
const FOLLOWED: [&str; 5] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
];

/// Types of parameters, as the parser of calls reads them: `{"named": {name: types}, "others": types}`.
struct Types<'a>(&'a Value);

impl<'a> Types<'a> {
    fn of(&self, name: &str) -> Vec<&'a str> {
        names(self.0["named"].get(name).unwrap_or(&self.0["others"]))
    }

    fn others(&self) -> Vec<&'a str> {
        names(&self.0["others"])
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Rule of the parameters, in parentheses.
///
/// # Errors
/// If a keyword is not followed.
pub(crate) fn expanded(given: &Value, rules: &mut Rules) -> Result<String, GrammarError> {
    let is_lenient = given["lenient"] == Value::Bool(true);
    let unfollowed = UNFOLLOWED
        .iter()
        .find(|it| given["schema"].get(it).is_some());
    if let (Some(name), false) = (unfollowed, is_lenient) {
        return Err(not_followed(name));
    }
    let schema = schema::followed(&given["schema"], is_lenient)?;
    Function {
        root: &schema,
        types: Types(&given["types"]),
        is_lenient,
        rules,
    }
    .rule()
}

struct Function<'a> {
    /// Schema in the compiler's dialect.
    root: &'a Value,
    types: Types<'a>,
    is_lenient: bool,
    rules: &'a mut Rules,
}

impl<'a> Function<'a> {
    fn rule(&mut self) -> Result<String, GrammarError> {
        let (object, any) = (self.object()?, json!({}));
        let members = object.get("properties").and_then(Value::as_object);
        let members = members.into_iter().flatten();
        let mut members: Vec<(&str, &Value)> =
            members.map(|(name, it)| (name.as_str(), it)).collect();
        let required = object.get("required").map_or(Vec::new(), names);
        // Without a word of the schema, others are offered only if none is named.
        let others = match object.get("additionalProperties") {
            None => members.is_empty().then_some(&any),
            Some(Value::Bool(false)) => None,
            others => others,
        };
        let unnamed = required
            .iter()
            .filter(|it| members.iter().all(|(name, _)| name != *it));
        let unnamed: Vec<&str> = unnamed.copied().collect();
        let of_unnamed = object.get("additionalProperties").unwrap_or(&any);
        members.extend(unnamed.into_iter().map(|name| (name, of_unnamed)));
        let mut out = "(\"\"".to_owned();
        for (name, schema) in &members {
            let at = format!("/properties/{}", escaped(name));
            let is_required = required.contains(name);
            if !is_required && (**schema == Value::Bool(false) || !self.is_offered(name, &at)?) {
                continue;
            }
            if !is_writable(name) {
                return Err(wrong(&at, UNWRITABLE));
            }
            let value = self.value(schema, &self.types.of(name), &at)?;
            let mark = if is_required { "" } else { "?" };
            let _ = write!(out, " ({} {value}){mark}", tag_of(name));
            if out.len() + self.rules.bytes() > MAX_EXPANDED_BYTES {
                let why = format!(
                    "parameters and their definitions have more than {MAX_EXPANDED_BYTES} bytes"
                );
                return Err(wrong(&at, &why));
            }
        }
        if let Some(schema) = others {
            let value = self.value(schema, &self.types.others(), "/additionalProperties")?;
            let known: Vec<String> = members.iter().map(|(name, _)| tag_of(name)).collect();
            let known = match known.is_empty() {
                true => String::new(),
                false => format!(" & ~({})", known.join(" | ")),
            };
            let tag = format!(": \"<parameter=\" /[^<>\\n]{{1,64}}/ \">\\n\"{known}");
            let tag = self.rules.named("PARAMETER-TAG", tag);
            let _ = write!(out, " ({tag} {value})*");
        }
        out.push(')');
        Ok(out)
    }

    /// False for a parameter that is left out because its tag cannot be written.
    fn is_offered(&self, name: &str, at: &str) -> Result<bool, GrammarError> {
        match is_writable(name) {
            false if !self.is_lenient => Err(wrong(at, UNWRITABLE)),
            is_offered => Ok(is_offered),
        }
    }

    /// Keywords of the object, behind a reference that stands alone.
    fn object(&self) -> Result<&'a Map<String, Value>, GrammarError> {
        let mut object = self.root;
        for _ in 0..raw::MAX_DEPTH {
            let Some(target) = object.get("$ref").and_then(|it| self.target(it)) else {
                break;
            };
            let beside = object.as_object().into_iter().flat_map(Map::keys);
            let mut beside = beside.filter(|it| !["$ref", "type", "$defs"].contains(&it.as_str()));
            if let (Some(name), false) = (beside.next(), self.is_lenient) {
                return Err(not_followed(&format!("{name} beside $ref")));
            }
            object = target;
        }
        let Some(keywords) = object.as_object() else {
            return Err(wrong("", "parameters need a schema that is an object"));
        };
        let other = keywords.keys().find(|it| !FOLLOWED.contains(&it.as_str()));
        match other {
            Some(name) if !self.is_lenient => Err(not_followed(name)),
            _ => Ok(keywords),
        }
    }

    fn target(&self, reference: &Value) -> Option<&'a Value> {
        self.root.pointer(reference.as_str()?.strip_prefix('#')?)
    }

    /// Rule of a value, with its end.
    fn value(&mut self, schema: &Value, types: &[&str], at: &str) -> Result<String, GrammarError> {
        let has = |name: &str| types.contains(&name);
        if !has("string") {
            let json = self.json(schema, types);
            return Ok(format!("{json} {}", quoted(END)));
        }
        let raw = Raw::new(self.root, self.is_lenient);
        let mut ways = Vec::new();
        if let Some(text) = raw.text(schema, at)? {
            let mut excluded: Vec<String> = ENDS
                .iter()
                .map(|it| format!("(.|\\n)*{it}(.|\\n)*"))
                .collect();
            let words = [("null", "null|None"), ("boolean", "true|True|false|False")];
            let words = words.iter().filter(|(name, _)| has(name));
            excluded.extend(words.map(|(_, words)| format!("[ \\t\\n\\r]*({words})[ \\t\\n\\r]*")));
            let firsts = [
                ("number", "\\-0-9"),
                ("integer", "\\-0-9"),
                ("array", "\\["),
                ("object", "{"),
            ];
            let firsts = firsts
                .iter()
                .filter(|(name, _)| has(name))
                .map(|(_, first)| *first);
            let firsts: String = firsts.collect();
            if !firsts.is_empty() {
                excluded.push(format!("[ \\t\\n\\r]*[{firsts}](.|\\n)*"));
            }
            let excluded = excluded.iter().map(|it| format!(" & ~/{it}/"));
            ways.push(format!("({text}{})", excluded.collect::<String>()));
        }
        for (name, word, value) in [
            ("null", "\"null\"", Value::Null),
            ("boolean", "\"true\"", true.into()),
            ("boolean", "\"false\"", false.into()),
        ] {
            if has(name) && raw.admits(schema, &value) {
                ways.push(word.to_owned());
            }
        }
        let rest = types
            .iter()
            .filter(|it| !["string", "null", "boolean"].contains(*it));
        let rest: Vec<&str> = rest.copied().collect();
        let mut values = Vec::new();
        if !ways.is_empty() {
            let end = quoted(END);
            let text = self
                .rules
                .named(VALUE, format!("[suffix={end}]: {}", ways.join(" | ")));
            values.push(text);
        }
        if !rest.is_empty() {
            let typed = json!({"type": rest, "allOf": [schema]});
            let json = self.json(&typed, types);
            values.push(format!("{json} {}", quoted(END)));
        }
        match values.is_empty() {
            true => Err(wrong(at, "no value is valid")),
            false => Ok(format!("({})", values.join(" | "))),
        }
    }

    /// Rule of a JSON text.
    fn json(&mut self, schema: &Value, types: &[&str]) -> String {
        let mut keywords = match schema {
            Value::Object(keywords) => keywords.clone(),
            Value::Bool(false) => json!({"anyOf": []})
                .as_object()
                .cloned()
                .unwrap_or_default(),
            _ => Map::new(),
        };
        keywords.entry("type").or_insert_with(|| json!(types));
        if let Some(definitions) = self.root.get("$defs").filter(|_| refers(schema)) {
            keywords.insert("$defs".to_owned(), definitions.clone());
        }
        let settings = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "lenient": self.is_lenient, "json_allowed_escapes": ESCAPES,
        });
        keywords.insert(SETTINGS.to_owned(), settings);
        let keywords = Value::Object(keywords);
        self.rules.named(VALUE, format!(": {JSON} {keywords} "))
    }
}

/// True if a schema may contain a reference.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key("$ref") || members.values().any(refers),
        Value::Array(members) => members.iter().any(refers),
        _ => false,
    }
}

fn not_followed(keyword: &str) -> GrammarError {
    let why = format!("{keyword} cannot be followed in calls that are written as tags");
    wrong("", &why)
}

const UNWRITABLE: &str =
    "the name of a parameter in a tag has at most 256 bytes, and no <, > or line end";

fn tag_of(name: &str) -> String {
    quoted(&format!("<parameter={name}>\n"))
}

fn is_writable(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && !name.contains(['<', '>', '\n'])
}
