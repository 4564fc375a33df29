//! The six types of JSON as a set, and the types of a schema by its own keywords.

use serde_json::Value;

const NAMES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self(63);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const NUMBER: Self = Self(4);
    pub(super) const STRING: Self = Self(8);
    pub(super) const ARRAY: Self = Self(16);
    pub(super) const OBJECT: Self = Self(32);

    /// Types in a schema's `type`.
    pub(super) fn named(schema: &Value) -> Self {
        Self::keyword(schema.get("type"))
    }

    /// Types in `type`; all if it is absent. An integer is a number.
    pub(super) fn keyword(value: Option<&Value>) -> Self {
        let one = |name: &Value| match name.as_str() {
            Some("integer") => Self::NUMBER,
            name => NAMES
                .iter()
                .position(|it| Some(*it) == name)
                .map_or(Self::NONE, |place| Self(1 << place)),
        };
        match value {
            Some(Value::Array(names)) => names.iter().map(one).fold(Self::NONE, Self::or),
            Some(name) => one(name),
            None => Self::ALL,
        }
    }

    pub(super) fn of(value: &Value) -> Self {
        Self(match value {
            Value::Null => 1,
            Value::Bool(_) => 2,
            Value::Number(_) => 4,
            Value::String(_) => 8,
            Value::Array(_) => 16,
            Value::Object(_) => 32,
        })
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn each(self) -> impl Iterator<Item = Self> {
        (0..6)
            .map(move |place| Self(self.0 & 1 << place))
            .filter(|it| !it.is_none())
    }

    /// Names for `type`.
    pub(super) fn names(self) -> Vec<&'static str> {
        let is_one = |place: &usize| self.0 & 1 << place != 0;
        (0..6).filter(is_one).map(|place| NAMES[place]).collect()
    }
}
