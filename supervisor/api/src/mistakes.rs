//! Mistakes of a request: the first ones in full, the others counted.
//!
//! A body of four megabytes could contain two million mistakes. The first few help the client; a list of all would be
//! fifty times as long as the body.

use schemars::JsonSchema;
use serde::Serialize;

/// Largest number of listed mistakes.
pub const LISTED: usize = 32;

/// Longest field name in an error, in characters. Names are a client's text and may be as long as the body.
const NAME_CHARS: usize = 64;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldError {
    pub field: String,
    /// Kind of the violated rule.
    pub constraint: Constraint,
    /// The rule as text.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    Required,
    Type,
    Range,
    Length,
    /// The field does not exist.
    Unknown,
    /// The field exists in other APIs and is not supported here.
    Unsupported,
    /// Two fields contradict each other.
    Conflict,
    /// Duplicate field.
    Duplicate,
    /// The body as a whole is not JSON, or not an object.
    Json,
}

impl FieldError {
    pub fn new(
        field: impl Into<String>,
        constraint: Constraint,
        message: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            constraint,
            message: message.into(),
        }
    }
}

/// Name cut to the longest length in an error.
#[must_use]
pub fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(NAME_CHARS);
    &name[..end.map_or(name.len(), |(end, _)| end)]
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistakes {
    listed: Vec<FieldError>,
    more: usize,
    /// Number of mistakes that may still be listed.
    room: usize,
}

impl Default for Mistakes {
    fn default() -> Self {
        Self {
            listed: Vec::new(),
            more: 0,
            room: LISTED,
        }
    }
}

impl Mistakes {
    /// Notes a mistake. `make` is called only if it will be listed.
    pub fn note(&mut self, make: impl FnOnce() -> FieldError) {
        if self.listed.len() < self.room {
            self.listed.push(make());
        } else {
            self.more += 1;
        }
    }

    /// Empty list with the remaining room of this one, for [`Mistakes::extend`].
    #[must_use]
    pub fn inside(&self) -> Self {
        Self {
            room: self.room - self.listed.len(),
            ..Self::default()
        }
    }

    /// [`Mistakes::inside`] with one mistake.
    #[must_use]
    pub fn only(&self, field: &str, constraint: Constraint, message: impl Into<String>) -> Self {
        let mut only = self.inside();
        only.note(|| FieldError::new(field, constraint, message));
        only
    }

    /// Adds all mistakes of a nested value. `place`: path of that value.
    pub fn extend(&mut self, place: impl FnOnce() -> String, others: Self) {
        self.more += others.more;
        if others.listed.is_empty() {
            return;
        }
        let place = place();
        for error in others.listed {
            let field = format!("{place}{}", error.field);
            self.note(|| FieldError { field, ..error });
        }
    }

    /// Renames the fields.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(&str) -> String) -> Self {
        for error in &mut self.listed {
            error.field = name(&error.field);
        }
        self
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.listed.len() + self.more
    }

    /// Listed mistakes, at most [`LISTED`].
    #[must_use]
    pub fn listed(&self) -> &[FieldError] {
        &self.listed
    }

    /// Number of mistakes that are not listed.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }
}

impl From<FieldError> for Mistakes {
    fn from(only: FieldError) -> Self {
        Self {
            listed: vec![only],
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mistakes_are_listed_and_the_rest_is_counted() {
        let mut mistakes = Mistakes::default();
        for number in 0..100 {
            mistakes.note(|| {
                assert!(number < LISTED, "made without a reader");
                FieldError::new(number.to_string(), Constraint::Type, "is wrong")
            });
        }
        assert_eq!((mistakes.listed().len(), mistakes.more()), (32, 68));
        let mut all = Mistakes::from(FieldError::new("a", Constraint::Type, "is wrong"));
        all.extend(|| "b.".to_owned(), mistakes);
        assert_eq!((all.listed().len(), all.count()), (32, 101));
        assert_eq!(all.listed()[1].field, "b.0");

        let mut inside = all.inside();
        inside.note(|| unreachable!("there is no room for it outside"));
        all.extend(|| unreachable!("nothing to place"), inside);
        assert_eq!(all.count(), 102);
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"ß".repeat(100)), "ß".repeat(64));
    }
}
