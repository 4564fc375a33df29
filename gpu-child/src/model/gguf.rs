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
use nix::libc::{O_NOCTTY, O_NONBLOCK};
use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use worker_orcd_kernels::TensorType;

/// A model file, open and mapped read-only.
#[derive(Debug)]
pub struct GgufFile {
    file: File,
    map: Mmap,
}

impl GgufFile {
    /// Opens and maps the file; nothing of it is read yet.
    ///
    /// # Errors
    /// [`GgufError::Io`] when it cannot be opened or mapped, or is no regular file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| named(path, source);
        // First, because to open a device can be to set it going.
        check_type(fs::metadata(path).map_err(io)?.file_type()).map_err(io)?;
        let file = OpenOptions::new()
            .read(true)
            // In case it has become a FIFO since: those wait for a writer.
            .custom_flags(O_NONBLOCK | O_NOCTTY)
            .open(path)
            .map_err(io)?;
        Self::map(file, path)
    }

    /// Maps a file that is open already; `path` is what it is called in errors.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn map(file: File, path: &Path) -> Result<Self, GgufError> {
        let io = |source| named(path, source);
        check_type(file.metadata().map_err(io)?.file_type()).map_err(io)?;
        // SAFETY: the map is read-only and private to this process. Somebody who truncates the
        // file under it makes a later read end in SIGBUS: that kills this child, which is made
        // to be killed, and no value is ever read outside the map.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self { file, map })
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Reads a part of [`bytes`](Self::bytes) from the file. Not a page of the map is touched, so none of it
    /// becomes memory of this process; a file that was cut is an error here.
    ///
    /// # Errors
    /// When the file cannot be read, or ends before.
    ///
    /// # Panics
    /// When `part` is not in the map, or `into` is not as long.
    pub fn read_again(&self, part: &[u8], into: &mut [u8]) -> io::Result<()> {
        assert!(self.map.as_ptr_range().contains(&part.as_ptr()) && into.len() == part.len());
        let offset = part.as_ptr().addr() - self.map.as_ptr().addr();
        self.file.read_exact_at(into, offset as u64)
    }

    /// # Errors
    /// As [`parse`].
    pub fn header(&self) -> Result<Header<'_>, GgufError> {
        parse(&self.map)
    }
}

/// The open file, for whoever maps it next.
impl AsFd for GgufFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn named(path: &Path, source: io::Error) -> GgufError {
    GgufError::Io {
        path: path.to_owned(),
        source,
    }
}

fn check_type(found: FileType) -> io::Result<()> {
    let what = match found {
        regular if regular.is_file() => return Ok(()),
        other if other.is_dir() => "a directory",
        other if other.is_fifo() => "a FIFO",
        other if other.is_socket() => "a socket",
        other if other.is_char_device() => "a character device",
        other if other.is_block_device() => "a block device",
        _ => "something else",
    };
    Err(io::Error::other(format!("{what}, not a regular file")))
}

/// A tensor in the mapped file. `rows * row_bytes == data.len()`.
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
