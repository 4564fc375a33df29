//! Fields that change no answer: labels, and fields with values that request the default behaviour.
//!
//! A field is accepted with the values in its row. Any other value is refused with the field's name.

use crate::fields::Fields;
use crate::json::{Json, Kind};
use crate::schema;
use serde_json::Value;

/// Row of a table of such fields.
#[derive(Debug)]
pub(crate) struct NoEffect {
    pub(crate) name: &'static str,
    pub(crate) accepts: Accepts,
    /// Error message for other values.
    otherwise: &'static str,
}

#[derive(Debug)]
pub(crate) enum Accepts {
    /// These values, as JSON.
    Values(&'static [&'static str]),
    AnyText,
    AnyObject,
}

/// Field with one of these values, as JSON.
pub(crate) const fn values(
    name: &'static str,
    values: &'static [&'static str],
    otherwise: &'static str,
) -> NoEffect {
    NoEffect {
        name,
        accepts: Accepts::Values(values),
        otherwise,
    }
}

/// Field with any text.
pub(crate) const fn text(name: &'static str) -> NoEffect {
    NoEffect {
        accepts: Accepts::AnyText,
        ..values(name, &[], "must be a string")
    }
}

/// Field with any object.
pub(crate) const fn object(name: &'static str) -> NoEffect {
    NoEffect {
        accepts: Accepts::AnyObject,
        ..values(name, &[], "must be an object")
    }
}

/// Type of the only tools of most APIs.
pub(crate) const FUNCTION_TYPE: NoEffect = values("type", &["\"function\""], "must be function");

/// Names of a table's fields.
pub(crate) const fn names<const N: usize>(table: &[NoEffect; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = table[at].name;
        at += 1;
    }
    names
}

/// Removes these fields, and records an error for each unsupported value.
pub(crate) fn accept<'a>(fields: &mut Fields<'_>, table: impl IntoIterator<Item = &'a NoEffect>) {
    for field in table {
        let (name, otherwise) = (field.name, field.otherwise);
        match field.accepts {
            Accepts::Values(texts) => {
                let parsed = |text: &&str| serde_json::from_str(text).unwrap_or_default();
                let values: Vec<Value> = texts.iter().map(parsed).collect();
                let shape = || schema::values(values.iter().cloned());
                let is_one = |given: Json<'_>| values.iter().any(|it| given.is(it));
                fields.only(name, shape, is_one, otherwise);
            }
            Accepts::AnyText => {
                fields.only(name, schema::text, |it| it.kind() == Kind::Text, otherwise);
            }
            Accepts::AnyObject => {
                let is_object = |given: Json<'_>| given.kind() == Kind::Object;
                fields.only(name, schema::any_object, is_object, otherwise);
            }
        }
    }
}
