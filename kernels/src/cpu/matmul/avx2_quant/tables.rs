//! Types with four-bit codes for signed bytes of a table: one shuffle looks up a quad.

use super::formats::{eight_bit, eight_bit_dot, halves, legacy, nibbles, two_scales, uniform};
use super::{Block, Format};
use crate::cpu::quantize::BlockMeta;
use crate::reference::dequantize::grid::{IQ2_LEVELS, IQ3_S_LEVELS, IQ3_XXS_LEVELS};
use crate::reference::dequantize::{IQ4_VALUES, MXFP4_VALUES};
use std::arch::x86_64::*;

/// 128 bytes of nibbles as eight quads of table values.
#[inline(always)]
unsafe fn values(p: *const u8, table: &[i8; 16]) -> [__m256i; 8] {
    // SAFETY: 128 bytes at `p`, guaranteed by every caller; the table is 16 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        nibbles(p).map(|codes| _mm256_shuffle_epi8(table, codes))
    }
}

legacy!(Iq4Nl, 144, eight_bit, |p| uniform(
    values(p.add(16), &IQ4_VALUES),
    halves(p),
    _mm256_setzero_ps()
));
legacy!(Mxfp4, 136, eight_bit, |p| uniform(
    values(p.add(8), &MXFP4_VALUES),
    powers_of_two(p),
    _mm256_setzero_ps()
));

/// `e8m0_half` of eight bytes.
#[inline(always)]
unsafe fn powers_of_two(p: *const u8) -> __m256 {
    // SAFETY: 8 bytes at `p`, guaranteed by every caller.
    unsafe {
        let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small))
    }
}

/// Types with scales of 16 columns: 8-bit numbers in units of `$step`.
macro_rules! scales_of_sixteen {
    ($name:ident, $table:expr, $step:expr) => {
        #[derive(Debug)]
        pub struct $name;
        impl Format for $name {
            const SUBS: usize = 8;
            const HEADER_BYTES: usize = 16;
            const BLOCK_BYTES: usize = 144;
            type Header = __m256;
            #[inline(always)]
            unsafe fn header(p: *const u8) -> __m256 {
                // SAFETY: 16 bytes, guaranteed by the caller.
                unsafe { _mm256_mul_ps(halves(p), _mm256_set1_ps($step)) }
            }
            #[inline(always)]
            unsafe fn block(p: *const u8, d: __m256) -> Block {
                // SAFETY: reads stay inside BLOCK_BYTES, guaranteed by the caller.
                unsafe {
                    Block {
                        quads: values(p.add(16), &$table),
                        scale: two_scales(p, d),
                        min: [_mm256_setzero_ps(); 2],
                    }
                }
            }
            #[inline(always)]
            unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
                // SAFETY: handed on from the caller.
                unsafe {
                    let d = _mm256_set1_ps(meta.d);
                    let first = _mm256_cvtepi32_ps(eight_bit_dot(b, a, 0, 4));
                    let second = _mm256_cvtepi32_ps(eight_bit_dot(b, a, 4, 4));
                    let acc = _mm256_fmadd_ps(first, _mm256_mul_ps(b.scale[0], d), acc);
                    _mm256_fmadd_ps(second, _mm256_mul_ps(b.scale[1], d), acc)
                }
            }
        }
    };
}

scales_of_sixteen!(Iq4Xs, IQ4_VALUES, 1.0);
scales_of_sixteen!(Iq3S, IQ3_S_LEVELS, 1.0);
scales_of_sixteen!(Iq3Xxs, IQ3_XXS_LEVELS, 0.25);
scales_of_sixteen!(Iq2, IQ2_LEVELS, 0.125);
