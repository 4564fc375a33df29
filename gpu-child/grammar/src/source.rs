//! Translation of a grammar to llguidance's input.
//!
//! A JSON Schema is interpreted strictly ([`crate::schema`]): an unsupported keyword is refused by name. Between the
//! parts of a JSON text is nothing, one space, or one line end with an indentation of at most [`MAX_INDENT`]
//! characters: otherwise a model could emit white space for ever.

use crate::error::GrammarError;
use crate::gbnf::gbnf_to_lark;
use crate::inline::{self, ESCAPES, SETTINGS};
use crate::limits::{MAX_GRAMMAR_BYTES, MAX_LARK_ALTERNATIVES, MAX_LARK_LINES, MAX_LARK_NESTING};
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value};
use worker_orcd_ipc::Grammar;

const MAX_INDENT: usize = 32;

/// Translates a grammar.
///
/// # Errors
/// If it is too long, or malformed as far as this is visible before its compilation.
pub(crate) fn top_level(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let bytes = grammar.text_bytes();
    if bytes > MAX_GRAMMAR_BYTES {
        let why = format!("it has {bytes} bytes; at most {MAX_GRAMMAR_BYTES} are compiled");
        return Err(GrammarError::new(why));
    }
    match grammar {
        Grammar::JsonSchema(text) => schema(text),
        Grammar::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
        Grammar::Choice(texts) => choice(texts),
        Grammar::Lark(text) => {
            check_lark(text)?;
            Ok(TopLevelGrammar::from_lark(inline::followed(text)?))
        }
        // Its own limits bound the output.
        Grammar::Gbnf(text) => {
            let lark = gbnf_to_lark(text).map_err(GrammarError::new)?;
            Ok(TopLevelGrammar::from_lark(lark))
        }
    }
}

fn schema(text: &str) -> Result<TopLevelGrammar, GrammarError> {
    let schema = match serde_json::from_str(text) {
        Ok(Value::Object(keywords)) => Value::Object(keywords),
        // Every JSON text is valid.
        Ok(Value::Bool(true)) => Value::Object(Map::new()),
        Ok(Value::Bool(false)) => return Err(GrammarError::new("nothing is valid under it")),
        Ok(_) => return Err(GrammarError::new("a schema is an object, true or false")),
        Err(error) => return Err(GrammarError::new(error)),
    };
    if schema.get(SETTINGS).is_some() {
        let why = format!("{SETTINGS} is no keyword of JSON Schema");
        return Err(GrammarError::new(why));
    }
    let options = JsonCompileOptions {
        whitespace_pattern: Some(format!(r"\x20|\n[\x20\t]{{0,{MAX_INDENT}}}")),
        lenient: false,
        coerce_one_of: false,
        json_allowed_escapes: Some(ESCAPES.to_owned()),
        ..JsonCompileOptions::default()
    };
    let options = serde_json::to_value(options).map_err(GrammarError::new)?;
    let schema = inline::with_settings(&schema, options)?;
    Ok(TopLevelGrammar::from_json_schema(schema))
}

/// A choice as one terminal: this many alternatives would be too many rules.
fn choice(texts: &[String]) -> Result<TopLevelGrammar, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        let why = "a choice has at least one text, and none that is empty";
        return Err(GrammarError::new(why));
    }
    // A string of Lark is written as in JSON.
    let texts = texts
        .iter()
        .map(|text| Value::from(text.as_str()).to_string());
    let texts: Vec<String> = texts.collect();
    let lark = format!("start: CHOICE\nCHOICE: {}", texts.join(" | "));
    Ok(TopLevelGrammar::from_lark(lark))
}

/// Limits the constructs that Lark's parser handles by recursion.
fn check_lark(text: &str) -> Result<(), GrammarError> {
    let lines = text.lines().count();
    if lines > MAX_LARK_LINES {
        let why = format!("it has {lines} lines; at most {MAX_LARK_LINES} are compiled");
        return Err(GrammarError::new(why));
    }
    let alternatives = text.bytes().filter(|byte| *byte == b'|').count();
    if alternatives > MAX_LARK_ALTERNATIVES {
        let why = format!(
            "it has {alternatives} alternatives; at most {MAX_LARK_ALTERNATIVES} are compiled"
        );
        return Err(GrammarError::new(why));
    }
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            // An escaped character is not a bracket.
            b'\\' => drop(bytes.next()),
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            // A bracket in a string has no partner, and a rule ends with its line.
            b'\n' => depth = 0,
            _ => {}
        }
    }
    if deepest > MAX_LARK_NESTING {
        let why = format!("brackets nest {deepest} deep; at most {MAX_LARK_NESTING} are compiled");
        return Err(GrammarError::new(why));
    }
    Ok(())
}
