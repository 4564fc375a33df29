//! Reading a JSON object field by field, noting everything that is wrong with it.
//!
//! A value is never echoed: it may be somebody's prompt. A reader says beforehand which names it
//! knows; another name is a mistake, and so is one that comes twice, so nothing a client asks for
//! is silently ignored. Values stay in the body until a reader asks for them ([`Json`]).
//!
//! A reader can be run over no body at all, to learn what it reads ([`Fields::described`]).

use super::json::{self, Json, Kind};
use super::mistakes::{Constraint, FieldError, Mistakes, shortened};
use super::openapi::description::Description;
use super::openapi::schema::{self, Shape};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Finds an object's name among those that its reader knows.
pub type Names = fn(&str) -> Option<&'static str>;

/// A name of one of these lists, as the list has it.
#[must_use]
pub fn among(name: &str, lists: &[&'static [&'static str]]) -> Option<&'static str> {
    let mut names = lists.iter().copied().flatten();
    names.find(|known| **known == name).copied()
}

#[derive(Debug)]
pub struct Fields<'a> {
    names: Names,
    given: Vec<Given<'a>>,
    mistakes: Mistakes,
    /// Told behind the mistakes in what was read.
    strangers: Mistakes,
    /// Unknown names are passed over where they have no value.
    drops_hollow: bool,
    /// Where each question is noted, for a reader that is described.
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
    /// When the text is not one JSON object.
    pub fn parse(text: &'a str, names: Names) -> Result<Self, serde_json::Error> {
        let mut fields = Self::none(names, &Mistakes::default());
        json::each_member_of(text, |name, value| fields.add(name, value))?;
        Ok(fields)
    }

    /// The fields of an object inside of another, whose mistakes will be among `outside`. `None`
    /// when it is no object.
    #[must_use]
    pub fn of(object: Json<'a>, names: Names, outside: &Mistakes) -> Option<Self> {
        let mut fields = Self::none(names, outside);
        object
            .each_member(|name, value| fields.add(name, value))
            .then_some(fields)
    }

    /// [`Fields::of`] for an object of a conversation's history. Servers and clients add keys of their own to
    /// these; a key that is unknown is passed over where its value is `null`, `[]` or `{}`.
    #[must_use]
    pub fn of_history(object: Json<'a>, names: Names, outside: &Mistakes) -> Option<Self> {
        let mut fields = Self {
            drops_hollow: true,
            ..Self::none(names, outside)
        };
        object
            .each_member(|name, value| fields.add(name, value))
            .then_some(fields)
    }

    /// [`Fields::described`] for a reader of [`Fields::of_history`].
    pub fn described_of_history(
        names: Names,
        read: impl for<'d> FnOnce(Fields<'d>),
    ) -> Description {
        let mut description = Self::described(names, read);
        description.others(hollow());
        description
    }

    /// What `read` asks for, when it is given nothing.
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

    /// Says what a field may be. Readers that take a field as it is say so themselves.
    pub fn says(&self, name: &str, shape: impl FnOnce() -> Shape) {
        debug_assert!((self.names)(name).is_some(), "{name} is read but not known");
        self.note(|notes| notes.field(name, shape()));
    }

    /// Says that a field is read and changes no answer.
    pub fn says_no_effect(&self, name: &str) {
        self.note(|notes| notes.no_effect(name));
    }

    /// Says what holds between fields.
    pub fn says_of_all(&self, rule: impl FnOnce() -> Shape) {
        self.note(|notes| notes.rule(rule()));
    }

    fn note(&self, note: impl FnOnce(&mut Description)) {
        if let Some(notes) = self.notes {
            note(&mut notes.borrow_mut());
        }
    }

    fn add(&mut self, name: &str, value: Json<'a>) {
        let Some(name) = (self.names)(name) else {
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

    /// Takes a field out; `null` is the same as absent.
    pub fn take(&mut self, name: &str) -> Option<Json<'a>> {
        debug_assert!((self.names)(name).is_some(), "{name} is read but not known");
        let given = self.given.iter_mut().find(|given| given.name == name)?;
        if given.taken {
            return None;
        }
        given.taken = true;
        Some(given.value).filter(|value| !value.is_null())
    }

    /// Takes out a field that holds `[]` or `{}`, where a text is read.
    pub fn drop_hollow(&mut self, name: &str) {
        self.says(name, hollow);
        if self.peek(name).is_some_and(Json::is_hollow) {
            self.take(name);
        }
    }

    /// Takes out a field that changes no answer, whatever it holds.
    pub fn pass_over(&mut self, name: &str) {
        self.says(name, schema::anything);
        self.says_no_effect(name);
        self.take(name);
    }

    /// A field that is still there to be taken.
    #[must_use]
    pub fn peek(&self, name: &str) -> Option<Json<'a>> {
        let there = |given: &&Given<'_>| given.name == name && !given.taken;
        let given = self.given.iter().find(there)?;
        Some(given.value).filter(|value| !value.is_null())
    }

    /// Takes a field out where it is this very number.
    pub fn take_number(&mut self, name: &str, number: f64) -> bool {
        self.says(name, || schema::values([number]));
        let is_it = |given: &Given<'_>| {
            let value = given.value.number().and_then(|number| number.as_f64());
            given.name == name && value == Some(number)
        };
        let found = self.given.iter().any(is_it);
        found && self.take(name).is_some()
    }

    /// True for a field that is there and `null`.
    #[must_use]
    pub fn is_null(&self, name: &str) -> bool {
        let given = self.given.iter().find(|given| given.name == name);
        given.is_some_and(|given| given.value.is_null())
    }

    /// True for a field that has a value, taken or not.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let given = self.given.iter().find(|given| given.name == name);
        given.is_some_and(|given| !given.value.is_null())
    }

    /// True for a field that is `true`, taken or not.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        let given = self.given.iter().find(|given| given.name == name);
        given.is_some_and(|given| given.value.boolean() == Some(true))
    }

    pub fn error(&mut self, field: &str, constraint: Constraint, message: impl Into<String>) {
        self.mistakes
            .note(|| FieldError::new(field, constraint, message));
    }

    /// The list to which many mistakes in a row can be added.
    pub fn mistakes(&mut self) -> &mut Mistakes {
        &mut self.mistakes
    }

    /// Notes the absence of a field. One that is there and was of no use has its mistake already.
    pub fn required<T>(&mut self, name: &str, value: Option<T>) -> Option<T> {
        self.note(|notes| notes.required(name));
        if value.is_none() && !self.has(name) {
            self.error(name, Constraint::Required, "is required");
        }
        value
    }

    /// Notes the absence of both of two fields, and the presence of both.
    pub fn either<T>(&mut self, one: &str, other: &str, value: Option<T>) -> Option<T> {
        self.says_of_all(|| {
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
        self.says(name, schema::boolean);
        let value = self.take(name)?;
        self.typed(name, value.boolean(), "true or false")
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Option<f64> {
        self.says(name, || schema::number(&range));
        let number = self.any_number(name)?;
        self.in_range(name, number, &range)
    }

    /// A number above one and at most another.
    pub fn number_above(&mut self, name: &str, above: f64, most: f64) -> Option<f64> {
        self.says(name, || schema::number_above(above, most));
        let number = self.any_number(name)?;
        if above < number && number <= most {
            return Some(number);
        }
        let message = format!("must be above {above} and at most {most}");
        self.error(name, Constraint::Range, message);
        None
    }

    fn any_number(&mut self, name: &str) -> Option<f64> {
        let number = self.take(name)?.number().and_then(|it| it.as_f64());
        self.typed(name, number, "a number")
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        self.says(name, || schema::integer(&range));
        let value = self.take(name)?;
        let (whole, float) = (value.whole(), value.number().and_then(|it| it.as_f64()));
        if whole.is_none() && float.is_some_and(|n| n < 0.0 && n.fract() == 0.0) {
            let message = format!("must be from {} to {}", range.start(), range.end());
            self.error(name, Constraint::Range, message);
            return None;
        }
        let number = self.typed(name, whole, "an integer")?;
        self.in_range(name, number, &range)
    }

    /// A text with a length in characters.
    pub fn text(&mut self, name: &str, chars: &RangeInclusive<usize>) -> Option<String> {
        self.says(name, || schema::text_of(chars));
        let value = self.take(name)?;
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

    /// One of a few words.
    pub fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        self.says(name, || schema::values(words.iter().map(|(word, _)| *word)));
        let value = self.take(name)?.small();
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

    /// Accepts a field only where it asks for what happens anyway, which is said as a shape.
    pub fn only(
        &mut self,
        name: &str,
        shape: impl FnOnce() -> Shape,
        harmless: impl FnOnce(Json<'a>) -> bool,
        message: &'static str,
    ) {
        self.says(name, shape);
        self.says_no_effect(name);
        if let Some(value) = self.take(name)
            && !harmless(value)
        {
            self.error(name, Constraint::Unsupported, message);
        }
    }

    /// As [`Self::only`], where what asks for what happens anyway is one of these words.
    pub fn only_words(
        &mut self,
        name: &str,
        words: &'static [&'static str],
        message: &'static str,
    ) {
        let is_known = |value: Json<'_>| value.text().is_some_and(|it| words.contains(&&*it));
        let shape = || schema::values(words.iter().copied());
        self.only(name, shape, is_known, message);
    }

    /// # Errors
    /// Everything that was noted, and every known field with a value that nobody took: it is
    /// known elsewhere, and not supported here.
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

/// Reads the fields of an object inside of another. `None` where it is absent or wrong.
pub fn nested<T>(
    fields: &mut Fields<'_>,
    name: &'static str,
    names: Names,
    read: impl Fn(Fields<'_>) -> Result<T, Mistakes>,
) -> Option<T> {
    fields.says(name, || {
        Fields::described(names, |fields| drop(read(fields))).into_shape()
    });
    let given = fields.take(name)?;
    let Some(inside) = Fields::of(given, names, fields.mistakes()) else {
        fields.error(name, Constraint::Type, "must be an object");
        return None;
    };
    let wrong = match read(inside) {
        Ok(it) => return Some(it),
        Err(wrong) => wrong,
    };
    fields.mistakes().extend(|| format!("{name}."), wrong);
    None
}

fn hollow() -> Shape {
    schema::values([json!([]), json!({}), Value::Null])
}

/// The rule that a value broke which is no text.
fn text_rule(value: Json<'_>) -> &'static str {
    match value.kind() {
        Kind::Text => "a string without halves of characters",
        _ => "a string",
    }
}

#[cfg(test)]
mod tests;
