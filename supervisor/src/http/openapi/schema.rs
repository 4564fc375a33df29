//! JSON Schema in a few words: what fields and answers are made of.

use serde_json::Value;
use std::ops::RangeInclusive;
use utoipa::Number;
use utoipa::openapi::schema::{AdditionalProperties, AnyOfBuilder, SchemaType, Type};
use utoipa::openapi::{AllOfBuilder, ArrayBuilder, Object, ObjectBuilder, Ref, RefOr, Schema};

pub type Shape = RefOr<Schema>;

/// Every type but `null`, which means the same as a field that is absent.
const SOMETHING: [Type; 5] = [
    Type::Boolean,
    Type::Number,
    Type::String,
    Type::Array,
    Type::Object,
];

/// Any value at all.
#[must_use]
pub fn anything() -> Shape {
    Object::with_type(SchemaType::AnyValue).into()
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

/// A text with a length in characters.
#[must_use]
pub fn text_of(chars: &RangeInclusive<usize>) -> Shape {
    let (least, most) = (*chars.start(), *chars.end());
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length((least > 0).then_some(least))
        .max_length((most < usize::MAX).then_some(most))
        .into()
}

/// A text that is JSON, of a schema among the document's components.
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

/// A number above one and at most another.
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

/// An integer from 0 on.
#[must_use]
pub fn count() -> Shape {
    integer(&(0..=u64::MAX))
}

/// An integer of either sign that fits 64 bits.
#[must_use]
pub fn whole_number() -> Shape {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(isize::MIN))
        .maximum(Some(isize::MAX))
        .into()
}

/// One of these values, which may be of any type.
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

/// A list of any length.
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

/// An object with at least these fields.
#[must_use]
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Shape)>) -> Shape {
    object_with(fields, [])
}

/// An object with at least these fields, and perhaps these.
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

/// An object with some of these fields, and no other.
#[must_use]
pub fn closed_object<'a>(
    fields: impl IntoIterator<Item = (&'a str, Shape)>,
    required: &[&str],
) -> Shape {
    object_of(fields, required, AdditionalProperties::FreeForm(false))
}

/// An object with some of these fields, and of other names with such values alone.
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

/// An object of up to so many fields, whose names are alike, and are none of these.
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

/// What no value is.
fn nothing() -> Shape {
    values::<Value>([])
}

/// An object in which a field is there, and these values are what the others may be.
#[must_use]
pub fn with<'a>(name: &str, others: impl IntoIterator<Item = (&'a str, Shape)>) -> Shape {
    let present = Object::with_type(SchemaType::from_iter(SOMETHING));
    let object = ObjectBuilder::new().property(name, present).required(name);
    let add = |object: ObjectBuilder, (name, shape)| object.property(name, shape);
    others.into_iter().fold(object, add).into()
}

/// An object in which a field is absent.
#[must_use]
pub fn without(name: &str) -> Shape {
    ObjectBuilder::new().property(name, null()).into()
}

/// A schema among the document's components.
#[must_use]
pub fn named(name: &str) -> Shape {
    Ref::from_schema_name(name).into()
}
