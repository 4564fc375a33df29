//! Translation of a client's JSON Schema to a dialect that the compiler follows exactly.
//!
//! ```text
//! schema of a client ── here ──► schema of draft 2020-12, a few keywords of it ── llguidance ──► grammar
//! ```
//!
//! llguidance ignores some unsupported keywords, and interprets some supported ones loosely. So each keyword of any
//! draft is either translated, or refused by name and place; other keywords are ignored. The result:
//!
//! * has no `format` ([`formats`]), and expressions in the engine's syntax ([`pattern`]);
//! * has bounds that are inclusive, and numbers that are exact ([`numbers`]);
//! * has references to its own `$defs` only ([`references`]);
//! * has keywords that apply other schemas in place after all others, so that none is lost;
//! * has `anyOf` for a `oneOf`, with each alternative restricted to values that no other accepts, if they are not
//!   disjoint ([`disjoint`], [`one_of`]), and for other keywords that exclude values ([`conditions`], [`negation`]).

mod budget;
mod conditions;
mod counts;
mod disjoint;
mod formats;
mod names;
mod negation;
mod numbers;
mod one_of;
mod pattern;
mod references;
mod texts;
mod types;

use crate::error::GrammarError;
use budget::Budget;
use disjoint::Comparison;
use references::References;
pub(crate) use references::escaped;
use serde_json::{Map, Value, json};

/// Keywords that no grammar can express.
const REFUSED: &[&str] = &[
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$recursiveRef",
    "$dynamicRef",
    "contentEncoding",
    "contentMediaType",
];

/// Identifiers of draft 3 and earlier ones, with other meanings of keywords.
const OLD_DRAFTS: &[&str] = &["/draft-00/", "/draft-01/", "/draft-02/", "/draft-03/"];

/// Drafts with a list of schemas in `items`, later `prefixItems`.
const LIST_DRAFTS: &[&str] = &["/draft-04/", "/draft-06/", "/draft-07/", "/2019-09/"];

/// Drafts in which the encoding and the type of a text's content are assertions.
const CONTENT_DRAFTS: &[&str] = &["/draft-06/", "/draft-07/"];

/// Translates a schema. `is_lenient`: an unsupported keyword is ignored, if a schema without it remains.
///
/// # Errors
/// The unsupported keyword, and its place.
pub(crate) fn followed(schema: &Value, is_lenient: bool) -> Result<Value, GrammarError> {
    let dialect = schema["$schema"].as_str().unwrap_or_default();
    let is_of = |drafts: &[&str]| drafts.iter().any(|it| dialect.contains(it));
    if is_of(OLD_DRAFTS) {
        let why = format!("$schema {dialect:?}: drafts before 4 are not followed");
        return Err(GrammarError::new(why));
    }
    let mut reader = Reader {
        references: References::new(schema),
        has_lists: is_of(LIST_DRAFTS),
        holds_contents: is_of(CONTENT_DRAFTS),
        is_draft_4: is_of(&["/draft-04/"]),
        is_lenient,
        budget: Budget::new(),
    };
    let mut out = reader.schema(schema, "")?;
    let mut definitions = Map::new();
    while let Some((name, place)) = reader.references.next() {
        let target = schema.pointer(&place).unwrap_or(&Value::Null);
        definitions.insert(name, reader.schema(target, &place)?);
    }
    if let (Some(keywords), false) = (out.as_object_mut(), definitions.is_empty()) {
        keywords.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Ok(out)
}

struct Reader<'a> {
    references: References<'a>,
    has_lists: bool,
    holds_contents: bool,
    is_draft_4: bool,
    is_lenient: bool,
    budget: Budget,
}

type Keywords = Map<String, Value>;

/// Schema under construction.
#[derive(Default)]
struct Out {
    plain: Keywords,
    /// Keywords that apply other schemas in place.
    applied: Keywords,
    /// Further elements of `allOf`.
    more: Vec<Value>,
}

impl Reader<'_> {
    fn schema(&mut self, schema: &Value, at: &str) -> Result<Value, GrammarError> {
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(keywords) => self.keywords(keywords, at),
            _ => Err(wrong(at, "a schema is an object, true or false")),
        }
    }

    fn keywords(&mut self, keywords: &Keywords, at: &str) -> Result<Value, GrammarError> {
        let mut out = Out::default();
        for (name, value) in keywords {
            let inside = format!("{at}/{}", references::escaped(name));
            self.keyword(name, value, &inside, &mut out)?;
        }
        self.items(keywords, at, &mut out.plain)?;
        self.pattern_properties(keywords, at, &mut out.plain)?;
        self.text(keywords, at, &mut out)?;
        self.conditions(keywords, at, &mut out)?;
        let counts = counts::write(keywords, &mut out);
        self.unless_lenient(at, counts)?;
        let bounds = numbers::write(keywords, &mut out.plain);
        self.unless_lenient(at, bounds)?;
        let has_conditions = !out.more.is_empty() && !self.is_lenient;
        if !out.more.is_empty() {
            let all = out.applied.entry("allOf").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut() {
                all.append(&mut out.more);
            }
        }
        out.plain.extend(out.applied);
        let out = Value::Object(out.plain);
        if has_conditions && conditions::ways(&out) > conditions::MAX_WAYS {
            return Err(wrong(at, "its conditions have too many combinations"));
        }
        Ok(out)
    }

    /// Translates keywords that are independent of others.
    fn keyword(
        &mut self,
        name: &str,
        value: &Value,
        inside: &str,
        out: &mut Out,
    ) -> Result<(), GrammarError> {
        match name {
            "type" | "required" => {
                out.plain.insert(name.to_owned(), value.clone());
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => {
                let count =
                    numbers::count(value).ok_or_else(|| wrong(inside, "it must be a count"))?;
                out.plain.insert(name.to_owned(), count.into());
            }
            "const" | "enum" => {
                let checked = numbers::check_constant(value);
                checked.map_err(|why| wrong(inside, &why))?;
                out.applied.insert(name.to_owned(), value.clone());
            }
            "properties" => {
                let members = self.members(value, inside, |name| Ok(name.to_owned()))?;
                out.plain.insert(name.to_owned(), members);
            }
            "additionalProperties" => {
                out.plain
                    .insert(name.to_owned(), self.schema(value, inside)?);
            }
            "allOf" | "anyOf" => {
                out.applied
                    .insert(name.to_owned(), self.list(value, inside)?);
            }
            "$ref" => {
                let reference = self.references.followed(value, inside)?;
                out.applied
                    .insert(name.to_owned(), Value::String(reference));
            }
            "uniqueItems" if *value == Value::Bool(false) => {}
            "unevaluatedItems" | "unevaluatedProperties" if *value == Value::Bool(true) => {}
            "uniqueItems" => {
                self.unless_lenient(inside, Err(format!("{name} cannot be followed")))?
            }
            "contentEncoding" if value == formats::BASE64 => {}
            "contentEncoding" | "contentMediaType" if !self.holds_contents => {}
            name if REFUSED.contains(&name) => {
                self.unless_lenient(inside, Err(format!("{name} cannot be followed")))?;
            }
            // Those that are read together with others, annotations, and those that are in no draft.
            _ => {}
        }
        Ok(())
    }

    /// Translates schemas by name.
    fn members(
        &mut self,
        value: &Value,
        at: &str,
        name_of: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Value, GrammarError> {
        let members = value
            .as_object()
            .ok_or_else(|| wrong(at, "it must be an object"))?;
        let mut out = Keywords::new();
        for (name, schema) in members {
            let inside = format!("{at}/{}", references::escaped(name));
            let name = name_of(name).map_err(|why| wrong(&inside, &not_followed(&why)))?;
            let schema = self.schema(schema, &inside)?;
            if out.insert(name, schema).is_some() {
                return Err(wrong(&inside, "an expression that stands there twice"));
            }
        }
        Ok(Value::Object(out))
    }

    /// Translates `patternProperties`. A name that only some regular expression engines match must satisfy its schema
    /// if other names are allowed, and is excluded if they are not.
    fn pattern_properties(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Keywords,
    ) -> Result<(), GrammarError> {
        let Some(value) = keywords.get("patternProperties") else {
            return Ok(());
        };
        let inside = format!("{at}/patternProperties");
        let others = out.get("additionalProperties");
        let is_free = others.is_none_or(|it| it == &json!({}) || it == &Value::Bool(true));
        let is_closed = others == Some(&Value::Bool(false));
        let members = self.members(value, &inside, |pattern| match (is_free, is_closed) {
            (true, _) => pattern::widest(pattern),
            (_, true) => pattern::translated(pattern),
            _ if texts::is_read_alike(pattern) => pattern::translated(pattern),
            _ => Err(
                "readers differ in the names that it matches, and other names have a schema"
                    .to_owned(),
            ),
        })?;
        out.insert("patternProperties".to_owned(), members);
        Ok(())
    }

    fn list(&mut self, value: &Value, at: &str) -> Result<Value, GrammarError> {
        let schemas = value
            .as_array()
            .ok_or_else(|| wrong(at, "it must be a list"))?;
        let read = |(index, schema)| self.schema(schema, &format!("{at}/{index}"));
        let out: Result<Vec<Value>, GrammarError> = schemas.iter().enumerate().map(read).collect();
        out.map(Value::Array)
    }

    /// Items of a list, in the form of the newest draft.
    fn items(
        &mut self,
        keywords: &Keywords,
        at: &str,
        out: &mut Keywords,
    ) -> Result<(), GrammarError> {
        let is_list = keywords.get("items").is_some_and(Value::is_array);
        let has_prefix = keywords.contains_key("prefixItems");
        if has_prefix && (is_list || self.has_lists) {
            return Err(wrong(
                at,
                "prefixItems is not of the draft that the other keywords are of",
            ));
        }
        let (first, rest) = match is_list {
            true => ("items", "additionalItems"),
            // Beside `items` that are no list, additionalItems mean nothing in any draft.
            false => ("prefixItems", "items"),
        };
        if let Some(value) = keywords.get(first) {
            let list = self.list(value, &format!("{at}/{first}"))?;
            out.insert("prefixItems".to_owned(), list);
        }
        if let Some(value) = keywords.get(rest) {
            let schema = self.schema(value, &format!("{at}/{rest}"))?;
            out.insert("items".to_owned(), schema);
        }
        Ok(())
    }

    /// Translates `pattern`, `format` and an encoding.
    fn text(&mut self, keywords: &Keywords, at: &str, out: &mut Out) -> Result<(), GrammarError> {
        let mut patterns = Vec::new();
        if let Some(value) = keywords.get("pattern") {
            let inside = format!("{at}/pattern");
            let text = value
                .as_str()
                .ok_or_else(|| wrong(&inside, "it must be a string"))?;
            match pattern::translated(text) {
                Ok(pattern) => patterns.push(pattern),
                Err(why) => self.unless_lenient(&inside, Err(not_followed(&why)))?,
            }
        }
        if let Some(value) = keywords.get("format").filter(|_| may_be_text(keywords)) {
            patterns.extend(value.as_str().and_then(formats::pattern));
        }
        if keywords
            .get("contentEncoding")
            .is_some_and(|it| it == formats::BASE64)
        {
            patterns.push(formats::base64());
        }
        let mut patterns = patterns.into_iter();
        if let Some(first) = patterns.next() {
            out.plain.insert("pattern".to_owned(), Value::String(first));
        }
        let types = keywords.get("type");
        out.more.extend(patterns.map(|pattern| match types {
            Some(types) => json!({"type": types, "pattern": pattern}),
            None => json!({"pattern": pattern}),
        }));
        Ok(())
    }

    fn comparison(&self) -> Comparison<'_> {
        Comparison {
            references: &self.references,
            budget: &self.budget,
            is_draft_4: self.is_draft_4,
        }
    }

    fn unless_lenient(&self, at: &str, found: Result<(), String>) -> Result<(), GrammarError> {
        match found {
            Err(why) if !self.is_lenient => Err(wrong(at, &why)),
            _ => Ok(()),
        }
    }
}

fn may_be_text(keywords: &Keywords) -> bool {
    match keywords.get("type") {
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        _ => true,
    }
}

fn not_followed(why: &str) -> String {
    format!("the expression cannot be followed: {why}")
}

pub(crate) fn wrong(at: &str, why: &str) -> GrammarError {
    GrammarError::new(format!("{why} (at #{at})"))
}
