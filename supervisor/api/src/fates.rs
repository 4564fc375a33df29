//! Support of each request field, from the reader of its endpoint, for docs/guide/fields.md.

use crate::anthropic::request::MESSAGES;
use crate::embeddings::read::EMBEDDINGS;
use crate::fields::Fields;
use crate::limits::RequestLimits;
use crate::openai::{Kind, request};
use crate::request::Reader;
use crate::responses::request::RESPONSE;
use crate::sampling::ModelTerms;
use crate::schema::Shape;

/// Endpoints that other servers have, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub enum Endpoint {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Messages,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Used,
    /// Changes no answer. Allowed values, or the type.
    NoEffect(String),
    Refused,
}

/// Support of each of these fields.
#[must_use]
pub fn of(endpoint: Endpoint, names: &[&str]) -> Vec<Fate> {
    match endpoint {
        Endpoint::Chat => fates(names, &request::reader(Kind::Chat)),
        Endpoint::Completions => fates(names, &request::reader(Kind::Completion)),
        Endpoint::Responses => fates(names, &RESPONSE),
        Endpoint::Embeddings => fates(names, &EMBEDDINGS),
        Endpoint::Messages => fates(names, &MESSAGES),
    }
}

fn fates<T>(names: &[&str], reader: &Reader<T>) -> Vec<Fate> {
    let terms = ModelTerms::UNKNOWN;
    let read = |fields: Fields<'_>| drop((reader.read)(fields, &RequestLimits::NONE, &terms));
    let description = Fields::described(reader.names, read);
    let fate = |name: &&str| match description.shape_of(name) {
        // Every endpoint reads it before its own fields.
        None if *name == "model" && reader.names.concat().contains(name) => Fate::Used,
        None => Fate::Refused,
        Some(shape) if description.has_no_effect(name) => Fate::NoEffect(in_words(&shape)),
        Some(_) => Fate::Used,
    };
    names.iter().map(fate).collect()
}

/// Values of a shape, or its type, as text.
fn in_words(shape: &Shape) -> String {
    let shape = serde_json::to_value(shape).unwrap_or_default();
    let either = shape["anyOf"].as_array();
    let mut values = either.into_iter().flatten().chain([&shape]);
    let values = values.find_map(|shape| shape["enum"].as_array());
    match (values, shape["type"].as_str()) {
        (Some(values), _) => {
            let values = values.iter().map(|value| format!("`{value}`"));
            values.collect::<Vec<_>>().join(", ")
        }
        (_, Some("boolean")) => "`true`, `false`".to_owned(),
        (_, Some("integer")) => "an integer".to_owned(),
        (_, Some("string")) => "a text".to_owned(),
        (_, Some("object")) => "an object".to_owned(),
        _ => "anything".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_field_is_known_twice() {
        let readers = [
            request::reader(Kind::Chat).names,
            request::reader(Kind::Completion).names,
            RESPONSE.names,
            MESSAGES.names,
            EMBEDDINGS.names,
        ];
        for names in readers {
            let mut names = names.concat();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{names:?}");
        }
    }
}
