//! Metadata values: scalars widened to one type a kind, arrays left in place in the file.

use super::GgufError;
use super::cursor::Cursor;

/// Arrays of arrays of arrays: more than any model uses, and a bound of the recursion.
const MAX_DEPTH: u32 = 3;

/// GGUF's own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Minimum size of a value of this type in the file.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    /// Bytes not checked to be UTF-8: a stray byte in an unused description is no reason to refuse.
    String(&'a [u8]),
    Array(Array<'a>),
}

impl<'a> Value<'a> {
    /// The kind of value, for error messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => format!("the integer {value}"),
            Self::Signed(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Bool(value) => format!("{value}"),
            Self::String(_) => "a string".to_owned(),
            Self::Array(array) => format!("an array of {} {:?}", array.len, array.element),
        }
    }

    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// A Boolean, or whether an integer that is not negative differs from zero.
    #[must_use]
    pub fn as_flag(&self) -> Option<bool> {
        match *self {
            Self::Bool(flag) => Some(flag),
            _ => self.as_u64().map(|value| value != 0),
        }
    }

    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn read(cursor: &mut Cursor<'a>, key: &str) -> Result<Self, GgufError> {
        let ty = read_type(cursor, key)?;
        Self::read_as(ty, cursor, key, 1)
    }

    fn read_as(
        ty: ValueType,
        cursor: &mut Cursor<'a>,
        key: &str,
        depth: u32,
    ) -> Result<Self, GgufError> {
        Ok(match ty {
            ValueType::U8 => Self::Unsigned(cursor.array::<1>(key)?[0].into()),
            ValueType::I8 => Self::Signed(i8::from_le_bytes(cursor.array(key)?).into()),
            ValueType::U16 => Self::Unsigned(u16::from_le_bytes(cursor.array(key)?).into()),
            ValueType::I16 => Self::Signed(i16::from_le_bytes(cursor.array(key)?).into()),
            ValueType::U32 => Self::Unsigned(u32::from_le_bytes(cursor.array(key)?).into()),
            ValueType::I32 => Self::Signed(i32::from_le_bytes(cursor.array(key)?).into()),
            ValueType::F32 => Self::Float(f32::from_le_bytes(cursor.array(key)?).into()),
            ValueType::Bool => Self::Bool(cursor.array::<1>(key)?[0] != 0),
            ValueType::String => Self::String(cursor.string(key)?),
            ValueType::Array => Self::Array(Array::read(cursor, key, depth)?),
            ValueType::U64 => Self::Unsigned(u64::from_le_bytes(cursor.array(key)?)),
            ValueType::I64 => Self::Signed(i64::from_le_bytes(cursor.array(key)?)),
            ValueType::F64 => Self::Float(f64::from_le_bytes(cursor.array(key)?)),
        })
    }
}

/// An array with elements checked to be inside the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub element: ValueType,
    pub len: usize,
    /// The elements in the file's encoding.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, key: &str, depth: u32) -> Result<Self, GgufError> {
        if depth > MAX_DEPTH {
            return Err(GgufError::Depth {
                key: key.to_owned(),
                limit: MAX_DEPTH,
            });
        }
        let element = read_type(cursor, key)?;
        let len = cursor.count(element.min_bytes(), key)?;
        let mut end = cursor.clone();
        match element {
            ValueType::String | ValueType::Array => {
                for _ in 0..len {
                    Value::read_as(element, &mut end, key, depth + 1)?;
                }
            }
            // `count` has checked that this product fits the file.
            scalar => {
                end.take(len * scalar.min_bytes(), key)?;
            }
        }
        let bytes = cursor.take((end.position() - cursor.position()) as u64, key)?;
        Ok(Self {
            element,
            len: len as usize,
            bytes,
        })
    }

    /// The elements in order. An element that is an array is a [`Value::Array`].
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes);
        let element = self.element;
        (0..self.len).map_while(move |_| Value::read_as(element, &mut cursor, "", 1).ok())
    }
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let number = cursor.u32(key)?;
    ValueType::ALL
        .into_iter()
        .find(|ty| *ty as u32 == number)
        .ok_or_else(|| GgufError::ValueType {
            key: key.to_owned(),
            number,
        })
}
