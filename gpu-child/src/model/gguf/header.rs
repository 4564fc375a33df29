//! Header of a GGUF file: everything before the tensor data, read and checked against the file's size.

use super::cursor::Cursor;
use super::value::{Array, Value};
use super::{GgufError, TensorView};
use std::collections::HashMap;
use worker_orcd_kernels::TensorType;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;
const DEFAULT_ALIGNMENT: u64 = 32;

/// The specification's limits for names.
const MAX_KEY_BYTES: u64 = 65_535;
const MAX_TENSOR_NAME_BYTES: u64 = 64;

/// Maximum bytes of a name or text value. It goes into messages and logs.
const MAX_STRING_BYTES: usize = 4 << 10;
/// Maximum bytes of a string in an array. The longest tokens of real vocabularies are lines of spaces.
const MAX_ELEMENT_BYTES: usize = 64 << 10;

/// A length, a type, and one byte.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// A length, the number of dimensions, one of them, a type and an offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// An entry of the tensor table. Its data is checked to be inside the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    pub name: &'a str,
    pub ty: TensorType,
    /// Dimensions in GGUF's order, fastest first; missing ones are 1.
    pub dims: [usize; 4],
    /// Bytes from the start of the data section.
    pub offset: usize,
    pub bytes: usize,
    /// Index of the model's file with the data, from 0.
    pub part: usize,
}

impl TensorInfo<'_> {
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().map(|&dim| dim as u64).product()
    }
}

#[derive(Debug)]
pub struct Header<'a> {
    metadata: HashMap<&'a str, Value<'a>>,
    pub(super) tensors: Vec<TensorInfo<'a>>,
    pub(super) by_name: HashMap<&'a str, usize>,
    /// Data section of each file.
    pub(super) data: Vec<&'a [u8]>,
    pub(super) file_bytes: u64,
}

/// Parses everything before the tensor data.
///
/// # Errors
/// If a part violates the specification, or refers to data outside the file.
pub fn parse(bytes: &[u8]) -> Result<Header<'_>, GgufError> {
    let mut cursor = Cursor::new(bytes);
    let magic = cursor.array::<4>("magic")?;
    if magic != MAGIC {
        return Err(GgufError::NotGguf(magic));
    }
    match cursor.u32("version")? {
        VERSION => {}
        swapped if swapped.swap_bytes() == VERSION => return Err(GgufError::BigEndian),
        other => return Err(GgufError::Version(other)),
    }
    let n_tensors = cursor.count(MIN_TENSOR_BYTES, "tensor count")?;
    let n_entries = cursor.count(MIN_ENTRY_BYTES, "metadata count")?;
    let metadata = read_metadata(&mut cursor, n_entries)?;
    let alignment = alignment(&metadata)?;
    let mut tensors = Vec::new();
    for index in 0..n_tensors {
        tensors.push(read_tensor(&mut cursor, index)?);
    }
    let data = data_section(bytes, cursor.position(), alignment);
    let by_name = check_tensors(&tensors, alignment, data.len())?;
    Ok(Header {
        metadata,
        tensors,
        by_name,
        data: vec![data],
        file_bytes: bytes.len() as u64,
    })
}

fn read_metadata<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
) -> Result<HashMap<&'a str, Value<'a>>, GgufError> {
    let mut metadata = HashMap::new();
    for index in 0..count {
        let key = cursor.name(MAX_KEY_BYTES, &format!("metadata key {index}"))?;
        let value = Value::read(cursor, key)?;
        if metadata.insert(key, value).is_some() {
            return Err(GgufError::DuplicateKey(key.to_owned()));
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &HashMap<&str, Value<'_>>) -> Result<u64, GgufError> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let alignment = value
        .as_u64()
        .ok_or_else(|| wrong_type("general.alignment", "an integer", value))?;
    if alignment.is_power_of_two() {
        Ok(alignment)
    } else {
        Err(GgufError::Alignment(alignment))
    }
}

fn read_tensor<'a>(cursor: &mut Cursor<'a>, index: u64) -> Result<TensorInfo<'a>, GgufError> {
    let name = cursor.name(MAX_TENSOR_NAME_BYTES, &format!("name of tensor {index}"))?;
    let n_dims = cursor.u32(name)?;
    if !(1..=4).contains(&n_dims) {
        return Err(GgufError::Dimensions {
            tensor: name.to_owned(),
            n_dims,
        });
    }
    let mut dims = [1_u64; 4];
    for dim in &mut dims[..n_dims as usize] {
        *dim = cursor.u64(name)?;
    }
    let number = cursor.u32(name)?;
    let ty = TensorType::from_gguf(number).ok_or_else(|| GgufError::TensorType {
        tensor: name.to_owned(),
        number,
        name: foreign_type_name(number),
    })?;
    let offset = cursor.u64(name)?;
    let (dims, bytes) = size(name, ty, dims)?;
    let offset = usize::try_from(offset).map_err(|_| GgufError::OutOfFile {
        tensor: name.to_owned(),
        offset,
        bytes: bytes as u64,
        data: cursor.left(),
    })?;
    Ok(TensorInfo {
        name,
        ty,
        dims,
        offset,
        bytes,
        part: 0,
    })
}

/// Dimensions as `usize` and their size in bytes; `None` for a zero or an overflow.
fn size(name: &str, ty: TensorType, dims: [u64; 4]) -> Result<([usize; 4], usize), GgufError> {
    let shape = || GgufError::Shape {
        tensor: name.to_owned(),
        dims: dims.to_vec(),
    };
    let mut checked = [0_usize; 4];
    for (checked, dim) in checked.iter_mut().zip(dims) {
        *checked = usize::try_from(dim)
            .ok()
            .filter(|&dim| dim > 0)
            .ok_or_else(shape)?;
    }
    // The number of elements must fit as well: other code computes with it.
    checked
        .iter()
        .try_fold(1_usize, |all, &dim| all.checked_mul(dim))
        .ok_or_else(shape)?;
    let [cols, rest @ ..] = checked;
    if !cols.is_multiple_of(ty.block_elements()) {
        return Err(GgufError::Block {
            tensor: name.to_owned(),
            ty: ty.name(),
            cols: dims[0],
        });
    }
    let row_bytes = (cols / ty.block_elements())
        .checked_mul(ty.block_bytes())
        .ok_or_else(shape)?;
    let bytes = rest
        .iter()
        .try_fold(row_bytes, |all, &dim| all.checked_mul(dim))
        .ok_or_else(shape)?;
    Ok((checked, bytes))
}

/// The data after the tensor table, from the first aligned position on; empty if the file ends earlier.
fn data_section(bytes: &[u8], header_end: usize, alignment: u64) -> &[u8] {
    let start = (header_end as u64).checked_next_multiple_of(alignment);
    start
        .and_then(|start| bytes.get(usize::try_from(start).ok()?..))
        .unwrap_or_default()
}

fn check_tensors<'a>(
    tensors: &[TensorInfo<'a>],
    alignment: u64,
    data: usize,
) -> Result<HashMap<&'a str, usize>, GgufError> {
    let mut by_name = HashMap::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let name = || tensor.name.to_owned();
        let offset = tensor.offset as u64;
        if by_name.insert(tensor.name, index).is_some() {
            return Err(GgufError::DuplicateTensor(name()));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned {
                tensor: name(),
                offset,
                alignment,
            });
        }
        if tensor
            .offset
            .checked_add(tensor.bytes)
            .is_none_or(|end| end > data)
        {
            let (bytes, data) = (tensor.bytes as u64, data as u64);
            return Err(GgufError::OutOfFile {
                tensor: name(),
                offset,
                bytes,
                data,
            });
        }
    }
    Ok(by_name)
}

impl<'a> Header<'a> {
    /// Size of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo<'a>] {
        &self.tensors
    }

    #[must_use]
    pub fn tensor_info(&self, name: &str) -> Option<TensorInfo<'a>> {
        self.by_name.get(name).map(|&index| self.tensors[index])
    }

    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'a>> {
        let info = self.tensor_info(name)?;
        let [cols, rest @ ..] = info.dims;
        Some(TensorView {
            name: info.name,
            ty: info.ty,
            rows: rest.iter().product(),
            cols,
            data: &self.data[info.part][info.offset..info.offset + info.bytes],
            runs: None,
        })
    }

    /// All keys, unordered.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.metadata.keys().copied()
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.get(key)
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// If the value is not an integer in range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.typed(key, "an integer of 32 bits", |value| {
            u32::try_from(value.as_u64()?).ok()
        })
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.typed(key, "a floating-point number", |value| {
            Some(value.as_f64()? as f32)
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "a boolean", |value| match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A short text, such as a name.
    ///
    /// # Errors
    /// If the value is not a string, not UTF-8, or too long for a name.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.text(key, MAX_STRING_BYTES)
    }

    /// A string as in [`str`](Self::str), with another limit.
    ///
    /// # Errors
    /// If the value is not a string, not UTF-8, or longer than `limit` bytes.
    pub fn text(&self, key: &str, limit: usize) -> Result<Option<&'a str>, GgufError> {
        self.typed(key, "a string", |value| match *value {
            Value::String(bytes) => Some(bytes),
            _ => None,
        })?
        .map(|bytes| utf8(bytes, key, limit))
        .transpose()
    }

    /// An array.
    ///
    /// # Errors
    /// If the value has another type.
    pub fn array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.typed(key, "an array", |value| match *value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// If the value has another type, or a string is not UTF-8 or too long.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        let Some(array) = self.array(key)? else {
            return Ok(None);
        };
        let string = |value| match value {
            Value::String(bytes) => utf8(bytes, key, MAX_ELEMENT_BYTES),
            other => Err(wrong_type(key, "an array of strings", &other)),
        };
        array
            .values()
            .map(string)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A required unsigned integer.
    ///
    /// # Errors
    /// If the key is missing; else those of [`Self::u32`].
    pub fn require_u32(&self, key: &str) -> Result<u32, GgufError> {
        self.u32(key)?
            .ok_or_else(|| GgufError::MissingKey(key.to_owned()))
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| wrong_type(key, expected, value))
    }
}

fn utf8<'a>(bytes: &'a [u8], key: &str, limit: usize) -> Result<&'a str, GgufError> {
    if bytes.len() > limit {
        return Err(GgufError::LongString {
            key: key.to_owned(),
            length: bytes.len(),
            limit,
        });
    }
    std::str::from_utf8(bytes).map_err(|_| GgufError::Utf8 { at: key.to_owned() })
}

pub(super) fn wrong_type(key: &str, expected: &'static str, found: &Value<'_>) -> GgufError {
    GgufError::WrongType {
        key: key.to_owned(),
        expected,
        found: found.describe(),
    }
}

/// ggml's names for the types that are not in [`TensorType`], for error messages.
fn foreign_type_name(number: u32) -> &'static str {
    match number {
        9 => "Q8_1",
        15 => "Q8_K",
        19 => "IQ1_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => "no type that this version knows",
    }
}
