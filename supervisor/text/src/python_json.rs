//! Filter `tojson` of chat templates.
//!
//! Templates are written for Python's `json.dumps(value, ensure_ascii=False)`: a space after `:` and `,`, and no HTML
//! escapes. Jinja's own filter escapes `<`. A model that was trained on one spelling answers worse to another.

use super::python_number;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write as _;

/// `tojson` with the options of transformers.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    // With indentation, a line break follows each item, and Python writes no space before it.
    let own = [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned);
    let [between, behind_key] = match separators {
        Some(given) => given.try_into().map_err(|_| {
            let message = "separators are two";
            Error::new(ErrorKind::InvalidOperation, message)
        })?,
        None => own,
    };
    let mut out = String::new();
    Writer {
        indent,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        between: &between,
        behind_key: &behind_key,
        sort_keys: sort_keys.unwrap_or(false),
        depth: 0,
        out: &mut out,
    }
    .value(value)?;
    Ok(Value::from_safe_string(out))
}

/// `tojson` without options.
pub(super) fn written(value: &Value) -> Result<Value, Error> {
    let options = std::iter::empty::<(&str, Value)>();
    tojson(value, options.collect())
}

struct Writer<'a> {
    indent: Option<usize>,
    /// Escape non-ASCII characters as UTF-16 units in hexadecimal.
    ensure_ascii: bool,
    between: &'a str,
    behind_key: &'a str,
    sort_keys: bool,
    depth: usize,
    out: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&match python_number::of_float(value) {
                Some(float) => float,
                None => value.to_string(),
            }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.map(value)?,
            kind => {
                let message = format!("{kind} has no JSON form");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &Value) -> Result<(), Error> {
        self.out.push('[');
        self.depth += 1;
        let mut items = 0;
        for item in list.try_iter()? {
            self.separator(items);
            self.value(&item)?;
            items += 1;
        }
        self.close(items, ']');
        Ok(())
    }

    fn map(&mut self, map: &Value) -> Result<(), Error> {
        self.out.push('{');
        self.depth += 1;
        let mut keys: Vec<(String, Value)> =
            map.try_iter()?.map(|key| (key.to_string(), key)).collect();
        if self.sort_keys {
            keys.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let items = keys.len();
        for (before, (text, key)) in keys.into_iter().enumerate() {
            self.separator(before);
            self.string(&text);
            self.out.push_str(self.behind_key);
            self.value(&map.get_item(&key)?)?;
        }
        self.close(items, '}');
        Ok(())
    }

    fn separator(&mut self, items_before: usize) {
        if items_before > 0 {
            self.out.push_str(self.between);
        }
        if self.indent.is_some() {
            self.new_line();
        }
    }

    fn close(&mut self, items: usize, bracket: char) {
        self.depth -= 1;
        if items > 0 && self.indent.is_some() {
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        self.out.push('\n');
        let spaces = self.depth * self.indent.unwrap_or(0);
        self.out.extend(std::iter::repeat_n(' ', spaces));
    }

    fn string(&mut self, text: &str) {
        // `serde_json` escapes the same characters as Python: quotes, backslashes and control characters.
        let text = serde_json::Value::from(text).to_string();
        if !self.ensure_ascii {
            return self.out.push_str(&text);
        }
        for c in text.chars() {
            match c.is_ascii() {
                true => self.out.push(c),
                false => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                    // Writing to a string does not fail.
                    let _ = write!(self.out, "\\u{unit:04x}");
                }),
            }
        }
    }
}
