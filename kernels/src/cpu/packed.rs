//! Weights as they lie in memory: eight rows interleaved.
//!
//! A *group* is eight consecutive rows (the last one padded with rows of zeros). Inside a group
//! the blocks of 32 columns follow each other, and each block holds, for all eight rows:
//!
//! ```text
//! legacy   d f16[8]  (m f16[8])  (fifth bits 32 B)  codes; IQ4_NL as Q4_0
//! MXFP4    e u8[8]  codes
//! Q2_K     every 8 blocks: d f16[8] dmin f16[8]; every block: scale and min as nibbles u8[8]
//!          (first 16 columns) u8[8] (last 16), codes of two bits (64 B)
//! Q3_K     every 8 blocks: d f16[8]; every block: sc i8[8] (first 16 columns) i8[8] (last 16)
//!          codes. IQ4_XS, IQ3 and IQ2 the same, with codes that stand for values of a table
//! Q4_K     every 8 blocks: d f16[8] dmin f16[8]; every block: sc u8[8] m u8[8] codes
//! Q5_K     the same with the fifth bits before the codes
//! Q6_K     every 8 blocks: d f16[8]; every block: sc i8[8] (first 16 columns) i8[8] (last 16)
//!          codes, then the high two bits (64 B)
//! floats   for every column: the values of the eight rows
//! ```
//!
//! Codes come in *quads*: quad `j` is columns `4j .. 4j + 4` of all eight rows, byte `4r + i` for
//! row `r` and column `4j + i`, which is one 32-byte register whose 32-bit lane is a row. Four-bit
//! codes put quad `j` in the low and quad `j + 4` in the high nibbles of register `j`. Bit `j` of
//! a fifth-bit byte belongs to quad `j`; bits `2f ..` of byte `b` of high-bit register `h` to
//! quad `4h + f`; so do the codes of two bits.
//!
//! Every code and scale of the file is kept as it is. Types grow whose packed 6-bit scales are
//! spread: Q4_K and Q5_K (2.8 % and 2.3 %) and IQ4_XS (7.4 %). Q3_K, IQ3 and IQ2 take as much as
//! IQ4_XS, 4.6 bits a weight: from a third more than in the file (Q3_K, IQ3_S) to 2.2 times as much
//! (IQ2_XXS).

use crate::TensorType;
use crate::reference::dequantize::grid;
use half::{bf16, f16};

mod pack;
pub(crate) mod unpack;

/// Rows in a group: the 32-bit lanes of a 256-bit register.
pub const ROWS: usize = 8;

/// Types that lie as Q3_K does.
pub(crate) fn has_scales_of_sixteen(ty: TensorType) -> bool {
    matches!(ty, TensorType::Q3_K | TensorType::IQ4_XS) || grid::step(ty).is_some()
}

/// Size and type of a packed matrix, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedShape {
    pub ty: TensorType,
    pub rows: usize,
    pub cols: usize,
}

impl PackedShape {
    #[must_use]
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// Bytes of one group.
    ///
    /// # Panics
    /// When `cols` is no whole number of blocks.
    #[must_use]
    pub fn group_bytes(&self) -> usize {
        let blocks = self.cols / self.ty.block_elements();
        assert_eq!(blocks * self.ty.block_elements(), self.cols, "whole blocks");
        blocks
            * match self.ty {
                TensorType::Q4_K => 32 + 8 * 144,
                TensorType::Q5_K => 32 + 8 * 176,
                ty if has_scales_of_sixteen(ty) => 16 + 8 * 144,
                other => ROWS * other.block_bytes(),
            }
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        self.groups() * self.group_bytes()
    }

    /// Packs group `group` out of `source`, the whole matrix as the file holds it.
    ///
    /// # Panics
    /// When `source` or `out` has another size than the shape says.
    pub fn pack_group(&self, source: &[u8], group: usize, out: &mut [u8]) {
        let row_bytes = self.ty.row_bytes(self.cols).expect("whole blocks");
        assert_eq!(source.len(), self.rows * row_bytes, "bytes of the source");
        assert_eq!(out.len(), self.group_bytes(), "bytes of a group");
        let row = |r: usize| (r < self.rows).then(|| &source[r * row_bytes..][..row_bytes]);
        pack::group(
            self.ty,
            &std::array::from_fn(|r| row(group * ROWS + r)),
            out,
        );
    }

    /// Packs everything, for tests and small matrices.
    #[must_use]
    pub fn pack(&self, source: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.bytes()];
        for (group, out) in out.chunks_exact_mut(self.group_bytes()).enumerate() {
            self.pack_group(source, group, out);
        }
        out
    }
}

/// A packed matrix and its bytes.
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    shape: PackedShape,
    group_bytes: usize,
    data: &'a [u8],
}

impl<'a> PackedMatrix<'a> {
    /// # Panics
    /// When `data` has another size than the shape says.
    #[must_use]
    pub fn new(shape: PackedShape, data: &'a [u8]) -> Self {
        assert_eq!(data.len(), shape.bytes(), "bytes of a packed matrix");
        Self {
            shape,
            group_bytes: shape.group_bytes(),
            data,
        }
    }

    #[must_use]
    pub fn shape(&self) -> PackedShape {
        self.shape
    }

    pub(crate) fn group(&self, group: usize) -> &'a [u8] {
        &self.data[group * self.group_bytes..][..self.group_bytes]
    }

    /// A row as `f32`: the same bits as [`dequantize_row`](crate::dequantize_row) gives for the
    /// file's row. This is the embedding lookup.
    ///
    /// # Panics
    /// When the row does not exist or `out` is no row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.shape.rows && out.len() == self.shape.cols,
            "row of the matrix"
        );
        let (group, lane) = (self.group(row / ROWS), row % ROWS);
        let of = |width: usize, k: usize| &group[(k * ROWS + lane) * width..][..width];
        match self.shape.ty {
            TensorType::F32 => fill(out, |k| {
                let b = of(4, k);
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }),
            TensorType::F16 => {
                fill(out, |k| {
                    f16::from_le_bytes([of(2, k)[0], of(2, k)[1]]).to_f32()
                });
            }
            TensorType::BF16 => {
                fill(out, |k| {
                    bf16::from_le_bytes([of(2, k)[0], of(2, k)[1]]).to_f32()
                });
            }
            ty => {
                for (b, out) in out.chunks_exact_mut(32).enumerate() {
                    unpack::lane(ty, unpack::block(ty, group, b), lane, out);
                }
            }
        }
    }
}

fn fill(out: &mut [f32], value: impl Fn(usize) -> f32) {
    for (k, out) in out.iter_mut().enumerate() {
        *out = value(k);
    }
}
