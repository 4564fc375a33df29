//! Schemas inside a Lark text, after `%json`: translated like a separate schema. [`parameters`] follow
//! `%parameters`, and a [`dict`] follows `%dict`.

use crate::dict::{self, DICT};
use crate::error::GrammarError;
use crate::parameters::{self, PARAMETERS};
use crate::rules::Rules;
use crate::schema;
use serde_json::{Deserializer, Value, json};

/// llguidance's own settings in a schema.
pub(crate) const SETTINGS: &str = "x-guidance";

pub(crate) const JSON: &str = "%json";

/// Characters of a string that may be escaped. Each has a single escape, so that a name written otherwise is another
/// name.
pub(crate) const ESCAPES: &str = "nrbtf\\\"";

type Expansion = fn(&Value, &mut Rules) -> Result<String, GrammarError>;

/// Keywords of tool calls, and what is written in place of each and the JSON behind it.
const EXPANSIONS: [(&str, Expansion); 2] =
    [(PARAMETERS, parameters::expanded), (DICT, dict::expanded)];

/// Translates the schemas in a text.
///
/// # Errors
/// If a schema is not supported.
pub(crate) fn followed(text: &str) -> Result<String, GrammarError> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let mut rules = Rules::default();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => line(rest),
            '/' if rest.starts_with("//") => line(rest),
            '"' | '/' => quoted(rest, first),
            '<' => marked(rest),
            '%' if rest.starts_with(JSON) => {
                rest = &rest[JSON.len()..];
                let (schema, length) = inline(rest, JSON)?;
                out += &format!("{JSON} {} ", with_own_settings(&schema)?);
                rest = &rest[length..];
                continue;
            }
            other => {
                let mut expansions = EXPANSIONS.iter();
                if let Some((keyword, expanded)) = expansions.find(|it| rest.starts_with(it.0)) {
                    rest = &rest[keyword.len()..];
                    let (given, length) = inline(rest, keyword)?;
                    out += &expanded(&given, &mut rules)?;
                    rest = &rest[length..];
                    continue;
                }
                other.len_utf8()
            }
        };
        out += &rest[..length];
        rest = &rest[length..];
    }
    Ok(out + &rules.into_lines())
}

/// Length of a comment.
fn line(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Length of a string or an expression.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = true;
    for (at, c) in text.char_indices() {
        if c == mark && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// Length of a control token, or of a single bracket.
fn marked(text: &str) -> usize {
    let end = text[1..].find(|c: char| c.is_whitespace() || c == '<' || c == '>');
    match end.map(|end| end + 1) {
        Some(end) if text[end..].starts_with('>') => end + 1,
        _ => 1,
    }
}

/// The JSON after a keyword, and its length.
fn inline(text: &str, keyword: &str) -> Result<(Value, usize), GrammarError> {
    let mut values = Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(given)) => Ok((given, values.byte_offset())),
        Some(Err(error)) => Err(GrammarError::new(error)),
        None => {
            let why = format!("a schema is missing behind {keyword}");
            Err(GrammarError::new(why))
        }
    }
}

/// A schema in the compiler's dialect, with the settings in it.
fn with_own_settings(given: &Value) -> Result<Value, GrammarError> {
    let settings = given.get(SETTINGS).cloned().unwrap_or_else(|| json!({}));
    with_settings(given, settings)
}

/// A schema in the compiler's dialect, with its settings.
pub(crate) fn with_settings(given: &Value, mut settings: Value) -> Result<Value, GrammarError> {
    let is_lenient = settings["lenient"] == Value::Bool(true);
    let mut followed = schema::followed(given, is_lenient)?;
    if followed == Value::Bool(true) {
        followed = json!({});
    }
    if let (Some(keywords), Some(all)) = (followed.as_object_mut(), settings.as_object_mut()) {
        all.entry("json_allowed_escapes")
            .or_insert_with(|| json!(ESCAPES));
        keywords.insert(SETTINGS.to_owned(), settings);
    }
    Ok(followed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_found_where_they_stand_and_nowhere_else() {
        let same = [
            "start: \"%json {\\\"contains\\\": {}}\" # %json {\"contains\": {}}\n",
            "start: /%json {\"contains\": {}}/ <[5]> // %json {\"contains\": {}}\nA: /[\\/]/ \"\\\\\" /a/",
            "start: <|\"|> \"a\" <",
        ];
        for text in same {
            assert_eq!(followed(text).unwrap(), text);
        }
        let text = "start: \"\\\"\" %json {\"format\": \"int32\", \"minimum\": 1} A\nA: %json true";
        let settings = json!({"json_allowed_escapes": ESCAPES});
        let first =
            json!({"minimum": 1.0, "maximum": 9_223_372_036_854_774_784.0, SETTINGS: settings});
        let second = json!({SETTINGS: settings});
        let expected = format!("start: \"\\\"\" %json {first}  A\nA: %json {second} ");
        assert_eq!(followed(text).unwrap(), expected);
        let refused = followed("start: %json {\"contains\": {}}").unwrap_err();
        assert!(refused.to_string().contains("contains"), "{refused}");
    }
}
