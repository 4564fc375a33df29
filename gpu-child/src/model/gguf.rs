//! GGUF v3: header, metadata, tensor table (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

use worker_orcd_kernels::TensorType;

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
