//! Constructors of JSON Schemas for fields and responses.

use serde_json::Value;
use std::ops::RangeInclusive;
use utoipa::Number;
use utoipa::openapi::schema::{AdditionalProperties, AnyOfBuilder, SchemaType, Type};
use utoipa::openapi::{AllOfBuilder, ArrayBuilder, Object, ObjectBuilder, Ref, RefOr, Schema};

pub type Shape = RefOr<Schema>;

/// Every type but `null`, which is the same as an absent field.
const SOMETHING: [Type; 5] = [
    Type::Boolean,
    Type::Number,
    Type::String,
    Type::Array,
    Type::Object,
];

/// Any value.
#[must_use]
pub fn anything() -> Shape {
    Object::with_type(SchemaType::AnyValue).into()
}

/// Object with any fields.
#[must_use]
pub fn any_object() -> Shape {
    of_type(Type::Object)
}

#[must_use]
pub fn of_type(kind: Type) -> Shape {
    Object::with_type(kind).into()
}

#[must_use]
pub fn null() -> Shape {
    of_type(Type::Null)
}

#[must_use]
pub fn boolean() -> Shape {
    of_type(Type::Boolean)
}

#[must_use]
pub fn text() -> Shape {
    of_type(Type::String)
}

/// Text with a length in characters.
#[must_use]
pub fn text_of(chars: &RangeInclusive<usize>) -> Shape {
    let (least, most) = (*chars.start(), *chars.end());
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length((least > 0).then_some(least))
        .max_length((most < usize::MAX).then_some(most))
        .into()
}

/// Text that contains JSON with a schema of the document's components.
#[must_use]
pub fn json_text(name: &str) -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .content_media_type("application/json")
        .content_schema(Some(named(name)))
        .into()
}

#[must_use]
pub fn pattern(pattern: &str) -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(pattern))
        .into()
}

#[must_use]
pub fn number(range: &RangeInclusive<f64>) -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .minimum(Some(*range.start()))
        .maximum(Some(*range.end()))
        .into()
}

/// Number above `above` and at most `most`.
#[must_use]
pub fn number_above(above: f64, most: f64) -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::Number)
        .exclusive_minimum(Some(above))
        .maximum(Some(most))
        .into()
}

#[must_use]
pub fn integer(range: &RangeInclusive<u64>) -> Shape {
    let bound = |bound: u64| usize::try_from(bound).ok().map(Number::UInt);
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(bound(*range.start()))
        .maximum(bound(*range.end()))
        .into()
}

/// Integer from 0 on.
#[must_use]
pub fn count() -> Shape {
    integer(&(0..=u64::MAX))
}

/// Signed 64-bit integer.
#[must_use]
pub fn whole_number() -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(isize::MIN))
        .maximum(Some(isize::MAX))
        .into()
}

/// One of these values, of any type.
#[must_use]
pub fn values<V: Into<Value>>(values: impl IntoIterator<Item = V>) -> Shape {
    ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .enum_values(Some(values))
        .into()
}

#[must_use]
pub fn list(items: Shape, length: &RangeInclusive<usize>) -> Shape {
    let (least, most) = (*length.start(), *length.end());
    ArrayBuilder::new()
        .items(items)
        .min_items((least > 0).then_some(least))
        .max_items((most < usize::MAX).then_some(most))
        .into()
}

/// List of any length.
#[must_use]
pub fn list_of(items: Shape) -> Shape {
    list(items, &(0..=usize::MAX))
}

#[must_use]
pub fn any_of(shapes: impl IntoIterator<Item = Shape>) -> Shape {
    let mut shapes: Vec<Shape> = shapes.into_iter().collect();
    if shapes.len() == 1 {
        return shapes.remove(0);
    }
    let any = AnyOfBuilder::new();
    let any = shapes.into_iter().fold(any, AnyOfBuilder::item);
    RefOr::T(any.build().into())
}

#[must_use]
pub fn all_of(shapes: impl IntoIterator<Item = Shape>) -> Shape {
    let all = shapes
        .into_iter()
        .fold(AllOfBuilder::new(), AllOfBuilder::item);
    RefOr::T(all.build().into())
}

#[must_use]
pub fn or_null(shape: Shape) -> Shape {
    any_of([shape, null()])
}

/// Object with at least these fields.
#[must_use]
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Shape)>) -> Shape {
    object_with(fields, [])
}

/// Object with at least these required fields, and some optional ones.
#[must_use]
pub fn object_with<'a>(
    fields: impl IntoIterator<Item = (&'a str, Shape)>,
    optional: impl IntoIterator<Item = (&'a str, Shape)>,
) -> Shape {
    let object = ObjectBuilder::new().schema_type(Type::Object);
    let require = |object: ObjectBuilder, (name, shape): (&str, Shape)| {
        object.property(name, shape).required(name)
    };
    let add = |object: ObjectBuilder, (name, shape)| object.property(name, shape);
    let object = fields.into_iter().fold(object, require);
    optional.into_iter().fold(object, add).into()
}

/// Object with these fields alone, of which some are required.
#[must_use]
pub fn closed_object<'a>(
    fields: impl IntoIterator<Item = (&'a str, Shape)>,
    required: &[&str],
) -> Shape {
    object_of(fields, required, AdditionalProperties::FreeForm(false))
}

/// Object with these fields, of which some are required. Fields with other names have the shape `others`.
#[must_use]
pub fn half_open_object<'a>(
    fields: impl IntoIterator<Item = (&'a str, Shape)>,
    required: &[&str],
    others: Shape,
) -> Shape {
    object_of(fields, required, AdditionalProperties::RefOr(others))
}

fn object_of<'a>(
    fields: impl IntoIterator<Item = (&'a str, Shape)>,
    required: &[&str],
    others: AdditionalProperties<Schema>,
) -> Shape {
    let object = ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(others));
    let add = |object: ObjectBuilder, (name, shape)| object.property(name, shape);
    let object = fields.into_iter().fold(object, add);
    let require = |object: ObjectBuilder, name: &&str| object.required(*name);
    required.iter().fold(object, require).into()
}

/// Object with at most `most` fields of shape `values`. Their names match `names` and are not in `but`.
#[must_use]
pub fn map(names: Shape, values: Shape, most: usize, but: &[&str]) -> Shape {
    let object = ObjectBuilder::new()
        .schema_type(Type::Object)
        .property_names(Some(names))
        .max_properties(Some(most))
        .additional_properties(Some(values));
    let exclude = |object: ObjectBuilder, name: &&str| object.property(*name, nothing());
    but.iter().fold(object, exclude).into()
}

/// Schema that matches no value.
fn nothing() -> Shape {
    values::<Value>([])
}

/// Object in which a field is present and other fields have these shapes.
#[must_use]
pub fn with<'a>(name: &str, others: impl IntoIterator<Item = (&'a str, Shape)>) -> Shape {
    let present = Object::with_type(SchemaType::from_iter(SOMETHING));
    let object = ObjectBuilder::new().property(name, present).required(name);
    let add = |object: ObjectBuilder, (name, shape)| object.property(name, shape);
    others.into_iter().fold(object, add).into()
}

/// Object without a field.
#[must_use]
pub fn without(name: &str) -> Shape {
    ObjectBuilder::new().property(name, null()).into()
}

/// Schema of the document's components.
#[must_use]
pub fn named(name: &str) -> Shape {
    Ref::from_schema_name(name).into()
}
