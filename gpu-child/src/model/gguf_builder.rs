//! Writer of small GGUF files, for tests and tools. Independent of the parser, on purpose: it writes valid and invalid
//! files alike.

use worker_orcd_kernels::TensorType;

/// A metadata value to write.
#[derive(Debug, Clone)]
pub enum Meta {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strings(Vec<String>),
    F32s(Vec<f32>),
    I32s(Vec<i32>),
}

impl From<u32> for Meta {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<f32> for Meta {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for Meta {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Meta {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}

#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    ty: u32,
    dims: Vec<u64>,
    data: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct GgufBuilder {
    version: u32,
    alignment: u64,
    metadata: Vec<(String, Meta)>,
    tensors: Vec<Tensor>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufBuilder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Adds the key, or replaces its value.
    #[must_use]
    pub fn meta(mut self, key: &str, value: impl Into<Meta>) -> Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn without_meta(mut self, key: &str) -> Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    /// Adds a tensor. `dims`: fastest first. The data is not checked against the type.
    #[must_use]
    pub fn tensor(mut self, name: &str, ty: TensorType, dims: &[u64], data: Vec<u8>) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self.push_tensor(name, ty as u32, dims, data)
    }

    #[must_use]
    pub fn tensor_f32(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let data = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.tensor(name, TensorType::F32, dims, data)
    }

    /// Adds a tensor with any type number, even beside one of the same name.
    #[must_use]
    pub fn push_tensor(mut self, name: &str, ty: u32, dims: &[u64], data: Vec<u8>) -> Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            ty,
            dims: dims.to_vec(),
            data,
        });
        self
    }

    #[must_use]
    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// Splits the file into `of` files, as `llama-gguf-split` does: the first has the metadata, each some of the
    /// tensors.
    #[must_use]
    pub fn parts(&self, of: usize) -> Vec<Self> {
        let tensors = &self.tensors;
        let of_each = tensors.len().div_ceil(of).max(1);
        let chunk = |number: usize| tensors.iter().skip(number * of_each).take(of_each).cloned();
        let part = |number: usize| {
            let begun = match number {
                0 => self.clone(),
                _ => Self::default(),
            };
            Self {
                tensors: chunk(number).collect(),
                ..begun
            }
            .meta("split.no", number as u32)
            .meta("split.count", of as u32)
            .meta("split.tensors.count", Meta::I32(tensors.len() as i32))
        };
        (0..of).map(part).collect()
    }

    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        out.extend_from_slice(&self.version.to_le_bytes());
        put_u64(&mut out, self.tensors.len() as u64);
        put_u64(&mut out, self.metadata.len() as u64);
        for (key, value) in &self.metadata {
            put_str(&mut out, key);
            put_meta(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_tensor_info(&mut out, tensor, offset);
            offset += (tensor.data.len() as u64).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
            out.extend_from_slice(&tensor.data);
        }
        out
    }
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_tensor_info(out: &mut Vec<u8>, tensor: &Tensor, offset: u64) {
    put_str(out, &tensor.name);
    put_u32(out, tensor.dims.len() as u32);
    for &dim in &tensor.dims {
        put_u64(out, dim);
    }
    put_u32(out, tensor.ty);
    put_u64(out, offset);
}

/// Writes a value; the type numbers are GGUF's.
fn put_meta(out: &mut Vec<u8>, value: &Meta) {
    match value {
        Meta::U32(value) => {
            put_u32(out, 4);
            put_u32(out, *value);
        }
        Meta::I32(value) => {
            put_u32(out, 5);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Meta::F32(value) => {
            put_u32(out, 6);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Meta::Bool(value) => {
            put_u32(out, 7);
            out.push(u8::from(*value));
        }
        Meta::Str(value) => {
            put_u32(out, 8);
            put_str(out, value);
        }
        Meta::U64(value) => {
            put_u32(out, 10);
            put_u64(out, *value);
        }
        Meta::Strings(values) => {
            put_array(out, 8, values.len());
            values.iter().for_each(|value| put_str(out, value));
        }
        Meta::F32s(values) => {
            put_array(out, 6, values.len());
            values
                .iter()
                .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        Meta::I32s(values) => {
            put_array(out, 5, values.len());
            values
                .iter()
                .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
    }
}

fn put_array(out: &mut Vec<u8>, element: u32, len: usize) {
    put_u32(out, 9);
    put_u32(out, element);
    put_u64(out, len as u64);
}
