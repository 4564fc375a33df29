//! Constraint on an answer, as a grammar of the model's whole output.
//!
//! ```text
//! response_format, structured_outputs ─→ Structure::Answer ──┐
//! tools that must or may be called    ─→ Structure::Calls  ──┴─ reasoning before it ─→ Grammar
//! ```
//!
//! A model with reasoning writes it before the answer, and no constraint applies to it. So the answer's grammar follows
//! a grammar of reasoning, in llguidance's variant of Lark. A client's Lark grammar is the exception: it covers the
//! model's whole output, reasoning included.

use super::Tokenizer;
use super::json_texts;
use super::tools::lark::{Words, reasoning};
use super::tools::{CallRules, Parsing};
use serde_json::json;
use worker_orcd_ipc::Grammar;

/// White space between the parts of a JSON text. The same as the grammar compiler's for a schema that stands alone.
const WHITE_SPACE: &str = r"\x20|\n[\x20\t]{0,32}";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Structure {
    /// The answer matches this grammar.
    Answer(Grammar),
    /// The tool calls obey these rules.
    Calls(CallRules),
}

impl Structure {
    /// True if the answer must consist of tool calls.
    #[must_use]
    pub fn must_call(&self) -> bool {
        matches!(self, Self::Calls(rules) if rules.must_call)
    }

    /// Grammar of the model's whole output. `parsing`: the parsers of its text.
    #[must_use]
    pub fn grammar(self, parsing: &Parsing, tokenizer: &Tokenizer) -> Grammar {
        let words = Words::of(tokenizer);
        match (self, parsing.thinking) {
            (Self::Answer(grammar), None) => grammar,
            (Self::Answer(grammar), Some(_)) => {
                behind_thoughts(&grammar, parsing, &words).unwrap_or(grammar)
            }
            (Self::Calls(calls), _) => calls.grammar(parsing, &words),
        }
    }
}

/// Grammar with reasoning before the answer. `None` if the client wrote the whole grammar.
fn behind_thoughts(grammar: &Grammar, parsing: &Parsing, words: &Words<'_>) -> Option<Grammar> {
    let answer = match grammar {
        Grammar::JsonSchema(schema) => {
            let settings = json!({"whitespace_pattern": WHITE_SPACE});
            format!("answer: {}\n", json_rule(schema, &settings))
        }
        Grammar::Regex(regex) => format!("answer: ANSWER\nANSWER: /{}/\n", in_slashes(regex)),
        Grammar::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| Words::quoted(text)).collect();
            format!("answer: ANSWER\nANSWER: {}\n", texts.join("\n  | "))
        }
        Grammar::Lark(_) | Grammar::Gbnf(_) => return None,
    };
    let (before, rules) = reasoning(parsing.thinking, words);
    Some(Grammar::Lark(format!(
        "start: {before}answer\n{rules}{answer}"
    )))
}

/// Lark rule of a JSON text that matches this schema. `settings` are llguidance's and come after all keywords: the last
/// of two equal keys counts, so a client cannot override them.
pub(super) fn json_rule(schema: &str, settings: &serde_json::Value) -> String {
    let short = json_texts::map_object(schema, &mut str::to_owned);
    let schema = short.as_deref().unwrap_or(schema).trim_end();
    let keywords = schema.strip_suffix('}').unwrap_or(schema).trim_end();
    let comma = if keywords.ends_with('{') { "" } else { "," };
    format!("%json {keywords}{comma}\"x-guidance\":{settings}}}")
}

/// Regular expression between slashes, with unescaped slashes and line ends escaped.
fn in_slashes(regex: &str) -> String {
    let (mut out, mut is_escaped) = (String::with_capacity(regex.len()), false);
    for c in regex.chars() {
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
    fn slashes_and_lines_end_no_regular_expression() {
        assert_eq!(in_slashes(r"a/b\/c\\/"), r"a\/b\/c\\\/");
        assert_eq!(in_slashes("a\nb\\\nc"), r"a\nb\nc");
    }

    #[test]
    fn settings_stand_behind_every_keyword_and_win() {
        let settings = json!({"lenient": true});
        let rule = |schema: &str| json_rule(schema, &settings);
        assert_eq!(rule("{ }"), "%json {\"x-guidance\":{\"lenient\":true}}");
        let typed = rule("{\"type\":\"object\",\"x-guidance\":{\"lenient\":false}}");
        let keywords: serde_json::Value = serde_json::from_str(&typed["%json ".len()..]).unwrap();
        assert_eq!(keywords, json!({"type": "object", "x-guidance": settings}));
    }
}
