//! Lists and mappings that a template prints, in the form of Python's `repr`.
//!
//! Strings inside them are quoted. Unprintable characters are written by their number:
//! <https://docs.python.org/3/library/stdtypes.html#str.isprintable>.

use super::python_number;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};
use regex::Regex;
use std::fmt::Write as _;
use std::sync::LazyLock;

#[expect(clippy::expect_used, reason = "a constant expression")]
static UNPRINTABLE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}&&[^ ]]").expect("it is a class"));

/// `repr` of a list or mapping. `None` for any other value.
pub(super) fn of_container(value: &Value) -> Result<Option<String>, Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map) || value.is_tuple() {
        return Ok(None);
    }
    let mut out = String::new();
    write(&mut out, value)?;
    Ok(Some(out))
}

fn write(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq if !value.is_tuple() => {
            out.push('[');
            for (before, item) in value.try_iter()?.enumerate() {
                out.push_str(if before > 0 { ", " } else { "" });
                write(out, &item)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (before, key) in value.try_iter()?.enumerate() {
                out.push_str(if before > 0 { ", " } else { "" });
                write(out, &key)?;
                out.push_str(": ");
                write(out, &value.get_item(&key)?)?;
            }
            out.push('}');
        }
        _ => match python_number::of_float(value) {
            Some(float) => out.push_str(&float),
            None => out.push_str(&value.to_string()),
        },
    }
    Ok(())
}

fn write_text(out: &mut String, text: &str) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let seen = !UNPRINTABLE.is_match(text);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if seen || !UNPRINTABLE.is_match(c.encode_utf8(&mut [0; 4])) => out.push(c),
            c => {
                // Writing to a string does not fail.
                let _ = match u32::from(c) {
                    number @ ..0x100 => write!(out, "\\x{number:02x}"),
                    number @ ..0x1_0000 => write!(out, "\\u{number:04x}"),
                    number => write!(out, "\\U{number:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `repr` in Python 3.
    #[test]
    fn lists_and_mappings_are_python_s() {
        for (json, repr) in [
            (r#"[]"#, "[]"),
            (
                r#"{"a": {}, "b": [1, 2.0, 1e-7, 1e16, true, null]}"#,
                "{'a': {}, 'b': [1, 2.0, 1e-07, 1e+16, True, None]}",
            ),
            (
                r#"["it's", "\"", "'\"", "\\ \n\r\t"]"#,
                r#"["it's", '"', '\'"', '\\ \n\r\t']"#,
            ),
            (
                "[\"\u{1f321}\u{fe0f} e\u{301} ß\"]",
                "['\u{1f321}\u{fe0f} e\u{301} ß']",
            ),
            (
                "[\"\\u0000\u{7f}\u{85}\u{a0}\u{ad}\u{200b}\u{2028}\u{3000}\u{e000}\u{f0000}\"]",
                r"['\x00\x7f\x85\xa0\xad\u200b\u2028\u3000\ue000\U000f0000']",
            ),
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(of_container(&value).unwrap().as_deref(), Some(repr));
        }
        for other in [Value::from("a"), Value::from(1.5), Value::from(())] {
            assert_eq!(of_container(&other).unwrap(), None, "{other}");
        }
    }
}
