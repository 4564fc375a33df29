//! Rules that a grammar's own keywords add to a Lark text, such as [`%parameters`](crate::parameters).

use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Rules by their definition: equal ones are written once.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    names: HashMap<String, String>,
    count: usize,
    lines: String,
}

impl Rules {
    /// Text for the end of the grammar.
    pub(crate) fn into_lines(self) -> String {
        self.lines
    }

    /// Bytes of all rules.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Name of the rule with this definition, which begins behind the name.
    pub(crate) fn named(&mut self, kind: &str, definition: String) -> String {
        if let Some(name) = self.names.get(&definition) {
            return name.clone();
        }
        let name = self.reserved(kind);
        self.define(&name, &definition);
        self.names.insert(definition, name.clone());
        name
    }

    /// Name of a rule that is defined later.
    pub(crate) fn reserved(&mut self, kind: &str) -> String {
        let name = format!("{kind}-{}", self.count);
        self.count += 1;
        name
    }

    pub(crate) fn define(&mut self, name: &str, definition: &str) {
        let _ = write!(self.lines, "\n{name}{definition}");
    }
}

/// String literal. Lark's are JSON strings, except that U+007F must be escaped.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
