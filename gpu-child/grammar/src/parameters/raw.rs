//! Strings of a schema without quotes, as terminals of Lark.

use crate::error::GrammarError;
use crate::rules::quoted;
use crate::schema::wrong;
use serde_json::Value;
use std::cell::Cell;

/// Nesting of applied schemas and references.
pub(crate) const MAX_DEPTH: usize = 32;

/// Schemas read for one parameter: references multiply them.
const MAX_SCHEMAS: usize = 1000;

const ANY: &str = "/(.|\\n)*/";

pub(crate) struct Raw<'a> {
    root: &'a Value,
    is_lenient: bool,
    left: Cell<usize>,
}

impl<'a> Raw<'a> {
    pub(crate) fn new(root: &'a Value, is_lenient: bool) -> Self {
        Self {
            root,
            is_lenient,
            left: Cell::new(MAX_SCHEMAS),
        }
    }

    /// Expression of the valid strings. `None`: there are none.
    pub(crate) fn text(&self, schema: &Value, at: &str) -> Result<Option<String>, GrammarError> {
        self.expression(schema, at, MAX_DEPTH)
    }

    /// True if this value, which is `null` or a boolean, is valid.
    pub(crate) fn admits(&self, schema: &Value, value: &Value) -> bool {
        self.admits_within(schema, value, MAX_DEPTH)
    }

    fn expression(
        &self,
        schema: &Value,
        at: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let Value::Object(keywords) = schema else {
            return Ok((*schema != Value::Bool(false)).then(|| ANY.to_owned()));
        };
        if depth == 0 || !self.spend() {
            return self.unless_lenient(at, "its references are nested too deep".to_owned());
        }
        let inside = |schema: &Value| self.expression(schema, at, depth - 1);
        if keywords.get("type").is_some_and(|it| !names(it, "string")) {
            return Ok(None);
        }
        let mut all = Vec::new();
        if let Some(pattern) = keywords.get("pattern").and_then(Value::as_str) {
            match found_in(pattern) {
                Ok(whole) => all.push(whole),
                Err(why) => all.extend(self.unless_lenient(at, why)?),
            }
        }
        let count = |name: &str| keywords.get(name).and_then(Value::as_u64);
        let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
        if least > 0 || most.is_some() {
            let most = most.map_or_else(String::new, |most| most.to_string());
            all.push(format!("/(.|\\n){{{least},{most}}}/"));
        }
        let listed = keywords.get("enum").and_then(Value::as_array);
        let constant = keywords.get("const").map(std::slice::from_ref);
        for values in listed.map(Vec::as_slice).into_iter().chain(constant) {
            let texts = values.iter().filter_map(Value::as_str).map(quoted);
            all.push(match any_of(texts.collect()) {
                Some(texts) => texts,
                None => return Ok(None),
            });
        }
        if let Some(Value::Array(schemas)) = keywords.get("anyOf") {
            let ways = schemas.iter().filter_map(|it| inside(it).transpose());
            match any_of(ways.collect::<Result<_, _>>()?) {
                Some(ways) => all.push(ways),
                None => return Ok(None),
            }
        }
        let applied = keywords.get("allOf").and_then(Value::as_array);
        for schema in applied.into_iter().flatten().chain(self.target(schema)) {
            match inside(schema)? {
                Some(text) => all.push(text),
                None => return Ok(None),
            }
        }
        all.retain(|text| text != ANY);
        Ok(Some(match all.is_empty() {
            true => ANY.to_owned(),
            false => format!("({})", all.join(" & ")),
        }))
    }

    fn admits_within(&self, schema: &Value, value: &Value, depth: usize) -> bool {
        let Value::Object(keywords) = schema else {
            return *schema != Value::Bool(false);
        };
        if depth == 0 || !self.spend() {
            return false;
        }
        let inside = |schema: &Value| self.admits_within(schema, value, depth - 1);
        let own = match value {
            Value::Null => "null",
            _ => "boolean",
        };
        let list = |name: &str| keywords.get(name).and_then(Value::as_array);
        keywords.get("type").is_none_or(|it| names(it, own))
            && list("enum").is_none_or(|it| it.contains(value))
            && keywords.get("const").is_none_or(|it| it == value)
            && list("anyOf").is_none_or(|it| it.iter().any(inside))
            && list("allOf").is_none_or(|it| it.iter().all(inside))
            && self.target(schema).is_none_or(inside)
    }

    fn target(&self, schema: &Value) -> Option<&'a Value> {
        self.root
            .pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    fn spend(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }

    /// Any text, if the schema is lenient.
    fn unless_lenient(&self, at: &str, why: String) -> Result<Option<String>, GrammarError> {
        match self.is_lenient {
            true => Ok(Some(ANY.to_owned())),
            false => Err(wrong(at, &why)),
        }
    }
}

/// True if the keyword `type` names this type.
fn names(types: &Value, name: &str) -> bool {
    match types {
        Value::Array(types) => types.iter().any(|it| it == name),
        own => own == name,
    }
}

fn any_of(texts: Vec<String>) -> Option<String> {
    (!texts.is_empty()).then(|| format!("({})", texts.join(" | ")))
}

/// Terminal of the texts in which an expression of the engine is found.
fn found_in(pattern: &str) -> Result<String, String> {
    let ways: Result<Vec<String>, String> = alternatives(pattern).into_iter().map(whole).collect();
    any_of(ways?).ok_or_else(|| "an empty expression".to_owned())
}

/// Terminal of one alternative. Anchors are at its ends.
fn whole(alternative: &str) -> Result<String, String> {
    let begun = alternative.strip_prefix('^');
    let inside = begun.unwrap_or(alternative);
    let is_anchor =
        outside_classes(inside).last() == Some((inside.len().saturating_sub(1), '$', 0));
    let ended = inside.strip_suffix('$').filter(|_| is_anchor);
    let inside = ended.unwrap_or(inside);
    if has_anchor(inside) {
        return Err("the expression cannot be followed: an anchor within it".to_owned());
    }
    let any = |is_bound: bool| if is_bound { "" } else { "(.|\\n)*" };
    let (before, behind) = (any(begun.is_some()), any(ended.is_some()));
    Ok(format!("/{before}(?:{}){behind}/", in_slashes(inside)))
}

/// Parts of an expression between bars outside groups.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut parts, mut begun) = (Vec::new(), 0);
    for (at, c, depth) in outside_classes(pattern) {
        if c == '|' && depth == 0 {
            parts.push(&pattern[begun..at]);
            begun = at + 1;
        }
    }
    parts.push(&pattern[begun..]);
    parts
}

fn has_anchor(pattern: &str) -> bool {
    outside_classes(pattern).any(|(_, c, _)| matches!(c, '^' | '$'))
}

/// Characters of an expression with their places and the number of groups around them, without escapes and classes.
fn outside_classes(pattern: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut groups, mut classes, mut is_escaped) = (0_usize, 0_usize, false);
    pattern.char_indices().filter_map(move |(at, c)| {
        let was_escaped = is_escaped;
        is_escaped = c == '\\' && !was_escaped;
        if was_escaped || is_escaped {
            return None;
        }
        match c {
            '[' => classes += 1,
            ']' => classes = classes.saturating_sub(1),
            _ if classes > 0 => {}
            '(' => groups += 1,
            ')' => groups = groups.saturating_sub(1),
            _ => return Some((at, c, groups)),
        }
        None
    })
}

/// Regular expression between slashes.
fn in_slashes(pattern: &str) -> String {
    let (mut out, mut is_escaped) = (String::with_capacity(pattern.len()), false);
    for c in pattern.chars() {
        match c {
            '/' if !is_escaped => out.push_str("\\/"),
            '\n' if is_escaped => out.push('n'),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_found_anywhere_unless_it_has_anchors() {
        for (pattern, whole) in [
            ("^a/b$", r"(/(?:a\/b)/)"),
            ("a", r"(/(.|\n)*(?:a)(.|\n)*/)"),
            ("^a|b$", r"(/(?:a)(.|\n)*/ | /(.|\n)*(?:b)/)"),
            (r"^(?:a|b)\$$", r"(/(?:(?:a|b)\$)/)"),
            (r"[|$^[(]]\|", r"(/(.|\n)*(?:[|$^[(]]\|)(.|\n)*/)"),
            ("", r"(/(.|\n)*(?:)(.|\n)*/)"),
        ] {
            assert_eq!(found_in(pattern).as_deref(), Ok(whole), "{pattern}");
        }
        for pattern in ["(?:^a|b)", "a^b", "(?:a$)b"] {
            assert!(found_in(pattern).is_err(), "{pattern}");
        }
    }
}
