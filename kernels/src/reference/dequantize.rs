//! Rows of a GGUF tensor as `f32`.
//!
//! Block layouts and formulas: `ggml-common.h` (`block_q4_0` and its siblings) and
//! `ggml-quants.c` (`dequantize_row_*`) of <https://github.com/ggml-org/ggml>. Multi-byte fields
//! are little endian. Every product and sum is rounded to `f32` in ggml's order, so that the
//! result equals ggml's bit for bit.

use crate::TensorType;
use half::{bf16, f16};

pub mod grid;
mod grids;
mod small;

pub use small::{IQ4_VALUES, MXFP4_VALUES, e8m0_half};

/// Reads one row (or several contiguous ones).
///
/// # Panics
/// If `bytes` does not hold exactly `out.len()` elements of type `ty`.
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        ty.row_bytes(out.len()),
        Some(bytes.len()),
        "row of the wrong size"
    );
    let block: fn(&[u8], &mut [f32]) = match ty {
        TensorType::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => |b, y| y[0] = half_at(b, 0),
        TensorType::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q8_0 => q8_0,
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q4_K => q4_k,
        TensorType::Q5_K => q5_k,
        TensorType::Q6_K => q6_k,
        TensorType::Q2_K => small::q2_k,
        TensorType::Q3_K => small::q3_k,
        TensorType::IQ4_NL => small::iq4_nl,
        TensorType::IQ4_XS => small::iq4_xs,
        TensorType::MXFP4 => small::mxfp4,
        TensorType::IQ2_XXS => |b, y| grid::block(TensorType::IQ2_XXS, b, y),
        TensorType::IQ2_XS => |b, y| grid::block(TensorType::IQ2_XS, b, y),
        TensorType::IQ2_S => |b, y| grid::block(TensorType::IQ2_S, b, y),
        TensorType::IQ3_XXS => |b, y| grid::block(TensorType::IQ3_XXS, b, y),
        TensorType::IQ3_S => |b, y| grid::block(TensorType::IQ3_S, b, y),
    };
    let blocks = bytes.chunks_exact(ty.block_bytes());
    for (b, y) in blocks.zip(out.chunks_exact_mut(ty.block_elements())) {
        block(b, y);
    }
}

/// `{ f16 d; i8 qs[32] }`, `y = d q`.
fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (y, &q) in y.iter_mut().zip(&b[2..]) {
        *y = d * f32::from(q as i8);
    }
}

/// `{ f16 d; u8 qs[16] }`, `y = d (q - 8)`; low nibbles are the first half.
fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, &q) in b[2..].iter().enumerate() {
        y[i] = d * (f32::from(q & 15) - 8.0);
        y[i + 16] = d * (f32::from(q >> 4) - 8.0);
    }
}

/// `{ f16 d, m; u8 qs[16] }`, `y = d q + m`.
fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, &q) in b[4..].iter().enumerate() {
        y[i] = d * f32::from(q & 15) + m;
        y[i + 16] = d * f32::from(q >> 4) + m;
    }
}

/// `{ f16 d; u8 qh[4]; u8 qs[16] }`, `y = d (q - 16)`; bit `i` of `qh` is element `i`'s fifth.
fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, code) in five_bit_codes(&b[2..6], &b[6..]).into_iter().enumerate() {
        y[i] = d * (f32::from(code) - 16.0);
    }
}

/// `{ f16 d, m; u8 qh[4]; u8 qs[16] }`, `y = d q + m`.
fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for (i, code) in five_bit_codes(&b[4..8], &b[8..]).into_iter().enumerate() {
        y[i] = d * f32::from(code) + m;
    }
}

fn five_bit_codes(high: &[u8], low: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    std::array::from_fn(|i| {
        let nibble = if i < 16 {
            low[i] & 15
        } else {
            low[i - 16] >> 4
        };
        nibble | (((high >> i) & 1) as u8) << 4
    })
}

/// `{ f16 d, dmin; u8 scales[12]; u8 qs[128] }`, 8 sub-blocks of 32 with 6-bit scale and min:
/// `y = (d sc) q - (dmin m)`. Sub-blocks `2j` and `2j + 1` are the low and high nibbles of
/// `qs[32 j ..]`.
fn q4_k(b: &[u8], y: &mut [f32]) {
    for sub in 0..8 {
        let (scale, min) = k_scale_min(b, sub);
        for l in 0..32 {
            let code = (b[16 + 32 * (sub / 2) + l] >> (4 * (sub % 2))) & 15;
            y[32 * sub + l] = scale * f32::from(code) - min;
        }
    }
}

/// `{ f16 d, dmin; u8 scales[12]; u8 qh[32]; u8 qs[128] }`: as Q4_K, and bit `sub` of `qh[l]` is
/// the fifth bit.
fn q5_k(b: &[u8], y: &mut [f32]) {
    for sub in 0..8 {
        let (scale, min) = k_scale_min(b, sub);
        for l in 0..32 {
            let low = (b[48 + 32 * (sub / 2) + l] >> (4 * (sub % 2))) & 15;
            let code = low | ((b[16 + l] >> sub) & 1) << 4;
            y[32 * sub + l] = scale * f32::from(code) - min;
        }
    }
}

/// `get_scale_min_k4`: eight 6-bit scales and mins in 12 bytes, multiplied out.
fn k_scale_min(b: &[u8], sub: usize) -> (f32, f32) {
    let s = &b[4..16];
    let (scale, min) = if sub < 4 {
        (s[sub] & 63, s[sub + 4] & 63)
    } else {
        (
            s[sub + 4] & 15 | s[sub - 4] >> 6 << 4,
            s[sub + 4] >> 4 | s[sub] >> 6 << 4,
        )
    };
    (
        half_at(b, 0) * f32::from(scale),
        half_at(b, 2) * f32::from(min),
    )
}

/// `{ u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d }`, 16 sub-blocks of 16:
/// `y = (d sc) (q - 32)`. Each half of 128 elements is four runs of 32; run `r` has its low four
/// bits in the nibbles `r / 2` of `ql[32 (r % 2) ..]` and its high two in bits `2r` of `qh`.
fn q6_k(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
        let low = (b[64 * half + 32 * (run % 2) + l] >> (4 * (run / 2))) & 15;
        let high = (b[128 + 32 * half + l] >> (2 * run)) & 3;
        let scale = d * f32::from(b[192 + i / 16] as i8);
        *y = scale * (f32::from(low | high << 4) - 32.0);
    }
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; ty.block_elements()];
        dequantize_row(ty, bytes, &mut out);
        out
    }

    fn with_halves(halves: &[f32], rest: &[u8]) -> Vec<u8> {
        let halves = halves.iter().flat_map(|&h| f16::from_f32(h).to_le_bytes());
        halves.chain(rest.iter().copied()).collect()
    }

    #[test]
    fn nibbles_of_q4_fill_the_two_halves() {
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let y = row(TensorType::Q4_0, &with_halves(&[0.5], &codes));
        assert_eq!((y[0], y[15], y[16], y[31]), (-4.0, 3.5, 3.5, -4.0));
        let y = row(TensorType::Q4_1, &with_halves(&[0.5, 10.0], &codes));
        assert_eq!((y[0], y[15], y[16], y[31]), (10.0, 17.5, 17.5, 10.0));
    }

    #[test]
    fn fifth_bit_of_q5_is_indexed_by_element() {
        let mut rest = vec![0b0000_0010, 0, 0, 0b1000_0000];
        rest.extend([0u8; 16]);
        let y = row(TensorType::Q5_0, &with_halves(&[1.0], &rest));
        let high: Vec<usize> = (0..32).filter(|&i| y[i] == 0.0).collect();
        assert_eq!(high, [1, 31]);
        assert!(y.iter().all(|&v| v == 0.0 || v == -16.0));
        let y = row(TensorType::Q5_1, &with_halves(&[1.0, 2.0], &rest));
        assert_eq!((y[0], y[1], y[31]), (2.0, 18.0, 18.0));
    }

    #[test]
    fn k_scales_unpack_to_six_bits() {
        let mut b = with_halves(&[1.0, 1.0], &[0; 140]);
        // Sub-block 5: scale = low nibble of byte 9 and top bits of byte 1; min likewise from 9, 5.
        b[4 + 9] = 0xA3;
        b[4 + 1] = 0b1100_0000;
        b[4 + 5] = 0b0100_0000;
        assert_eq!(k_scale_min(&b, 5), (51.0, 26.0));
    }

    #[test]
    fn q6_k_runs_lie_where_ggml_puts_them() {
        let mut b = vec![0u8; 210];
        b[208..].copy_from_slice(&f16::from_f32(1.0).to_le_bytes());
        b[192..208].fill(1);
        b[64 + 32 + 3] = 0xF0; // second half, run 3, element 3: low bits
        b[128 + 32 + 3] = 0b1100_0000; // and its high bits
        let y = row(TensorType::Q6_K, &b);
        assert_eq!(y[128 + 96 + 3], 31.0);
        assert_eq!(y.iter().filter(|&&v| v == -32.0).count(), 255);
    }

    #[test]
    fn floats_pass_through() {
        assert_eq!(row(TensorType::F32, &1.5f32.to_le_bytes()), [1.5]);
        assert_eq!(
            row(TensorType::F16, &f16::from_f32(-2.25).to_le_bytes()),
            [-2.25]
        );
        assert_eq!(
            row(TensorType::BF16, &bf16::from_f32(3.0).to_le_bytes()),
            [3.0]
        );
    }
}
