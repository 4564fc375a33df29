//! Mistakes of a request: the first ones in full, the rest counted.
//!
//! A body of four megabytes has room for two million mistakes. Whoever made them is helped by the
//! first few, and nobody by an answer fifty times as long as the question.

use serde::Serialize;

/// More than a person reads; a mistake behind these costs a count.
pub const LISTED: usize = 32;

/// A field's name is the client's own text, and could be as long as the body.
const NAME_CHARS: usize = 64;

/// One thing that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldError {
    pub field: String,
    /// The kind of rule that was broken.
    pub constraint: Constraint,
    /// The rule, in words.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::VariantArray)]
#[serde(rename_all = "snake_case")]
pub enum Constraint {
    Required,
    Type,
    Range,
    Length,
    /// A field that does not exist.
    Unknown,
    /// The field exists elsewhere, but not here.
    Unsupported,
    /// Two fields contradict each other.
    Conflict,
    /// The field is there twice.
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

/// A name as it may be told back.
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
    /// `make` is asked only while there is room for what it makes.
    pub fn note(&mut self, make: impl FnOnce() -> FieldError) {
        if self.listed.len() < self.room {
            self.listed.push(make());
        } else {
            self.more += 1;
        }
    }

    /// An empty list that [`Mistakes::extend`] can take over, with no more room than is left here.
    #[must_use]
    pub fn inside(&self) -> Self {
        Self {
            room: self.room - self.listed.len(),
            ..Self::default()
        }
    }

    /// Takes over all of another's, as mistakes inside of `place`.
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

    /// The same under other names.
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

    /// The mistakes that are listed, at most [`LISTED`].
    #[must_use]
    pub fn listed(&self) -> &[FieldError] {
        &self.listed
    }

    /// Those that are not listed.
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
