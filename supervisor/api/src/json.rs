//! JSON values in place: syntax-checked slices of the body, read on demand.
//!
//! A tree of general values would need many times the body's memory: two bytes of text, `0,`, become thirty-two bytes.
//! So a body is split one level at a time into slices, and only the parsed result of a field is kept. Nesting costs one
//! byte per level.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Longest value that is parsed as a tree, in bytes. No compared value is longer.
const SMALL_BYTES: usize = 256;

/// One unparsed value.
#[derive(Debug, Clone, Copy)]
pub struct Json<'a>(&'a str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    List,
    Object,
}

impl<'a> Json<'a> {
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.0.as_bytes().first() {
            Some(b'"') => Kind::Text,
            Some(b'[') => Kind::List,
            Some(b'{') => Kind::Object,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'n') | None => Kind::Null,
            Some(_) => Kind::Number,
        }
    }

    #[must_use]
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// `null`, or an empty text, list or object.
    #[must_use]
    pub fn is_empty(self) -> bool {
        let inside = match self.kind() {
            Kind::Null => return true,
            Kind::Text | Kind::List | Kind::Object => &self.0[1..self.0.len() - 1],
            Kind::Boolean | Kind::Number => return false,
        };
        match self.kind() {
            Kind::Text => inside.is_empty(),
            _ => inside.bytes().all(|byte| byte.is_ascii_whitespace()),
        }
    }

    /// `null`, or an empty list or object.
    #[must_use]
    pub fn is_hollow(self) -> bool {
        self.kind() != Kind::Text && self.is_empty()
    }

    #[must_use]
    pub fn boolean(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    #[must_use]
    pub fn number(self) -> Option<serde_json::Number> {
        serde_json::from_str(self.0).ok()
    }

    #[must_use]
    pub fn float(self) -> Option<f64> {
        self.number()?.as_f64()
    }

    /// Unsigned 64-bit integer. 1.0 is one.
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        let number = self.number()?;
        let float = number.as_f64();
        let float = float.filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n));
        number.as_u64().or(float.map(|n| n as u64))
    }

    /// Signed 64-bit integer. -1.0 is one.
    #[must_use]
    pub fn integer(self) -> Option<i64> {
        let number = self.number()?;
        let float = number.as_f64();
        let float = float.filter(|n| n.fract() == 0.0 && n.abs() <= 9e15);
        number.as_i64().or(float.map(|n| n as i64))
    }

    /// The text, borrowed unless it has escapes.
    #[must_use]
    pub fn text(self) -> Option<Cow<'a, str>> {
        serde_json::from_str::<Text<'a>>(self.0)
            .ok()
            .map(|text| text.0)
    }

    /// The whole value as a tree, if it is short.
    #[must_use]
    pub fn small(self) -> Option<Value> {
        let is_small = self.0.len() <= SMALL_BYTES;
        is_small
            .then(|| serde_json::from_str(self.0).ok())
            .flatten()
    }

    /// Whether it is this value. 1.0 is 1.
    #[must_use]
    pub fn is(self, value: &Value) -> bool {
        match value {
            Value::Number(number) => self.float() == number.as_f64(),
            Value::String(text) => self.text().as_deref() == Some(text.as_str()),
            Value::Array(list) if list.is_empty() => self.kind() == Kind::List && self.is_empty(),
            value => self.small().as_ref() == Some(value),
        }
    }

    /// The value as in the body.
    #[must_use]
    pub fn raw(self) -> &'a str {
        self.0
    }

    /// Text of an object as in the body.
    #[must_use]
    pub fn object_text(self) -> Option<&'a str> {
        (self.kind() == Kind::Object).then_some(self.0)
    }

    /// Visits the elements of a list. Returns false without a visit for other values.
    pub fn each_element(self, visit: impl FnMut(Json<'a>)) -> bool {
        let mut parser = serde_json::Deserializer::from_str(self.0);
        self.kind() == Kind::List && parser.deserialize_seq(Elements(visit)).is_ok()
    }

    /// First elements of a list, at most `most`, and the number of all. Other values have none.
    #[must_use]
    pub fn first(self, most: usize) -> (Vec<Json<'a>>, usize) {
        let (mut first, mut count) = (Vec::new(), 0);
        self.each_element(|element| {
            if count < most {
                first.push(element);
            }
            count += 1;
        });
        (first, count)
    }

    /// Last member of this name of an object.
    #[must_use]
    pub fn member(self, name: &str) -> Option<Json<'a>> {
        let mut found = None;
        self.each_member(|other, value| {
            if other == name {
                found = Some(value);
            }
        });
        found
    }

    /// Visits the members of an object. Returns false without a visit for other values.
    pub fn each_member(self, visit: impl FnMut(&str, Json<'a>)) -> bool {
        let mut parser = serde_json::Deserializer::from_str(self.0);
        self.kind() == Kind::Object && parser.deserialize_map(Members(visit)).is_ok()
    }
}

/// Visits the members of the one object of a complete text, which may have white space around it.
///
/// # Errors
/// If the text is no JSON, or no object. Some members may have been visited by then.
pub fn each_member_of<'a>(
    text: &'a str,
    visit: impl FnMut(&str, Json<'a>),
) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.deserialize_map(Members(visit))?;
    parser.end()
}

struct Elements<F>(F);

impl<'a, F: FnMut(Json<'a>)> Visitor<'a> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element::<&RawValue>()? {
            (self.0)(Json(value.get()));
        }
        Ok(())
    }
}

struct Members<F>(F);

impl<'a, F: FnMut(&str, Json<'a>)> Visitor<'a> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = object.next_key::<Text<'a>>()? {
            (self.0)(&name, Json(object.next_value::<&RawValue>()?.get()));
        }
        Ok(())
    }
}

/// Borrowed unless it has escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyText;
        impl<'de> Visitor<'de> for AnyText {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(AnyText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &str) -> Vec<Json<'_>> {
        let mut found = Vec::new();
        assert!(Json(text).each_element(|element| found.push(element)));
        found
    }

    #[test]
    fn a_value_is_read_where_it_lies() {
        let kinds: Vec<_> = elements("[ null ,true,-1.5, \"a\\n\", [ 1 ], {\"b\" : 2} ]")
            .into_iter()
            .map(|value| (value.kind(), value.0))
            .collect();
        assert_eq!(
            kinds,
            [
                (Kind::Null, "null"),
                (Kind::Boolean, "true"),
                (Kind::Number, "-1.5"),
                (Kind::Text, "\"a\\n\""),
                (Kind::List, "[ 1 ]"),
                (Kind::Object, "{\"b\" : 2}"),
            ]
        );
        assert_eq!(Json("\"a\\n\"").text().as_deref(), Some("a\n"));
        assert!(matches!(Json("\"ab\"").text(), Some(Cow::Borrowed("ab"))));
        // A lone surrogate is no character.
        assert!(Json("\"\\ud800\"").text().is_none());
        assert!(Json("1e999").number().is_none());
    }

    #[test]
    fn emptiness_is_seen_without_reading() {
        for empty in ["null", "\"\"", "[]", "{}", "[ \n]"] {
            assert!(Json(empty).is_empty(), "{empty}");
        }
        for full in ["0", "false", "\" \"", "[null]", "{\"a\": null}"] {
            assert!(!Json(full).is_empty(), "{full}");
        }
    }

    #[test]
    fn names_are_compared_as_text_and_not_as_written() {
        let mut names = Vec::new();
        each_member_of(" {\"\\u0061\": 1, \"b\": [{}]} \n", |name, _| {
            names.push(name.to_owned());
        })
        .unwrap();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn what_is_no_whole_object_is_an_error() {
        for wrong in [
            "",
            "[]",
            "3",
            "{\"a\":1} x",
            "{\"a\":}",
            "{\"a\":[1,}",
            "{'a':1}",
        ] {
            assert!(each_member_of(wrong, |_, _| ()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nesting_overflows_no_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
        let mut kinds = Vec::new();
        each_member_of(&deep, |_, value| kinds.push(value.kind())).unwrap();
        assert_eq!(kinds, [Kind::List]);
    }
}
