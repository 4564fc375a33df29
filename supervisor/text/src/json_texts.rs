//! Normalization of JSON that a client sends for a template: tools, and arguments of tool calls.
//!
//! The JSON stays text here, because a tree of values would take many times its memory. The interpreter parses it
//! later. The normalized text is one object without white space between its parts, nested no deeper than the
//! interpreter supports. Each character of its strings is written as itself if JSON allows. Numbers are unchanged,
//! except `-0`: Python reads it as the integer 0.

use super::python_number;
use super::tools::json::{Escape, Json, Number, Place};

/// Normalizes a JSON object, with `change` applied to each string, keys included. `None` if the text is not a JSON
/// object, is nested too deeply, or has unpaired surrogates.
pub fn map_object(text: &str, change: &mut dyn FnMut(&str) -> String) -> Option<String> {
    let is_object = text.trim_start().starts_with('{');
    is_object.then(|| map(text, change)).flatten()
}

/// Normalizes any JSON value as [`map_object`] does an object.
pub(super) fn map(text: &str, change: &mut dyn FnMut(&str) -> String) -> Option<String> {
    let (mut json, mut out) = (Json::default(), String::with_capacity(text.len()));
    let mut opened = 0;
    for (at, c) in text.char_indices() {
        let was_in_text = matches!(json.place(), Place::Text { .. });
        let was_zero = json.place() == Place::Number(Number::Zero);
        json.push(c).ok()?;
        let ends_zero = was_zero && !matches!(json.place(), Place::Number(_));
        if ends_zero && out.ends_with("-0") {
            out.truncate(out.len() - 2);
            out.push('0');
        }
        let is_in_text = matches!(json.place(), Place::Text { .. });
        match (was_in_text, is_in_text) {
            (false, true) => opened = at,
            (true, false) => {
                let inside: String = serde_json::from_str(&text[opened..=at]).ok()?;
                out.push_str(&serde_json::to_string(&change(&inside)).ok()?);
            }
            (false, false) if !c.is_ascii_whitespace() => out.push(c),
            (true, true) | (false, false) => {}
        }
    }
    (json.place() == Place::End).then_some(out)
}

/// Normalizes the arguments of a tool call for a template. An empty text becomes an object without members, as in other
/// servers. A truncated text (`length` ends an answer within a call) becomes an object of its complete parts. `None` if
/// the text cannot be completed to an object.
pub fn arguments(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("{}".to_owned());
    }
    let mut same = |text: &str| text.to_owned();
    map_object(text, &mut same).or_else(|| {
        let ended = ended(text)?;
        ended.iter().find_map(|text| map_object(text, &mut same))
    })
}

/// Two completions of a truncated object: after the text so far, and after the last complete value.
fn ended(text: &str) -> Option<[String; 2]> {
    let mut json = Json::default();
    let (mut whole, mut escape_began) = (String::new(), text.len());
    for (at, c) in text.char_indices() {
        json.push(c).ok()?;
        let behind = at + c.len_utf8();
        match json.place() {
            Place::Separator
            | Place::Key { may_close: true }
            | Place::Value { may_close: true } => {
                whole = format!("{}{}", &text[..behind], json.closing());
            }
            // Only the following character shows the end of a number.
            Place::Key { may_close: false } | Place::Value { may_close: false } if c == ',' => {
                whole = format!("{}{}", &text[..at], json.closing());
            }
            Place::Text {
                escape: Escape::Begun,
                ..
            } => escape_began = at,
            _ => {}
        }
    }
    let closing = json.closing();
    let within = match json.place() {
        Place::Text {
            escape: Escape::None,
            ..
        } => format!("{text}\"{closing}"),
        Place::Text { .. } => format!("{}\"{closing}", &text[..escape_began]),
        _ => format!("{text}{closing}"),
    };
    Some([within, whole])
}

/// True for one JSON value within the bounds of [`map_object`].
#[must_use]
pub fn is_whole(text: &str) -> bool {
    map(text, &mut |_| String::new()).is_some()
}

/// True if a template receives each number as in Python: integers fit 64 bits, floats are finite.
#[must_use]
pub fn keeps_numbers(text: &str) -> bool {
    let (mut json, mut begun) = (Json::default(), None);
    for (at, c) in text.char_indices() {
        if json.push(c).is_err() {
            return false;
        }
        let is_number = matches!(json.place(), Place::Number(_));
        match begun {
            None if is_number => begun = Some(at),
            Some(start) if !is_number => {
                if !python_number::is_kept(&text[start..at]) {
                    return false;
                }
                begun = None;
            }
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(text: &str) -> Option<String> {
        map_object(text, &mut str::to_owned)
    }

    #[test]
    fn an_object_is_written_shortly_and_its_numbers_as_they_were() {
        let text = " {\"a\\u0062\" : [ 1.0, \"\\u003c\\n\\\"é\", 1e2 ],\n\"\": {} } ";
        let expected = "{\"ab\":[1.0,\"<\\n\\\"é\",1e2],\"\":{}}";
        assert_eq!(same(text).as_deref(), Some(expected));
    }

    #[test]
    fn each_text_is_changed_and_nothing_else() {
        let mut loud = |text: &str| text.to_uppercase();
        let changed = map_object("{\"a\": [true, \"b\"]}", &mut loud);
        assert_eq!(changed.as_deref(), Some("{\"A\":[true,\"B\"]}"));
    }

    #[test]
    fn numbers_that_a_template_would_get_otherwise_are_found_wherever_they_are() {
        assert!(keeps_numbers("{\"1e999\":[1,-0.5,{\"a\":1e22},\"1e999\"]}"));
        for wrong in ["{\"a\":1e999}", "{\"a\":[1, 123456789012345678901234 ]}"] {
            assert!(!keeps_numbers(wrong), "{wrong}");
        }
        let zeros = same("{\"a\":[-0,-0.0,1e-0,-0 ,10,0]}");
        assert_eq!(zeros.as_deref(), Some("{\"a\":[0,-0.0,1e-0,0,10,0]}"));
    }

    #[test]
    fn arguments_that_were_cut_end_behind_what_is_whole_of_them() {
        for (text, read) in [
            ("", "{}"),
            (" \n", "{}"),
            ("{", "{}"),
            ("{\"a\": 1}", "{\"a\":1}"),
            ("{\"a\": \"b", "{\"a\":\"b\"}"),
            ("{\"a\": \"b\\", "{\"a\":\"b\"}"),
            ("{\"a\": \"b\\u00e", "{\"a\":\"b\"}"),
            ("{\"a\": 12", "{\"a\":12}"),
            ("{\"a\": true, \"b\": 1.", "{\"a\":true}"),
            ("{\"a\": [1, {\"b\": nul", "{\"a\":[1,{}]}"),
            ("{\"a\": 1, \"b", "{\"a\":1}"),
            ("{\"a\": 1, \"b\":", "{\"a\":1}"),
            ("{\"a\": [[], ", "{\"a\":[[]]}"),
            ("{\"a\": 1, \"b\": \"\\ud83d", "{\"a\":1}"),
        ] {
            assert_eq!(arguments(text).as_deref(), Some(read), "{text}");
        }
        for wrong in ["[]", "[", "1", "{a", "{} {", "{\"a\": }", "\"", "x"] {
            assert_eq!(arguments(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_object_or_nests_too_deep_is_none() {
        let deep =
            |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(same(&deep(60)).is_some());
        for wrong in [
            "",
            "[]",
            "1",
            "{",
            "{} {}",
            "{\"a\": \"\\ud800\"}",
            &deep(64),
        ] {
            assert_eq!(same(wrong), None, "{wrong}");
        }
    }
}
