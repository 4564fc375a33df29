//! Texts of schemas as regular expressions: intersection of two schemas, and complement of a list.

use super::pattern;
use llguidance::derivre::{RegexAst, RegexBuilder};
use serde_json::Value;

/// Work limit of an emptiness test.
const FUEL: u64 = 5_000;

/// Maximum bytes of an examined expression.
const MAX_PATTERN_BYTES: usize = 500;

/// Maximum characters of each text, and of all, in an expression for all other texts.
const MAX_TEXT_CHARS: usize = 128;
const MAX_CHARS: usize = 2_000;

/// Expressions that every valid text matches, under every validator. Keywords that only some check, as a format, do not
/// count.
pub(super) fn expressions(schema: &Value) -> Vec<RegexAst> {
    let mut out = Vec::new();
    let pattern = schema.get("pattern").and_then(Value::as_str);
    let pattern = pattern.filter(|it| it.len() <= MAX_PATTERN_BYTES);
    if let Some(Ok(pattern)) = pattern.map(pattern::widest) {
        out.push(RegexAst::SearchRegex(pattern));
    }
    let length = |name: &str| schema.get(name).and_then(Value::as_u64);
    let (least, most) = (length("minLength"), length("maxLength"));
    if least.is_some() || most.is_some() {
        let most = most.map_or_else(String::new, |most| most.to_string());
        let least = least.unwrap_or(0);
        out.push(RegexAst::Regex(format!("(?s:.{{{least},{most}}})")));
    }
    out
}

/// True if no text matches all of them.
pub(super) fn have_nothing_in_common(expressions: Vec<RegexAst>) -> bool {
    if expressions.len() < 2 {
        return false;
    }
    let mut builder = RegexBuilder::new();
    let all = builder.mk(&RegexAst::And(expressions));
    let regex = all.and_then(|all| builder.to_regex_limited(all, FUEL));
    regex.is_ok_and(|mut regex| regex.always_empty())
}

/// True if all engines find the expression in the same texts. `false`: undecided.
pub(super) fn is_read_alike(pattern: &str) -> bool {
    // Text after the match has no effect, unless the expression requires the end.
    let found = pattern.strip_suffix(".*");
    let pattern = found.filter(|it| !it.ends_with('\\')).unwrap_or(pattern);
    let (Ok(all), Ok(any)) = (pattern::translated(pattern), pattern::widest(pattern)) else {
        return false;
    };
    let differ = vec![
        RegexAst::SearchRegex(any),
        RegexAst::Not(Box::new(RegexAst::SearchRegex(all))),
    ];
    have_nothing_in_common(differ)
}

/// An expression of the engine for all texts but these; `None`: there are too many.
pub(super) fn all_but(texts: &[&str]) -> Option<String> {
    let chars: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    let sum: usize = chars.iter().map(Vec::len).sum();
    let is_short = chars.iter().all(|text| text.len() <= MAX_TEXT_CHARS);
    let rests: Vec<&[char]> = chars.iter().map(Vec::as_slice).collect();
    (is_short && sum <= MAX_CHARS).then(|| format!("^{}$", other_than(&rests)))
}

fn other_than(texts: &[&[char]]) -> String {
    const ANY: &str = r"[\x00-\x{10FFFF}]";
    let mut firsts: Vec<char> = texts.iter().filter_map(|it| it.first().copied()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    if firsts.is_empty() {
        return format!("{ANY}+");
    }
    let written: Vec<String> = firsts.iter().map(|c| pattern::written(*c)).collect();
    let mut ways = vec![format!("[^{}{}]{ANY}*", pattern::NUL, written.concat())];
    for (first, written) in firsts.iter().zip(written) {
        let of_first = texts.iter().filter(|it| it.first() == Some(first));
        let rests: Vec<&[char]> = of_first.map(|it| &it[1..]).collect();
        ways.push(format!("{written}{}", other_than(&rests)));
    }
    let may_end = if texts.iter().any(|it| it.is_empty()) {
        ""
    } else {
        "?"
    };
    format!("(?:{}){may_end}", ways.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(pattern: &str, text: &str) -> bool {
        let mut builder = RegexBuilder::new();
        let regex = builder.mk_regex_for_serach(pattern).unwrap();
        builder.to_regex(regex).is_match(text)
    }

    #[test]
    fn all_but_some_texts_are_all_the_others() {
        let pattern = all_but(&["", "a", "abc", "x-]^", "é"]).unwrap();
        for text in ["", "a", "abc", "x-]^", "é"] {
            assert!(!matches(&pattern, text), "{text:?}");
        }
        for text in ["b", "ab", "abcd", "abd", "x", "x-]", "e", "\n", "a\n", "😀"] {
            assert!(matches(&pattern, text), "{text:?}");
        }
        let long = "a".repeat(MAX_TEXT_CHARS + 1);
        assert_eq!(all_but(&[&long]), None);
    }

    #[test]
    fn expressions_are_read_alike_where_no_word_of_theirs_means_two_things() {
        for pattern in ["^x-", "a.*", "^[.]", "^a[^.]+$", "^[a-z]{2}"] {
            assert!(is_read_alike(pattern), "{pattern}");
        }
        for pattern in ["^a$", "^\\d", "^.$", "\\W"] {
            assert!(!is_read_alike(pattern), "{pattern}");
        }
    }

    #[test]
    fn texts_are_in_common_where_some_reader_finds_one() {
        let nothing = |one: &Value, other: &Value| {
            have_nothing_in_common([expressions(one), expressions(other)].concat())
        };
        let digits = json!({"pattern": "^\\d+$"});
        assert!(nothing(
            &digits,
            &json!({"pattern": "^[a-z]*$", "minLength": 1})
        ));
        assert!(nothing(&digits, &json!({"maxLength": 0})));
        assert!(!nothing(&digits, &json!({"pattern": "^1"})));
        // A digit to Python, and a line end that Python ignores.
        assert!(!nothing(&digits, &json!({"pattern": "٣"})));
        assert!(!nothing(&digits, &json!({"pattern": "\\n"})));
        assert!(!nothing(
            &json!({"format": "date"}),
            &json!({"format": "time"})
        ));
    }
}
