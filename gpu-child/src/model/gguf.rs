//! GGUF v3: header, metadata, tensor table, and the mapped file
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! ```text
//! path ─ GgufFile::open ─ bytes ─ parse ─ Header ─┬─ metadata by key   (Value, Array)
//!                                                 └─ tensors by name   (TensorView)
//! ```
//!
//! A model may consist of [several files](mod@worker_orcd_ipc::model_parts): the first has the metadata, each has some
//! of the tensors.
//!
//! The file is untrusted. [`parse`] works on plain bytes, so that it can be fuzzed. It allocates no more than the file
//! could hold, and all its results lie inside those bytes. Names, strings, arrays and tensor data are slices of the
//! map, not copies.
//!
//! Deliberately absent: the meaning of keys and tensors (`config`, `weights`, `tokenizer_facts`).

mod cursor;
mod error;
mod header;
mod parts;
mod value;

pub use error::GgufError;
pub use header::{Header, TensorInfo, parse};
pub use value::{Array, Value, ValueType};

use memmap2::Mmap;
use nix::libc::{O_NOCTTY, O_NONBLOCK};
use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use worker_orcd_ipc::model_parts;
use worker_orcd_kernels::TensorType;

/// A model file, or all files of a model, open and mapped read-only.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    file: File,
    map: Mmap,
}

impl GgufFile {
    /// Opens and maps the file and its further parts, without reading them.
    ///
    /// # Errors
    /// [`GgufError::Io`] if one cannot be opened or mapped, or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let files: Result<_, _> = model_parts(path).iter().map(|it| open(it)).collect();
        Self::map(files?, path)
    }

    /// Maps open files. `path`: the name of the first in errors.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn map(files: Vec<File>, path: &Path) -> Result<Self, GgufError> {
        let parts = files.into_iter().map(|file| Part::map(file, path));
        Ok(Self {
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// The open files, for another mapping.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &File> {
        self.parts.iter().map(|part| &part.file)
    }

    /// Reads a part of a map again, from the file. No page of the map is touched, so none of it becomes memory of this
    /// process. A truncated file is an error here.
    ///
    /// # Errors
    /// If the file cannot be read, or ends earlier.
    ///
    /// # Panics
    /// If `bytes` are in no map, or `into` has another length.
    pub fn read_again(&self, bytes: &[u8], into: &mut [u8]) -> io::Result<()> {
        let has_it = |part: &&Part| part.map.as_ptr_range().contains(&bytes.as_ptr());
        let part = self.parts.iter().find(has_it);
        let part = part.expect("bytes of this model");
        assert_eq!(into.len(), bytes.len());
        let offset = bytes.as_ptr().addr() - part.map.as_ptr().addr();
        part.file.read_exact_at(into, offset as u64)
    }

    /// Parses the header.
    ///
    /// # Errors
    /// Those of [`parse`], for any file; also if the files do not belong together.
    pub fn header(&self) -> Result<Header<'_>, GgufError> {
        let parts = self.parts.iter().map(|part| &part.map[..]);
        parts::join(parts)
    }
}

impl Part {
    fn map(file: File, path: &Path) -> Result<Self, GgufError> {
        let io = |source| named(path, source);
        check_type(file.metadata().map_err(io)?.file_type()).map_err(io)?;
        // SAFETY: the map is read-only and private to this process. If another process truncates the file, a later read
        // ends in SIGBUS: that kills this child, which is designed to be killed, and no value is ever read outside the
        // map.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self { file, map })
    }
}

fn open(path: &Path) -> Result<File, GgufError> {
    let io = |source| named(path, source);
    // Before the opening, because opening a device can activate it.
    check_type(fs::metadata(path).map_err(io)?.file_type()).map_err(io)?;
    OpenOptions::new()
        .read(true)
        // In case it has become a FIFO since: opening one waits for a writer.
        .custom_flags(O_NONBLOCK | O_NOCTTY)
        .open(path)
        .map_err(io)
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

/// A tensor in the mapped file. `rows * row_bytes == data.len()`, unless its rows lie in [`runs`](Self::runs).
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub ty: TensorType,
    /// Product of all dimensions but the fastest; 1 for a vector.
    pub rows: usize,
    /// Elements of one row, contiguous (`ne[0]`).
    pub cols: usize,
    pub data: &'a [u8],
    /// Places of the rows, if they are not consecutive.
    pub runs: Option<Runs>,
}

/// Runs of consecutive rows: one of several matrices that are fused within each expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// Rows of a run. Never zero.
    pub rows: usize,
    /// Bytes from the beginning of a run to that of the next.
    pub stride: usize,
}

impl<'a> TensorView<'a> {
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        match self.runs {
            None => self.data.len() / self.rows,
            Some(Runs { rows, stride }) => {
                let last = (self.rows / rows - 1) * stride;
                (self.data.len() - last) / rows
            }
        }
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    /// Rows `start .. start + len` as a tensor (one matrix of several fused ones); `None` if out of range, or if they are
    /// in several [runs](Self::runs).
    #[must_use]
    pub fn row_range(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        if len == 0 || end > self.rows {
            return None;
        }
        let row_bytes = self.row_bytes();
        let from = match self.runs {
            None => start * row_bytes,
            Some(Runs { rows, stride }) => {
                if start / rows != (end - 1) / rows {
                    return None;
                }
                start / rows * stride + start % rows * row_bytes
            }
        };
        Some(Self {
            rows: len,
            data: &self.data[from..from + len * row_bytes],
            runs: None,
            ..*self
        })
    }

    /// Rows `start .. start + len` of each of `experts` equal parts; `None` if they are out of a part's range.
    #[must_use]
    pub fn rows_of_each(&self, experts: usize, start: usize, len: usize) -> Option<Self> {
        let part = self.rows.checked_div(experts)?;
        let is_whole = self.runs.is_none() && part * experts == self.rows;
        if !is_whole || len == 0 || start.checked_add(len)? > part {
            return None;
        }
        let row_bytes = self.row_bytes();
        let stride = part * row_bytes;
        let end = (experts - 1) * stride + (start + len) * row_bytes;
        Some(Self {
            rows: experts * len,
            data: &self.data[start * row_bytes..end],
            runs: Some(Runs { rows: len, stride }),
            ..*self
        })
    }

    /// Elements `start .. start + len` of a vector (the bias of one of several fused matrices); `None` if they are out
    /// of range or do not begin and end at a block.
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

    /// The values of an F32 tensor. `None` for any other type, and for rows in [`runs`](Self::runs).
    #[must_use]
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.ty == TensorType::F32 && self.runs.is_none()).then(|| {
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
