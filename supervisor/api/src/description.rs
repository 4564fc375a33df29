//! Description of a reader's fields, recorded from the reader itself.
//!
//! [`Fields::described`](crate::fields::Fields::described) runs a reader without a body. Each read of a field is
//! recorded here with its limits, so the document always matches the readers.

use crate::schema::{self, Shape};

#[derive(Debug, Default)]
pub struct Description {
    /// Fields with their possible shapes.
    fields: Vec<(String, Vec<Shape>)>,
    required: Vec<String>,
    /// Rules between fields.
    rules: Vec<Shape>,
    /// Accepted fields that change no answer.
    no_effect: Vec<String>,
    /// Shape of all other fields, if any are allowed.
    others: Option<Shape>,
}

impl Description {
    /// Adds a shape to those of a field.
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

    /// Records that a field is accepted and changes no answer.
    pub fn no_effect(&mut self, name: &str) {
        self.no_effect.push(name.to_owned());
    }

    /// Whether a field changes no answer.
    #[must_use]
    pub fn has_no_effect(&self, name: &str) -> bool {
        self.no_effect.iter().any(|known| known == name)
    }

    /// Shape of a field; `None` if it is not read.
    #[must_use]
    pub fn shape_of(&self, name: &str) -> Option<Shape> {
        let field = self.fields.iter().find(|(known, _)| known == name);
        field.map(|(_, shapes)| schema::any_of(shapes.iter().cloned()))
    }

    /// Sets the shape of all other fields.
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

    /// Shape of the whole object. An optional field may be `null`, the same as absent.
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
        // Schemathesis multiplies out an `allOf` from its beginning, and refuses one that becomes too large on the way.
        schema::all_of(self.rules.into_iter().chain([object]))
    }
}
