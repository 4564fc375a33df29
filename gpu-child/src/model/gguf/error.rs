//! Errors of a GGUF file. Every variant names the affected key or tensor.

use std::path::PathBuf;
use thiserror::Error;
use worker_orcd_ipc::MAX_MODEL_PARTS;

#[derive(Debug, Error)]
pub enum GgufError {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("not a GGUF file: it begins with {0:02x?}")]
    NotGguf([u8; 4]),
    #[error("GGUF version {0} is not supported; only version 3 is")]
    Version(u32),
    #[error("the file was written for big-endian machines")]
    BigEndian,
    #[error("{at}: the file ends in the middle of it: {needed} bytes needed, {left} left")]
    Truncated { at: String, needed: u64, left: u64 },
    #[error("{at}: {count} entries are announced, but only {left} bytes of the file are left")]
    Count { at: String, count: u64, left: u64 },
    #[error("{at}: a name of {length} bytes; at most {limit} are allowed")]
    LongName { at: String, length: u64, limit: u64 },
    #[error("key {key}: a string of {length} bytes; at most {limit} are allowed")]
    LongString {
        key: String,
        length: usize,
        limit: usize,
    },
    #[error("{at}: not valid UTF-8")]
    Utf8 { at: String },
    #[error("key {key}: value type {number} does not exist")]
    ValueType { key: String, number: u32 },
    #[error("key {key}: arrays are nested more than {limit} deep")]
    Depth { key: String, limit: u32 },
    #[error("key {0} occurs twice")]
    DuplicateKey(String),
    #[error("file {number} of the model: {source}")]
    Part {
        /// Number of the file, from 1.
        number: usize,
        source: Box<GgufError>,
    },
    #[error(
        "it calls itself file {said} of {said_of} of a model, and is taken for file {number} of {of}: a model in several \
         files is named by the first, …-00001-of-{said_of:05}.gguf, beside which the others lie, {most} at most",
        most = MAX_MODEL_PARTS
    )]
    OtherPart {
        number: usize,
        of: usize,
        said: u64,
        said_of: u64,
    },
    #[error("the files of the model have {found} tensors, and file {number} says {said}")]
    TensorsOfParts {
        number: usize,
        found: usize,
        said: u64,
    },
    #[error("file {number} is of another model than the first one: {key} is not the same")]
    OtherModel { number: usize, key: String },
    #[error("tensor {0} occurs twice")]
    DuplicateTensor(String),
    #[error("key {0} is missing")]
    MissingKey(String),
    #[error("key {key}: {expected} expected, {found} found")]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("general.alignment is {0}; it must be a power of two")]
    Alignment(u64),
    #[error("tensor {tensor}: {n_dims} dimensions; 1 to 4 are allowed")]
    Dimensions { tensor: String, n_dims: u32 },
    #[error("tensor {tensor}: dimensions {dims:?} are empty or overflow")]
    Shape { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor}: rows of {cols} elements are no whole number of {ty} blocks")]
    Block {
        tensor: String,
        ty: &'static str,
        cols: u64,
    },
    #[error(
        "tensor {tensor}: type {number} ({name}) is not supported: there are no products of it"
    )]
    TensorType {
        tensor: String,
        number: u32,
        name: &'static str,
    },
    #[error("tensor {tensor}: offset {offset} is not aligned to {alignment}")]
    Misaligned {
        tensor: String,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "tensor {tensor}: {bytes} bytes at offset {offset} reach past the {data} bytes of data"
    )]
    OutOfFile {
        tensor: String,
        offset: u64,
        bytes: u64,
        data: u64,
    },
}
