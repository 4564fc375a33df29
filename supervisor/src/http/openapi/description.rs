//! What a reader of fields takes, as it says itself.
//!
//! [`Fields::described`](crate::http::fields::Fields::described) runs a reader over no body at all.
//! Each question that it asks is noted here with its limits, so what is served as the document is
//! what is read, and cannot be anything else.

use super::schema::{self, Shape};

#[derive(Debug, Default)]
pub struct Description {
    /// Each field with the shapes that it may have.
    fields: Vec<(String, Vec<Shape>)>,
    required: Vec<String>,
    /// What holds between fields.
    rules: Vec<Shape>,
    /// Fields that are accepted and change no answer.
    no_effect: Vec<String>,
    /// What a field may be that is not among these.
    others: Option<Shape>,
}

impl Description {
    /// Notes a shape that a field may have, beside those that were noted before.
    pub fn field(&mut self, name: &str, shape: Shape) {
        match self.fields.iter_mut().find(|(known, _)| known == name) {
            Some((_, shapes)) if shapes.contains(&shape) => {}
            Some((_, shapes)) => shapes.push(shape),
            None => self.fields.push((name.to_owned(), vec![shape])),
        }
    }

    pub fn required(&mut self, name: &str) {
        self.required.push(name.to_owned());
    }

    /// Notes that a field is accepted and changes no answer.
    pub fn no_effect(&mut self, name: &str) {
        self.no_effect.push(name.to_owned());
    }

    /// Whether a field changes no answer.
    #[must_use]
    pub fn has_no_effect(&self, name: &str) -> bool {
        self.no_effect.iter().any(|known| known == name)
    }

    /// What a field may be; `None` where it is not read.
    #[must_use]
    pub fn shape_of(&self, name: &str) -> Option<Shape> {
        let field = self.fields.iter().find(|(known, _)| known == name);
        field.map(|(_, shapes)| schema::any_of(shapes.iter().cloned()))
    }

    /// Notes what a field may be that has no name here.
    pub fn others(&mut self, shape: Shape) {
        self.others = Some(shape);
    }

    pub fn rule(&mut self, rule: Shape) {
        self.rules.push(rule);
    }

    /// Names of all fields, in the order in which they are read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// The object as a whole. A field that is not required may be `null`, which says nothing.
    #[must_use]
    pub fn into_shape(self) -> Shape {
        let required: Vec<&str> = self.required.iter().map(String::as_str).collect();
        let fields = self.fields.iter().map(|(name, shapes)| {
            let shape = schema::any_of(shapes.iter().cloned());
            let shape = match required.contains(&name.as_str()) {
                true => shape,
                false => schema::or_null(shape),
            };
            (name.as_str(), shape)
        });
        let object = match self.others {
            None => schema::closed_object(fields, &required),
            Some(others) => schema::half_open_object(fields, &required, others),
        };
        if self.rules.is_empty() {
            return object;
        }
        schema::all_of([object].into_iter().chain(self.rules))
    }
}
