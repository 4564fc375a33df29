//! Schemas of answers, derived from the types that are serialized.
//!
//! A field without `skip_serializing_if` is always present, and an `Option` among them may be `null`. A field with it is
//! optional; with [`absent_not_null`] at its struct it is not `null`.

use crate::schema::{self, Shape};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};
use strum::VariantNames;

/// Declares enums that are serialized and described as these strings.
#[macro_export]
macro_rules! string_enums {
    ($($(#[$meta:meta])* $name:ident: $($variant:ident = $string:literal)|+;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[derive(serde::Serialize, schemars::JsonSchema, strum::IntoStaticStr, strum::VariantNames)]
        #[schemars(inline)]
        pub enum $name { $(#[serde(rename = $string)] #[strum(serialize = $string)] $variant,)+ }
    )+};
}

/// Present value of a field that may also be absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "NullOr{T}")]
pub struct OrNull<T>(pub Option<T>);

/// Generator of the document's components.
#[must_use]
pub fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.into_generator()
}

/// Schema of an answer, a component of the document.
#[must_use]
pub fn of<T: JsonSchema>() -> Shape {
    schema::named(&T::schema_name())
}

/// Schema of text that contains JSON of this type.
#[must_use]
pub fn text_of<T: JsonSchema>() -> Shape {
    schema::json_text(&T::schema_name())
}

/// Schema of server-sent events. A variant of `T` is the data of the event with its name.
#[must_use]
pub fn events_of<T: JsonSchema + VariantNames>() -> Shape {
    let schema = json!(T::json_schema(&mut generator()));
    let variants = schema["anyOf"].as_array().into_iter().flatten();
    let events = T::VARIANTS.iter().zip(variants).map(|(name, data)| {
        let component = data["$ref"].as_str().and_then(|it| it.rsplit('/').next());
        event(
            [*name],
            schema::json_text(component.unwrap_or_default()),
            true,
        )
    });
    schema::any_of(events)
}

/// Schema of a server-sent event with one of these names.
pub fn event<'a>(names: impl IntoIterator<Item = &'a str>, data: Shape, has_id: bool) -> Shape {
    let fields = [("event", schema::values(names)), ("data", data)];
    schema::object_with(fields, has_id.then(|| ("id", schema::text())))
}

/// Transformation of a struct with optional fields: they are not `null`.
pub fn absent_not_null(schema: &mut Schema) {
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| {
        let mut names = required.as_array().into_iter().flatten();
        names.any(|it| it == name)
    };
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    let fields = fields.into_iter().flatten();
    for (_, field) in fields.filter(|(name, _)| !is_required(name)) {
        let null = [json!("null"), json!({"type": "null"}), Value::Null];
        for key in ["type", "anyOf", "enum"] {
            if let Some(choices) = field.get_mut(key).and_then(Value::as_array_mut) {
                choices.retain(|choice| !null.contains(choice));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    string_enums! {
        Word: One = "one" | Other = "other";
    }

    #[derive(Serialize, JsonSchema)]
    #[schemars(transform = absent_not_null)]
    struct Answer {
        always: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        word: Option<Word>,
        #[serde(skip_serializing_if = "Option::is_none")]
        or_null: Option<OrNull<u8>>,
    }

    #[test]
    fn a_field_that_may_be_absent_is_not_null_unless_its_type_says_so() {
        let mut generator = generator();
        generator.subschema_for::<Answer>();
        let schemas = json!(generator.take_definitions(true));
        let answer = &schemas["Answer"];
        assert_eq!(answer["required"], json!(["always"]));
        let fields = &answer["properties"];
        assert_eq!(fields["always"]["type"], json!(["integer", "null"]));
        assert_eq!(fields["word"]["type"], json!(["string"]));
        assert_eq!(fields["word"]["enum"], json!(["one", "other"]));
        let reference = json!([{"$ref": "#/components/schemas/NullOruint8"}]);
        assert_eq!(fields["or_null"]["anyOf"], reference);
        let inner = &schemas["NullOruint8"]["type"];
        assert_eq!(*inner, json!(["integer", "null"]));
    }
}
