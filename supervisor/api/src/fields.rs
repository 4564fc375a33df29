//! Reader of a JSON object, field by field, which notes every mistake.
//!
//! Values are never echoed: they may be prompts. A reader declares its names. Any other name is a mistake, and so is a
//! duplicate, so no field of a request is silently ignored. Values stay in the body until they are read ([`Json`]).
//!
//! A reader can run without a body, to describe the fields that it reads ([`Fields::described`]).

use crate::description::Description;
use crate::json::{self, Json, Kind};
use crate::mistakes::{Constraint, FieldError, Mistakes, shortened};
use crate::schema::{self, Shape};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Names of a reader's fields, in lists.
pub type Names = &'static [&'static [&'static str]];

/// Returns the list's own string.
fn known(names: Names, name: &str) -> Option<&'static str> {
    let mut names = names.iter().copied().flatten();
    names.find(|known| **known == name).copied()
}

#[derive(Debug)]
pub struct Fields<'a> {
    names: Names,
    given: Vec<Given<'a>>,
    mistakes: Mistakes,
    /// Mistakes about unknown names, reported after the others.
    strangers: Mistakes,
    /// Ignore unknown names with an empty value.
    drops_hollow: bool,
    /// Description in progress, for a reader without a body.
    notes: Option<&'a RefCell<Description>>,
}

#[derive(Debug)]
struct Given<'a> {
    name: &'static str,
    value: Json<'a>,
    taken: bool,
}

impl<'a> Fields<'a> {
    /// # Errors
    /// If the text is not one JSON object.
    pub fn parse(text: &'a str, names: Names) -> Result<Self, serde_json::Error> {
        let mut fields = Self::none(names, &Mistakes::default());
        json::each_member_of(text, |name, value| fields.add(name, value))?;
        Ok(fields)
    }

    /// Fields of a nested object, with room for mistakes from `outside`. `None` if it is no object.
    #[must_use]
    pub fn of(object: Json<'a>, names: Names, outside: &Mistakes) -> Option<Self> {
        Self::none(names, outside).with_members(object)
    }

    /// [`Fields::of`] for an object in a conversation's history. Servers and clients add keys of their own to these, so
    /// an unknown key with the value `null`, `[]` or `{}` is ignored.
    #[must_use]
    pub fn of_history(object: Json<'a>, names: Names, outside: &Mistakes) -> Option<Self> {
        let fields = Self {
            drops_hollow: true,
            ..Self::none(names, outside)
        };
        fields.with_members(object)
    }

    fn with_members(mut self, object: Json<'a>) -> Option<Self> {
        let is_object = object.each_member(|name, value| self.add(name, value));
        is_object.then_some(self)
    }

    /// Description of the fields that `read` reads, from a run without a body.
    pub fn described(names: Names, read: impl for<'d> FnOnce(Fields<'d>)) -> Description {
        let notes = RefCell::default();
        read(Fields {
            notes: Some(&notes),
            ..Fields::none(names, &Mistakes::default())
        });
        notes.into_inner()
    }

    fn none(names: Names, outside: &Mistakes) -> Self {
        Self {
            names,
            given: Vec::new(),
            mistakes: outside.inside(),
            strangers: outside.inside(),
            drops_hollow: false,
            notes: None,
        }
    }

    /// Describes a field that is read as raw JSON. Typed readers describe their fields themselves.
    pub fn describe(&self, name: &str, shape: impl FnOnce() -> Shape) {
        debug_assert!(self.knows(name), "{name} is read but not known");
        self.note(|notes| notes.field(name, shape()));
    }

    /// Describes a field that is read and changes no answer.
    pub fn describe_no_effect(&self, name: &str) {
        self.note(|notes| notes.no_effect(name));
    }

    /// Describes a rule between fields.
    pub fn describe_rule(&self, rule: impl FnOnce() -> Shape) {
        self.note(|notes| notes.rule(rule()));
    }

    fn note(&self, note: impl FnOnce(&mut Description)) {
        if let Some(notes) = self.notes {
            note(&mut notes.borrow_mut());
        }
    }

    /// True for a name of this reader.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        known(self.names, name).is_some()
    }

    fn add(&mut self, name: &str, value: Json<'a>) {
        let Some(name) = known(self.names, name) else {
            if self.drops_hollow && value.is_hollow() {
                return;
            }
            return self.strangers.note(|| {
                let message = "is no field of this request";
                FieldError::new(shortened(name), Constraint::Unknown, message)
            });
        };
        if self.given.iter().any(|given| given.name == name) {
            let twice = || FieldError::new(name, Constraint::Duplicate, "is given more than once");
            return self.mistakes.note(twice);
        }
        self.given.push(Given {
            name,
            value,
            taken: false,
        });
    }

    /// Takes a field. `null` is the same as absent.
    pub fn take(&mut self, name: &str) -> Option<Json<'a>> {
        debug_assert!(self.knows(name), "{name} is read but not known");
        let given = self.given.iter_mut().find(|given| given.name == name)?;
        if given.taken {
            return None;
        }
        given.taken = true;
        Some(given.value).filter(|value| !value.is_null())
    }

    /// Takes a field that is read as raw JSON, and describes it.
    pub fn given(&mut self, name: &str, shape: impl FnOnce() -> Shape) -> Option<Json<'a>> {
        self.describe(name, shape);
        self.take(name)
    }

    /// Takes a text field if its value is `[]` or `{}`.
    pub fn drop_hollow(&mut self, name: &str) {
        self.describe(name, hollow);
        if self.peek(name).is_some_and(Json::is_hollow) {
            self.take(name);
        }
    }

    /// Takes a field that changes no answer, whatever its value.
    pub fn pass_over(&mut self, name: &str) {
        self.given(name, schema::anything);
        self.describe_no_effect(name);
    }

    /// Value of a field that is not taken yet.
    #[must_use]
    pub fn peek(&self, name: &str) -> Option<Json<'a>> {
        let there = |given: &&Given<'_>| given.name == name && !given.taken;
        let given = self.given.iter().find(there)?;
        Some(given.value).filter(|value| !value.is_null())
    }

    /// Takes a field if its value is exactly this number.
    pub fn take_number(&mut self, name: &str, number: f64) -> bool {
        self.describe(name, || schema::values([number]));
        let is_it = self.value_of(name).and_then(Json::float) == Some(number);
        is_it && self.take(name).is_some()
    }

    /// Value of a field, taken or not.
    fn value_of(&self, name: &str) -> Option<Json<'a>> {
        let given = self.given.iter().find(|given| given.name == name);
        given.map(|given| given.value)
    }

    /// True for a field with the value `null`.
    #[must_use]
    pub fn is_null(&self, name: &str) -> bool {
        self.value_of(name).is_some_and(Json::is_null)
    }

    /// True for a field with a value, taken or not.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.value_of(name).is_some_and(|it| !it.is_null())
    }

    /// True for a field with the value `true`, taken or not.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        self.value_of(name).and_then(Json::boolean) == Some(true)
    }

    pub fn error(&mut self, field: &str, constraint: Constraint, message: impl Into<String>) {
        self.mistakes
            .note(|| FieldError::new(field, constraint, message));
    }

    /// List of mistakes, for adding many in a row.
    pub fn mistakes(&mut self) -> &mut Mistakes {
        &mut self.mistakes
    }

    /// Notes an absent field. An invalid one has its mistake already.
    pub fn required<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        self.note(|notes| notes.required(name));
        if value.is_none() && !self.has(name) {
            self.error(name, Constraint::Required, "is required");
        }
        value
    }

    /// [`Self::required`] for a field that `read` reads.
    pub fn must<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&mut Self, &str) -> Option<T>,
    ) -> Option<T> {
        let value = read(self, name);
        self.required(name, value)
    }

    /// Notes the absence of both of two fields, and the presence of both.
    pub fn either<T>(&mut self, one: &str, other: &str, value: Option<T>) -> Option<T> {
        self.describe_rule(|| {
            let only = |name: &str, not: &str| schema::with(name, [(not, schema::null())]);
            schema::any_of([only(one, other), only(other, one)])
        });
        match (self.has(one), self.has(other)) {
            (true, true) => {
                let rule = format!("cannot be given together with {one}");
                self.error(other, Constraint::Conflict, rule);
            }
            (false, false) => self.error(one, Constraint::Required, "is required"),
            _ => {}
        }
        value
    }

    pub fn boolean(&mut self, name: &str) -> Option<bool> {
        let value = self.given(name, schema::boolean)?;
        self.typed(name, value.boolean(), "true or false")
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Option<f64> {
        self.describe(name, || schema::number(&range));
        let number = self.any_number(name)?;
        self.in_range(name, number, &range)
    }

    /// Number above `above` and at most `most`.
    pub fn number_above(&mut self, name: &str, above: f64, most: f64) -> Option<f64> {
        self.describe(name, || schema::number_above(above, most));
        let number = self.any_number(name)?;
        if above < number && number <= most {
            return Some(number);
        }
        let message = format!("must be above {above} and at most {most}");
        self.error(name, Constraint::Range, message);
        None
    }

    fn any_number(&mut self, name: &str) -> Option<f64> {
        let number = self.take(name)?.float();
        self.typed(name, number, "a number")
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.given(name, || schema::integer(&range))?;
        let (whole, float) = (value.whole(), value.float());
        if whole.is_none() && float.is_some_and(|n| n < 0.0 && n.fract() == 0.0) {
            let message = format!("must be from {} to {}", range.start(), range.end());
            self.error(name, Constraint::Range, message);
            return None;
        }
        let number = self.typed(name, whole, "an integer")?;
        self.in_range(name, number, &range)
    }

    /// Text with a length in characters.
    pub fn text(&mut self, name: &str, chars: &RangeInclusive<usize>) -> Option<String> {
        let value = self.given(name, || schema::text_of(chars))?;
        self.text_of(name, value, chars)
    }

    /// [`Fields::text`] for a value that is part of a field.
    pub fn text_of(
        &mut self,
        name: &str,
        value: Json<'_>,
        chars: &RangeInclusive<usize>,
    ) -> Option<String> {
        let text = self.typed(name, value.text(), text_rule(value))?;
        if chars.contains(&text.chars().count()) {
            return Some(text.into_owned());
        }
        let message = match (*chars.start(), *chars.end()) {
            (1, usize::MAX) => "must not be empty".to_owned(),
            (least, usize::MAX) => format!("must have at least {least} characters"),
            (least, most) => format!("must have {least} to {most} characters"),
        };
        self.error(name, Constraint::Length, message);
        None
    }

    /// One of several words.
    pub fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let shape = || schema::values(words.iter().map(|(word, _)| *word));
        let value = self.given(name, shape)?.small();
        let found = words
            .iter()
            .find(|(word, _)| value.as_ref().and_then(Value::as_str) == Some(word));
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

    /// Accepts a field only with a value that requests the default behaviour. The shape describes these values.
    pub fn only(
        &mut self,
        name: &str,
        shape: impl FnOnce() -> Shape,
        harmless: impl FnOnce(Json<'a>) -> bool,
        message: &'static str,
    ) {
        let given = self.given(name, shape);
        self.describe_no_effect(name);
        if given.is_some_and(|value| !harmless(value)) {
            self.error(name, Constraint::Unsupported, message);
        }
    }

    /// # Errors
    /// All noted mistakes, and every known field with a value that was not taken: this reader does not support it.
    pub fn finish(mut self) -> Result<(), Mistakes> {
        for given in &self.given {
            if !given.taken && !given.value.is_null() {
                self.strangers.note(|| {
                    let message = "is not supported by this worker";
                    FieldError::new(given.name, Constraint::Unsupported, message)
                });
            }
        }
        self.mistakes.extend(String::new, self.strangers);
        if self.mistakes.is_empty() {
            Ok(())
        } else {
            Err(self.mistakes)
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

/// Shape of the objects that `read` accepts.
pub fn shape<T>(names: Names, read: impl for<'d> FnOnce(Fields<'d>) -> T) -> Shape {
    Fields::described(names, |fields| drop(read(fields))).into_shape()
}

/// [`shape`] of objects in a conversation's history ([`Fields::of_history`]).
pub fn history_shape<T>(names: Names, read: impl for<'d> FnOnce(Fields<'d>) -> T) -> Shape {
    let mut description = Fields::described(names, |fields| drop(read(fields)));
    description.others(hollow());
    description.into_shape()
}

/// Reads the fields of a nested object. `None` if it is absent or invalid.
pub fn nested<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    names: Names,
    mut read: impl FnMut(Fields<'_>) -> Result<T, Mistakes>,
) -> Option<T> {
    let given = fields.given(name, || shape(names, &mut read))?;
    inside(fields, name, given, names, read)
}

/// [`nested`] for a field that is taken.
pub fn inside<T>(
    fields: &mut Fields<'_>,
    name: &str,
    given: Json<'_>,
    names: Names,
    read: impl FnOnce(Fields<'_>) -> Result<T, Mistakes>,
) -> Option<T> {
    let Some(inside) = Fields::of(given, names, fields.mistakes()) else {
        fields.error(name, Constraint::Type, "must be an object");
        return None;
    };
    let read = read(inside);
    read.map_err(|wrong| fields.mistakes().extend(|| format!("{name}."), wrong))
        .ok()
}

/// Reads an element of a list. Paths of mistakes are relative to it: `.text`, or empty if it is no object. `object`: its
/// fields, if it is one.
///
/// # Errors
/// All mistakes in it; `rule` if it is no object.
pub fn element<'a, T>(
    object: Option<Fields<'a>>,
    outside: &Mistakes,
    rule: &'static str,
    read: impl FnOnce(Fields<'a>) -> Result<T, Mistakes>,
) -> Result<T, Mistakes> {
    let object = object.ok_or_else(|| outside.only("", Constraint::Type, rule))?;
    read(object).map_err(|wrong| {
        let mut mistakes = outside.inside();
        mistakes.extend(|| ".".to_owned(), wrong);
        mistakes
    })
}

/// Reads each element of a list, with its number. Paths of mistakes begin with the list's. Returns the number of
/// elements; `None` for a value that is no list.
pub fn each<'a>(
    mistakes: &mut Mistakes,
    list: &str,
    given: Json<'a>,
    mut read: impl FnMut(usize, Json<'a>, &mut Mistakes) -> Result<(), Mistakes>,
) -> Option<usize> {
    let mut count = 0;
    let is_list = given.each_element(|item| {
        if let Err(wrong) = read(count, item, mistakes) {
            mistakes.extend(|| format!("{list}[{count}]"), wrong);
        }
        count += 1;
    });
    is_list.then_some(count)
}

fn hollow() -> Shape {
    schema::values([json!([]), json!({}), Value::Null])
}

/// Rule for a value that is not a text.
fn text_rule(value: Json<'_>) -> &'static str {
    match value.kind() {
        Kind::Text => "a string without halves of characters",
        _ => "a string",
    }
}

#[cfg(test)]
mod tests;
