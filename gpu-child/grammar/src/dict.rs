//! Arguments of a call as a dictionary, after `%dict` in a Lark text:
//!
//! ```text
//! {at:{lat:48.9,lon:2.4},city:<|"|>Paris<|"|>,days:2}
//! ```
//!
//! A string stands between marks, without escapes, and does not contain one. Keys are bare. Other values are JSON. Members
//! have the order in which the template of Gemma 4 writes them, which is that of Jinja's `dictsort`: a call that returns in
//! the next prompt usually has the same tokens. A keyword that is not followed is an error, or ignored if the schema is lenient.

use crate::error::GrammarError;
use crate::inline::{JSON, SETTINGS};
use crate::limits::{MAX_GRAMMAR_BYTES, MAX_LARK_ALTERNATIVES, MAX_LARK_LINES};
use crate::parameters::raw::Raw;
use crate::rules::{Rules, quoted};
use crate::schema::{self, escaped, wrong};
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap};

pub(crate) const DICT: &str = "%dict";

/// Mark at both ends of a string, if it is no control token.
const QUOTE: &str = "<|\"|>";

/// A text without the mark.
const WITHOUT_QUOTE: &str = "/(.|\\n)*<\\|\"\\|>(.|\\n)*/";

/// A bare key: no white space, and no character with a meaning of its own.
const ANY_KEY: &str = "/[^\\s{}\\[\\]<>:,\"]{1,64}/";

/// Most bytes of a bare key that a parser reads.
const MAX_KEY_BYTES: usize = 256;

/// Key of the rule of any value, among those of references.
const ANY: &str = "";

const MAX_EXPANDED_BYTES: usize = 16 * MAX_GRAMMAR_BYTES;

/// Maximum nesting of schemas. A member takes a level, and one more behind a reference.
const MAX_DEPTH: usize = 64;

/// Bounds at least as large are those of every integer: the translation of a schema adds them.
const OF_ALL_INTEGERS: f64 = 9.2e18;

/// Set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const OBJECT: Self = Self(1);
    const ARRAY: Self = Self(2);
    const STRING: Self = Self(4);
    const INTEGER: Self = Self(8);
    const FRACTION: Self = Self(16);
    const BOOLEAN: Self = Self(32);
    const NULL: Self = Self(64);
    const ALL: Self = Self(127);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    const NAMES: [(&str, Self); 7] = [
        ("object", Self::OBJECT),
        ("array", Self::ARRAY),
        ("string", Self::STRING),
        ("integer", Self::INTEGER),
        ("number", Self(8 | 16)),
        ("boolean", Self::BOOLEAN),
        ("null", Self::NULL),
    ];

    /// Those that the keyword `type` names.
    fn of_keyword(types: &Value) -> Self {
        let named = names_of(types);
        let named = Self::NAMES.iter().filter(|(name, _)| named.contains(name));
        Self(named.fold(0, |all, (_, types)| all | types.0))
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
            Value::String(_) => Self::STRING,
            Value::Number(number) if number.as_f64().is_some_and(|it| it.fract() == 0.0) => {
                Self::INTEGER
            }
            Value::Number(_) => Self::FRACTION,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
        }
    }
}

/// Keywords of strings, which [`Raw`] follows.
const OF_STRINGS: [&str; 3] = ["pattern", "minLength", "maxLength"];
/// Keywords of numbers, which the compiler follows.
const OF_NUMBERS: [&str; 5] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];
/// Other keywords of the dialect that are followed.
const FOLLOWED: [&str; 13] = [
    "type",
    "enum",
    "const",
    "anyOf",
    "allOf",
    "$ref",
    "$defs",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
];

/// Rule of the dictionary, in parentheses.
///
/// # Errors
/// If a keyword is not followed.
pub(crate) fn expanded(given: &Value, rules: &mut Rules) -> Result<String, GrammarError> {
    let is_lenient = given["lenient"] == Value::Bool(true);
    let schema = schema::followed(&given["schema"], is_lenient)?;
    let mut writer = Writer {
        root: &schema,
        quote: given["quote"].as_str(),
        is_lenient,
        rules,
        references: HashMap::new(),
    };
    let rule = writer.value(&schema, Types::OBJECT, "", MAX_DEPTH)?;
    rule.ok_or_else(|| wrong("", "no value is valid"))
}

struct Writer<'a> {
    /// Schema in the compiler's dialect.
    root: &'a Value,
    /// The control token around strings, as the grammar writes it.
    quote: Option<&'a str>,
    is_lenient: bool,
    rules: &'a mut Rules,
    /// Rules of the values of these types that a reference stands for; of any value under [`ANY`].
    references: HashMap<(u8, String), String>,
}

impl Writer<'_> {
    /// Rule of the valid values of these types. `None`: there are none.
    fn value(
        &mut self,
        schema: &Value,
        types: Types,
        at: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let empty = Map::new();
        let keywords = match schema {
            Value::Bool(false) => return Ok(None),
            Value::Object(keywords) => keywords,
            _ => &empty,
        };
        if depth == 0 {
            return Err(wrong(at, "it is nested too deep"));
        }
        self.check(keywords, at)?;
        let named = keywords.get("type").map_or(Types::ALL, Types::of_keyword);
        let types = Types(types.0 & named.0);
        if types == Types::ALL && keywords.keys().all(|name| name == "$defs") {
            return self.any().map(Some);
        }
        // A lenient schema follows its own members rather than what is applied beside them.
        let is_own = self.is_lenient && keywords.contains_key("properties");
        if let (Some(reference), false) = (keywords.get("$ref").and_then(Value::as_str), is_own) {
            return self.reference(reference, types, at, depth).map(Some);
        }
        for (applied, most) in [("anyOf", usize::MAX), ("allOf", 1)] {
            let schemas = keywords.get(applied).and_then(Value::as_array);
            let Some(schemas) = schemas.filter(|_| !is_own) else {
                continue;
            };
            let mut ways = Vec::new();
            for (index, schema) in schemas.iter().enumerate().take(most) {
                let at = format!("{at}/{applied}/{index}");
                ways.extend(self.value(schema, types, &at, depth - 1)?);
                self.check_size(&at)?;
            }
            return Ok(any_of(ways));
        }
        let listed = keywords.get("enum").and_then(Value::as_array);
        let listed = listed.map(Vec::as_slice);
        if let Some(values) = listed.or(keywords.get("const").map(std::slice::from_ref)) {
            if values.len() > MAX_LARK_ALTERNATIVES {
                let why = format!(
                    "it lists {} values; at most {MAX_LARK_ALTERNATIVES} are compiled",
                    values.len()
                );
                return Err(wrong(at, &why));
            }
            return Ok(self.one_of(values, types));
        }
        self.typed(keywords, types, at, depth)
    }

    /// Rule of any value.
    fn any(&mut self) -> Result<String, GrammarError> {
        let key = (Types::ALL.0, ANY.to_owned());
        if let Some(name) = self.references.get(&key) {
            return Ok(name.clone());
        }
        let name = self.rules.reserved("dict-any");
        self.references.insert(key, name.clone());
        // Objects and lists refer to the rule itself.
        let rule = self.typed(&Map::new(), Types::ALL, "", MAX_DEPTH)?;
        self.rules
            .define(&name, &format!(": {}", rule.unwrap_or_default()));
        Ok(name)
    }

    /// Rule of the values of these types.
    fn typed(
        &mut self,
        keywords: &Map<String, Value>,
        types: Types,
        at: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let mut ways = Vec::new();
        if types.has(Types::OBJECT) {
            ways.extend(self.object(keywords, at, depth)?);
        }
        if types.has(Types::ARRAY) {
            ways.extend(self.list(keywords, at, depth)?);
        }
        if types.has(Types::STRING) {
            ways.extend(self.string(keywords, at)?);
        }
        if types.has(Types::FRACTION) {
            ways.push(self.number("number", keywords));
        } else if types.has(Types::INTEGER) {
            ways.push(self.number("integer", keywords));
        }
        if types.has(Types::BOOLEAN) {
            ways.push("\"true\" | \"false\"".to_owned());
        }
        if types.has(Types::NULL) {
            ways.push("\"null\"".to_owned());
        }
        Ok(any_of(ways))
    }

    /// Rule of the listed values of these types.
    fn one_of(&mut self, values: &[Value], types: Types) -> Option<String> {
        let valid = values
            .iter()
            .filter(|it| types.has(Types::of_value(it)) && is_expressible(it));
        let (texts, others): (Vec<&Value>, Vec<_>) = valid.partition(|it| it.is_string());
        let mut ways: Vec<String> = others.into_iter().map(|it| self.written(it)).collect();
        let texts = texts.into_iter().filter_map(Value::as_str).map(quoted);
        if let Some(texts) = any_of(texts.collect()) {
            ways.push(self.between_marks(&texts));
        }
        any_of(ways)
    }

    /// Refuses keywords that are not followed, unless the schema is lenient.
    fn check(&self, keywords: &Map<String, Value>, at: &str) -> Result<(), GrammarError> {
        if self.is_lenient {
            return Ok(());
        }
        let is_followed = |name: &str| {
            FOLLOWED.contains(&name) || OF_STRINGS.contains(&name) || OF_NUMBERS.contains(&name)
        };
        if let Some(name) = keywords.keys().find(|it| !is_followed(it)) {
            return Err(not_followed(at, name));
        }
        let all = keywords.get("allOf").and_then(Value::as_array);
        if all.is_some_and(|all| all.len() > 1) {
            return Err(not_followed(at, "allOf with several schemas"));
        }
        for applied in ["$ref", "anyOf", "allOf", "enum", "const"] {
            let is_bound_of_all = |name: &str, value: &Value| {
                OF_NUMBERS.contains(&name)
                    && value.as_f64().is_some_and(|it| it.abs() >= OF_ALL_INTEGERS)
            };
            let mut beside = keywords.iter().filter(|(name, value)| {
                ![applied, "$defs", "type"].contains(&name.as_str())
                    && !is_bound_of_all(name, value)
            });
            if let (true, Some((name, _))) = (keywords.contains_key(applied), beside.next()) {
                return Err(not_followed(at, &format!("{name} beside {applied}")));
            }
        }
        Ok(())
    }

    /// Rule of the values of these types that a reference stands for.
    fn reference(
        &mut self,
        reference: &str,
        types: Types,
        at: &str,
        depth: usize,
    ) -> Result<String, GrammarError> {
        let key = (types.0, reference.to_owned());
        if let Some(name) = self.references.get(&key) {
            return Ok(name.clone());
        }
        let target = reference.strip_prefix('#');
        let Some(target) = target.and_then(|it| self.root.pointer(it)) else {
            return Err(wrong(at, &format!("$ref {reference:?} has no target")));
        };
        // Recursive schemas refer to the rule that is being written.
        let name = self.rules.reserved("dict-reference");
        self.references.insert(key, name.clone());
        let rule = self.value(target, types, at, depth - 1)?;
        let none = || wrong(at, &format!("no value of $ref {reference:?} is valid"));
        let rule = rule.ok_or_else(none)?;
        self.rules.define(&name, &format!(": {rule}"));
        self.check_size(at)?;
        Ok(name)
    }

    fn object(
        &mut self,
        keywords: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let required = keywords.get("required").map_or(Vec::new(), names_of);
        let required: BTreeSet<&str> = required.into_iter().collect();
        let named = keywords.get("properties").and_then(Value::as_object);
        let named = named.into_iter().flatten();
        let mut members: Vec<(&str, Option<&Value>)> = named
            .map(|(name, schema)| (name.as_str(), Some(schema)))
            .collect();
        let known: BTreeSet<&str> = members.iter().map(|(name, _)| *name).collect();
        members.extend(required.difference(&known).map(|name| (*name, None)));
        members.sort_by_cached_key(|(name, _)| name.to_lowercase());
        let inside = format!("{at}/additionalProperties");
        let given = keywords.get("additionalProperties");
        // If the schema does not mention others, they are offered only if none is named.
        let is_open = given.is_some() || members.is_empty();
        let of_unnamed = match given {
            Some(schema) => self.value(schema, Types::ALL, &inside, depth - 1)?,
            None if is_open || members.iter().any(|(_, schema)| schema.is_none()) => {
                Some(self.any()?)
            }
            None => None,
        };
        let others = of_unnamed.clone().filter(|_| is_open);
        // Rules of the members from one on, behind none and behind others.
        let (mut first, mut next) = (String::from("\"\""), String::from("\"\""));
        if let Some(value) = others {
            let known: Vec<String> = members.iter().map(|(name, _)| quoted(name)).collect();
            let known = match known.is_empty() {
                true => String::new(),
                false => format!(" & ~({})", known.join(" | ")),
            };
            let key = self.rules.named("DICT-KEY", format!(": {ANY_KEY}{known}"));
            let member = self
                .rules
                .named("dict-member", format!(": {key} \":\" {value}"));
            next = format!("(\",\" {member})*");
            first = format!("({member} {next})?");
        }
        for (name, schema) in members.iter().rev() {
            let at = format!("{at}/properties/{}", escaped(name));
            let is_required = required.contains(name);
            let value = match (is_writable(name), schema) {
                (true, Some(schema)) => self.value(schema, Types::ALL, &at, depth - 1)?,
                (true, None) => of_unnamed.clone(),
                (false, _) if self.is_lenient && !is_required => None,
                (false, _) => return Err(wrong(&at, UNWRITABLE)),
            };
            let Some(value) = value else {
                match is_required {
                    true => return Ok(None),
                    false => continue,
                }
            };
            let key = quoted(&format!("{name}:"));
            let rest = self.rules.named("dict-rest", format!(": {next}"));
            let optional = |rule: String, without: &str| match is_required {
                true => rule,
                false => format!("{rule} | {without}"),
            };
            next = optional(format!("\",\" {key} {value} {rest}"), &rest);
            let first_rest = self.rules.named("dict-rest", format!(": {first}"));
            first = optional(format!("{key} {value} {rest}"), &first_rest);
            self.check_size(&at)?;
        }
        let members = self.rules.named("dict-members", format!(": {first}"));
        Ok(Some(format!("\"{{\" {members} \"}}\"")))
    }

    fn list(
        &mut self,
        keywords: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let any = json!({});
        // Of a lenient schema, items behind a prefix that is ignored may be any.
        let items = keywords
            .get("items")
            .filter(|_| !keywords.contains_key("prefixItems"))
            .unwrap_or(&any);
        let count = |name: &str| keywords.get(name).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        let item = match most {
            Some(0) => None,
            _ => self.value(items, Types::ALL, &format!("{at}/items"), depth - 1)?,
        };
        let Some(item) = item.filter(|_| most.is_none_or(|most| most >= least)) else {
            return Ok((least == 0).then(|| "\"[\" \"]\"".to_owned()));
        };
        let item = self.rules.named("dict-item", format!(": {item}"));
        let more = most.map_or(String::new(), |most| (most - 1).to_string());
        let next = format!("(\",\" {item}){{{},{more}}}", least.saturating_sub(1));
        Ok(Some(match least {
            0 => format!("\"[\" ({item} {next})? \"]\""),
            _ => format!("\"[\" {item} {next} \"]\""),
        }))
    }

    fn string(
        &mut self,
        keywords: &Map<String, Value>,
        at: &str,
    ) -> Result<Option<String>, GrammarError> {
        let own = Value::Object(only(keywords, &OF_STRINGS));
        let text = Raw::new(self.root, self.is_lenient).text(&own, at)?;
        Ok(text.map(|text| self.between_marks(&text)))
    }

    /// Rule of a string with this text.
    fn between_marks(&mut self, text: &str) -> String {
        let text = format!("({text}) & ~{WITHOUT_QUOTE}");
        match self.quote {
            Some(quote) => {
                let text = self.rules.named("DICT-TEXT", format!(": {text}"));
                format!("{quote} {text} {quote}")
            }
            None => {
                let mark = quoted(QUOTE);
                let rest = self
                    .rules
                    .named("dict-text", format!("[suffix={mark}]: {text}"));
                format!("{mark} {rest}")
            }
        }
    }

    fn number(&mut self, name: &str, keywords: &Map<String, Value>) -> String {
        let mut own = only(keywords, &OF_NUMBERS);
        own.insert("type".to_owned(), json!(name));
        own.insert(SETTINGS.to_owned(), json!({"lenient": self.is_lenient}));
        let own = Value::Object(own);
        self.rules.named("dict-number", format!(": {JSON} {own} "))
    }

    /// Rule of one value.
    fn written(&mut self, value: &Value) -> String {
        match value {
            Value::String(text) => self.between_marks(&quoted(text)),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|it| self.written(it)).collect();
                format!("\"[\" {} \"]\"", items.join(" \",\" "))
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_cached_key(|(name, _)| name.to_lowercase());
                let members = members.into_iter().map(|(name, value)| {
                    format!("{} {}", quoted(&format!("{name}:")), self.written(value))
                });
                let members: Vec<String> = members.collect();
                format!("\"{{\" {} \"}}\"", members.join(" \",\" "))
            }
            other => quoted(&other.to_string()),
        }
    }

    fn check_size(&self, at: &str) -> Result<(), GrammarError> {
        let (bytes, rules) = (self.rules.bytes(), self.rules.count());
        match bytes > MAX_EXPANDED_BYTES || rules > MAX_LARK_LINES {
            true => {
                let most = format!("{MAX_LARK_LINES} rules of {MAX_EXPANDED_BYTES} bytes");
                Err(wrong(at, &format!("a call has at most {most}")))
            }
            false => Ok(()),
        }
    }
}

/// The keywords with these names.
fn only(keywords: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    let named = keywords
        .iter()
        .filter(|(name, _)| names.contains(&name.as_str()));
    named
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn names_of(types: &Value) -> Vec<&str> {
    match types {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        own => own.as_str().into_iter().collect(),
    }
}

/// True if a call can express a value.
fn is_expressible(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.contains(QUOTE),
        Value::Array(items) => items.iter().all(is_expressible),
        Value::Object(members) => members
            .iter()
            .all(|(name, value)| is_writable(name) && is_expressible(value)),
        _ => true,
    }
}

fn any_of(ways: Vec<String>) -> Option<String> {
    (!ways.is_empty()).then(|| format!("({})", ways.join(" | ")))
}

fn not_followed(at: &str, keyword: &str) -> GrammarError {
    let why = format!("{keyword} cannot be followed in calls that are written as dictionaries");
    wrong(at, &why)
}

const UNWRITABLE: &str = "the name of a parameter in a dictionary has 1 to 256 bytes, and no white space, {, }, [, ], <, >, :, comma or quote";

fn is_writable(name: &str) -> bool {
    let is_of_key = |c: char| !c.is_whitespace() && !"{}[]<>:,\"".contains(c);
    (1..=MAX_KEY_BYTES).contains(&name.len()) && name.chars().all(is_of_key)
}
