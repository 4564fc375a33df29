//! GGUF v3: header, metadata, tensor table, and the mapped file they describe
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! ```text
//! path ─ GgufFile::open ─ bytes ─ parse ─ Header ─┬─ metadata by key   (Value, Array)
//!                                                 └─ tensors by name   (TensorView)
//! ```
//!
//! The file is untrusted. [`parse`] works on plain bytes, so that it can be fuzzed; it allocates
//! no more than the file could hold, and whatever it returns is inside those bytes. Nothing is
//! copied: names, strings, arrays and tensor data are slices of the map.
//!
//! Deliberately absent: what the keys and tensors mean (`config`, `weights`, `tokenizer_facts`).

mod cursor;
mod error;
mod header;
mod value;

pub use error::GgufError;
pub use header::{Header, TensorInfo, parse};
pub use value::{Array, Value, ValueType};

use memmap2::Mmap;
use std::fs::File;
use std::path::Path;
use worker_orcd_kernels::TensorType;

/// A model file, mapped read-only.
#[derive(Debug)]
pub struct GgufFile {
    map: Mmap,
}

impl GgufFile {
    /// Maps the file; nothing of it is read yet.
    ///
    /// # Errors
    /// [`GgufError::Io`] when it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        // SAFETY: the map is read-only and private to this process. Somebody who truncates the
        // file under it makes a later read end in SIGBUS: that kills this child, which is made
        // to be killed, and no value is ever read outside the map.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self { map })
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// # Errors
    /// As [`parse`].
    pub fn header(&self) -> Result<Header<'_>, GgufError> {
        parse(&self.map)
    }
}

/// One tensor in the mapped file. `rows * row_bytes == data.len()`.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub ty: TensorType,
    /// Slowest dimension product; 1 for a vector.
    pub rows: usize,
    /// Elements of one row, contiguous (`ne[0]`).
    pub cols: usize,
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.data.len() / self.rows
    }

    /// Rows `start .. start + len` as a tensor of their own (one matrix of several fused ones);
    /// `None` when they are not all there.
    #[must_use]
    pub fn row_range(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        if len == 0 || end > self.rows {
            return None;
        }
        let row_bytes = self.row_bytes();
        let data = &self.data[start * row_bytes..end * row_bytes];
        Some(Self {
            rows: len,
            data,
            ..*self
        })
    }

    /// Elements `start .. start + len` of a vector (the bias of one of several fused matrices);
    /// `None` when they are not all there or do not begin and end at a block.
    #[must_use]
    pub fn element_range(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        if self.rows != 1 || len == 0 || end > self.cols {
            return None;
        }
        let data = &self.data[self.ty.row_bytes(start)?..self.ty.row_bytes(end)?];
        Some(Self {
            cols: len,
            data,
            ..*self
        })
    }

    /// The values of an F32 tensor. `None` for any other type.
    #[must_use]
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.ty == TensorType::F32).then(|| {
            self.data
                .as_chunks::<4>()
                .0
                .iter()
                .map(|v| f32::from_le_bytes(*v))
                .collect()
        })
    }
}

#[cfg(test)]
mod tests;
