//! Reading a JSON object field by field, noting everything that is wrong with it.
//!
//! A value is never echoed: it may be somebody's prompt. A field that nobody read is unknown,
//! and unknown fields are refused, so nothing a client asks for is silently ignored.

use serde::Serialize;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    pub field: String,
    /// What kind of rule was broken.
    pub constraint: Constraint,
    /// The rule, in words.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    Required,
    Type,
    Range,
    Length,
    /// There is no such field.
    Unknown,
    /// The field exists elsewhere, but not here.
    Unsupported,
    /// Two fields contradict each other.
    Conflict,
    /// The body as a whole is not JSON, or not an object.
    Json,
}

impl FieldError {
    pub fn new(field: &str, constraint: Constraint, message: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            constraint,
            message: message.into(),
        }
    }
}

#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    errors: Vec<FieldError>,
}

impl Fields {
    #[must_use]
    pub fn new(map: Map<String, Value>) -> Self {
        Self {
            map,
            errors: Vec::new(),
        }
    }

    /// Removes a field; `null` is the same as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub fn error(&mut self, field: &str, constraint: Constraint, message: impl Into<String>) {
        self.errors
            .push(FieldError::new(field, constraint, message));
    }

    #[must_use]
    pub fn has_error_about(&self, name: &str) -> bool {
        self.errors
            .iter()
            .any(|error| error.field.starts_with(name))
    }

    /// Notes the absence of a field, unless something else is wrong with it already.
    pub fn required<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.has_error_about(name) {
            self.error(name, Constraint::Required, "is required");
        }
        value
    }

    pub fn boolean(&mut self, name: &str) -> Option<bool> {
        let value = self.take(name)?;
        self.typed(name, value.as_bool(), "true or false")
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.take(name)?;
        let number = self.typed(name, value.as_f64(), "a number")?;
        self.in_range(name, number, &range)
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.take(name)?;
        // 1.0 is an integer to JSON and to most people.
        let whole = value.as_u64().or_else(|| {
            value
                .as_f64()
                .filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n))
                .map(|n| n as u64)
        });
        if whole.is_none() && value.as_f64().is_some_and(|n| n < 0.0 && n.fract() == 0.0) {
            let message = format!("must be from {} to {}", range.start(), range.end());
            self.error(name, Constraint::Range, message);
            return None;
        }
        let number = self.typed(name, whole, "an integer")?;
        self.in_range(name, number, &range)
    }

    /// A text with a length in characters.
    pub fn text(&mut self, name: &str, chars: RangeInclusive<usize>) -> Option<String> {
        let value = self.take(name)?;
        let text = match value {
            Value::String(text) => Some(text),
            _ => None,
        };
        let text = self.typed(name, text, "a string")?;
        self.of_length(name, text, &chars)
    }

    pub fn of_length(
        &mut self,
        name: &str,
        text: String,
        chars: &RangeInclusive<usize>,
    ) -> Option<String> {
        if chars.contains(&text.chars().count()) {
            return Some(text);
        }
        let message = format!("must have {} to {} characters", chars.start(), chars.end());
        self.error(name, Constraint::Length, message);
        None
    }

    /// One of a few words.
    pub fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.take(name)?;
        let found = words.iter().find(|(word, _)| value.as_str() == Some(word));
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.error(
                name,
                Constraint::Range,
                format!("must be one of {}", words.join(", ")),
            );
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Accepts a field only where it asks for what happens anyway.
    pub fn only(&mut self, name: &str, harmless: impl FnOnce(&Value) -> bool, message: &str) {
        if let Some(value) = self.take(name)
            && !harmless(&value)
        {
            self.error(name, Constraint::Unsupported, message);
        }
    }

    /// Notes every field that nobody took. Those that are known elsewhere may be `null`, which
    /// asks for nothing.
    pub fn refuse_rest(&mut self, known_elsewhere: &[&str]) {
        for (name, value) in std::mem::take(&mut self.map) {
            // A name is the client's own text, and could be as long as the body.
            let field: String = name.chars().take(64).collect();
            if !known_elsewhere.contains(&name.as_str()) {
                self.error(&field, Constraint::Unknown, "is no field of this request");
            } else if !value.is_null() {
                self.error(
                    &field,
                    Constraint::Unsupported,
                    "is not supported by this worker",
                );
            }
        }
    }

    /// # Errors
    /// Everything that was noted.
    pub fn finish(self) -> Result<(), Vec<FieldError>> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(self.errors)
        }
    }

    fn typed<T>(&mut self, name: &str, value: Option<T>, what: &str) -> Option<T> {
        if value.is_none() {
            self.error(name, Constraint::Type, format!("must be {what}"));
        }
        value
    }

    fn in_range<T: PartialOrd + std::fmt::Display>(
        &mut self,
        name: &str,
        number: T,
        range: &RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&number) {
            return Some(number);
        }
        let message = format!("must be from {} to {}", range.start(), range.end());
        self.error(name, Constraint::Range, message);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        match value {
            Value::Object(map) => Fields::new(map),
            _ => unreachable!("tests write objects"),
        }
    }

    #[test]
    fn every_mistake_is_noted_and_no_value_is_echoed() {
        let mut fields = fields(json!({
            "a": "secret", "b": 3, "c": -1, "d": 1.5, "secret-field": 1, "e": "xyz", "f": null
        }));
        assert_eq!(fields.number("a", 0.0..=1.0), None);
        assert_eq!(fields.number("b", 0.0..=2.0), None);
        assert_eq!(fields.integer("c", 0..=9), None);
        assert_eq!(fields.integer("d", 0..=9), None);
        assert_eq!(fields.text("e", 1..=2), None);
        let f = fields.boolean("f");
        assert_eq!(fields.required("f", f), None);
        fields.refuse_rest(&[]);
        let errors = fields.finish().unwrap_err();
        let found: Vec<_> = errors
            .iter()
            .map(|error| (error.field.as_str(), error.constraint))
            .collect();
        assert_eq!(
            found,
            [
                ("a", Constraint::Type),
                ("b", Constraint::Range),
                ("c", Constraint::Range),
                ("d", Constraint::Type),
                ("e", Constraint::Length),
                ("f", Constraint::Required),
                ("secret-field", Constraint::Unknown),
            ]
        );
        assert!(errors.iter().all(|error| !error.message.contains("secret")));
    }

    #[test]
    fn whole_floats_are_integers_and_u64_is_kept_exactly() {
        let mut fields = fields(json!({"a": 2.0, "b": u64::MAX}));
        assert_eq!(fields.integer("a", 0..=9), Some(2));
        assert_eq!(fields.integer("b", 0..=u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn a_wrong_value_is_not_also_missing() {
        let mut fields = fields(json!({"a": 1}));
        let a = fields.text("a", 1..=2);
        assert_eq!(fields.required("a", a), None);
        assert_eq!(fields.finish().unwrap_err().len(), 1);
    }
}
