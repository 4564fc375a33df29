//! `W x` for one group of eight packed rows and any number of tokens.
//!
//! Quantized weights meet quantized activations: per block of 32 an exact integer dot, then
//! `acc = fma(dot, scale * d, acc)` and, for types with an offset, `acc = fma(min, sum, acc)`, blocks in order; for
//! types with sub-blocks of 16 both for one half and then for the other. Float weights meet `f32` activations: two
//! sums, of the even and of the odd columns, added at the end. Either way a (row, token) pair has accumulators of its
//! own, so a result does not depend on other rows or tokens of the call.
//!
//! Bytes moved per group: the packed weights once for every tile of tokens (they stay in the first-level cache in
//! between), and the activations once.

use super::isa::Isa;
use super::packed::{PackedMatrix, ROWS};
use super::quantize::{BlockMeta, Q_BLOCK};
use crate::TensorType;

#[cfg(target_arch = "x86_64")]
mod avx2_float;
#[cfg(target_arch = "x86_64")]
mod avx2_quant;
mod portable;

/// Tokens computed at once, of the remaining ones. Eight share the unpacking of a quantized block; float weights need
/// two registers a token, of which eight would not fit.
fn tile(ty: TensorType, left: usize) -> usize {
    match left {
        8.. if Activations::is_quantized(ty) => 8,
        4.. => 4,
        _ => left,
    }
}

/// Input rows of a matmul, token after token. Only the form that the weights need must be valid:
/// [`is_quantized`](Activations::is_quantized).
#[derive(Debug, Clone, Copy)]
pub struct Activations<'a> {
    pub cols: usize,
    /// `[tokens, cols]`.
    pub values: &'a [f32],
    /// `[tokens, cols]`.
    pub q: &'a [i8],
    /// `[tokens, cols / 32]`.
    pub meta: &'a [BlockMeta],
}

impl<'a> Activations<'a> {
    /// True for types with weights that read `q` and `meta` (else `values`).
    #[must_use]
    pub fn is_quantized(ty: TensorType) -> bool {
        !matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
    }

    /// Tokens `first .. first + count`, in the form that `ty` reads.
    fn tokens(&self, ty: TensorType, first: usize, count: usize) -> Self {
        let (cols, blocks) = (self.cols, self.cols / Q_BLOCK);
        let none = Self {
            cols,
            values: &[],
            q: &[],
            meta: &[],
        };
        if Self::is_quantized(ty) {
            let q = &self.q[first * cols..][..count * cols];
            Self {
                q,
                meta: &self.meta[first * blocks..][..count * blocks],
                ..none
            }
        } else {
            Self {
                values: &self.values[first * cols..][..count * cols],
                ..none
            }
        }
    }
}

/// Rows `8 group ..` of `weights` times tokens `first ..` of `x`, one `[f32; 8]` a token. Rows past the matrix are
/// zero.
///
/// # Panics
/// If the group or a token does not exist, or `x` lacks the form that the weights need.
pub fn matmul_group(
    isa: Isa,
    weights: &PackedMatrix<'_>,
    group: usize,
    x: &Activations<'_>,
    first: usize,
    out: &mut [[f32; ROWS]],
) {
    let shape = weights.shape();
    assert_eq!(shape.cols, x.cols, "columns of weights and activations");
    let bytes = weights.group(group);
    let mut done = 0;
    while done < out.len() {
        let count = tile(shape.ty, out.len() - done);
        let x = x.tokens(shape.ty, first + done, count);
        let out = &mut out[done..done + count];
        done += count;
        #[cfg(target_arch = "x86_64")]
        if isa.is_avx2() {
            // SAFETY: the token proves AVX2, FMA and F16C; `bytes` is a whole group and `x`
            // holds exactly `out.len()` tokens of as many columns, cut out just above.
            unsafe { avx2(shape.ty, bytes, &x, out) };
            continue;
        }
        portable::tile(shape.ty, bytes, &x, out);
    }
    let _ = isa;
}

/// # Safety
/// AVX2, FMA and F16C are there; `group` is a whole group of `x.cols` columns of type `ty`; `x`
/// holds `out.len()` tokens in the form `ty` reads; `out` holds as many
/// tokens as [`tile`] gives.
#[cfg(target_arch = "x86_64")]
unsafe fn avx2(ty: TensorType, group: &[u8], x: &Activations<'_>, out: &mut [[f32; ROWS]]) {
    use avx2_float as float;
    use avx2_quant as quant;
    // SAFETY: handed on from the caller.
    unsafe {
        match ty {
            TensorType::F32 => float::tile::<float::F32>(group, x, out),
            TensorType::F16 => float::tile::<float::F16>(group, x, out),
            TensorType::BF16 => float::tile::<float::Bf16>(group, x, out),
            TensorType::Q8_0 => quant::tile::<quant::Q8_0>(group, x, out),
            TensorType::Q4_0 => quant::tile::<quant::Q4_0>(group, x, out),
            TensorType::Q4_1 => quant::tile::<quant::Q4_1>(group, x, out),
            TensorType::Q5_0 => quant::tile::<quant::Q5_0>(group, x, out),
            TensorType::Q5_1 => quant::tile::<quant::Q5_1>(group, x, out),
            TensorType::Q4_K => quant::tile::<quant::Q4K>(group, x, out),
            TensorType::Q5_K => quant::tile::<quant::Q5K>(group, x, out),
            TensorType::Q6_K => quant::tile::<quant::Q6K>(group, x, out),
            TensorType::Q2_K => quant::tile::<quant::Q2K>(group, x, out),
            TensorType::Q3_K => quant::tile::<quant::Q3K>(group, x, out),
            TensorType::IQ4_NL => quant::tile::<quant::Iq4Nl>(group, x, out),
            TensorType::IQ4_XS => quant::tile::<quant::Iq4Xs>(group, x, out),
            TensorType::IQ3_S => quant::tile::<quant::Iq3S>(group, x, out),
            TensorType::IQ3_XXS => quant::tile::<quant::Iq3Xxs>(group, x, out),
            TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S => {
                quant::tile::<quant::Iq2>(group, x, out);
            }
            TensorType::MXFP4 => quant::tile::<quant::Mxfp4>(group, x, out),
        }
    }
}
