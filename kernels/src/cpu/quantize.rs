//! Activations as blocks of 32 signed bytes with a scale, computed once for each matmul input.
//!
//! Each block is independent, so that a token's bytes do not depend on its neighbours: `d = max|x| / 127`,
//! `q = round(x / d)` (half to even). The block's sums are stored too, because weights with an offset
//! (`w = scale * code + min`) need `min * sum(x)`.
//!
//! A NaN or an infinity makes `d` NaN: it must reach the logits, where it is a fault, and not be rounded to an ordinary
//! integer here.

use super::isa::Isa;

/// Elements in a block.
pub const Q_BLOCK: usize = 32;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct BlockMeta {
    pub d: f32,
    /// `d` times the sum of the 32 bytes.
    pub sum: f32,
    /// The same over the first and over the last 16 bytes, for types with sub-blocks of 16.
    pub half_sums: [f32; 2],
}

/// Quantizes one row.
///
/// # Panics
/// If the row is not a whole number of blocks or the outputs do not match it.
pub fn quantize_row(isa: Isa, x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
    assert!(
        x.len() == q.len() && x.len() == meta.len() * Q_BLOCK,
        "sizes of a quantized row"
    );
    let blocks = x.chunks_exact(Q_BLOCK).zip(q.chunks_exact_mut(Q_BLOCK));
    for ((x, q), meta) in blocks.zip(meta) {
        #[cfg(target_arch = "x86_64")]
        if isa.is_avx2() {
            // SAFETY: the token proves AVX2; both slices hold 32 elements.
            *meta = unsafe { avx2::block(x, q) };
            continue;
        }
        *meta = portable(x, q);
    }
    let _ = isa;
}

fn portable(x: &[f32], q: &mut [i8]) -> BlockMeta {
    let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if !x.iter().all(|v| v.is_finite()) {
        q.fill(0);
        return BlockMeta {
            d: f32::NAN,
            sum: f32::NAN,
            half_sums: [f32::NAN; 2],
        };
    }
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    for (q, &x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round_ties_even() as i8;
    }
    let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
    block_meta(max, sum(&q[..16]), sum(&q[16..]))
}

#[inline(always)]
fn block_meta(max: f32, first: i32, second: i32) -> BlockMeta {
    let d = max / 127.0;
    BlockMeta {
        d,
        sum: d * (first + second) as f32,
        half_sums: [d * first as f32, d * second as f32],
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::BlockMeta;
    use std::arch::x86_64::*;

    /// Quantizes one block; the same bits as the portable body.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub unsafe fn block(x: &[f32], q: &mut [i8]) -> BlockMeta {
        // SAFETY: the caller passes 32 values: four loads of eight.
        let v: [__m256; 4] =
            std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) });
        let magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFF_FFFF));
        let infinity = _mm256_set1_ps(f32::INFINITY);
        let mut max = _mm256_setzero_ps();
        let mut finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
        for v in v {
            let abs = _mm256_and_ps(v, magnitude);
            max = _mm256_max_ps(max, abs);
            finite = _mm256_and_ps(finite, _mm256_cmp_ps::<_CMP_LT_OQ>(abs, infinity));
        }
        if _mm256_movemask_ps(finite) != 0xFF {
            q.fill(0);
            return BlockMeta {
                d: f32::NAN,
                sum: f32::NAN,
                half_sums: [f32::NAN; 2],
            };
        }
        let max = horizontal_max(max);
        let inverse = _mm256_set1_ps(if max > 0.0 { 127.0 / max } else { 0.0 });
        let i = v.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)));
        let first = horizontal_sum(_mm256_add_epi32(i[0], i[1]));
        let second = horizontal_sum(_mm256_add_epi32(i[2], i[3]));
        let words = [
            _mm256_packs_epi32(i[0], i[1]),
            _mm256_packs_epi32(i[2], i[3]),
        ];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        // Packing works in 128-bit halves and leaves groups of four bytes out of order.
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
        // SAFETY: the caller passes 32 bytes.
        unsafe { _mm256_storeu_si256(q.as_mut_ptr().cast(), bytes) };
        super::block_meta(max, first, second)
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn horizontal_max(v: __m256) -> f32 {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn horizontal_sum(v: __m256i) -> i32 {
        let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
        _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<1>(v)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Noise;

    fn quantized(isa: Isa, x: &[f32]) -> (Vec<i8>, Vec<BlockMeta>) {
        let mut q = vec![99; x.len()];
        let mut meta = vec![BlockMeta::default(); x.len() / Q_BLOCK];
        quantize_row(isa, x, &mut q, &mut meta);
        (q, meta)
    }

    #[test]
    fn every_body_gives_the_same_bits() {
        let mut noise = Noise::new(1);
        for magnitude in [1e-30, 1e-3, 1.0, 7e4, 1e30] {
            let x = noise.values(256, magnitude);
            let expected = quantized(Isa::portable(), &x);
            for isa in Isa::all() {
                assert_eq!(quantized(isa, &x), expected, "{isa:?} at {magnitude}");
            }
        }
    }

    #[test]
    fn a_value_is_off_by_at_most_half_a_step() {
        let x = Noise::new(2).values(64, 3.0);
        let (q, meta) = quantized(Isa::detect(), &x);
        for (i, (&x, &q)) in x.iter().zip(&q).enumerate() {
            let d = meta[i / 32].d;
            assert!((x - d * f32::from(q)).abs() <= 0.501 * d);
        }
        for (b, meta) in meta.iter().enumerate() {
            let sum = |from: usize| {
                q[32 * b + from..][..16]
                    .iter()
                    .map(|&q| f32::from(q))
                    .sum::<f32>()
            };
            assert_eq!(meta.half_sums, [meta.d * sum(0), meta.d * sum(16)]);
            assert_eq!(meta.sum, meta.d * (sum(0) + sum(16)));
        }
    }

    #[test]
    fn zeros_stay_zero_and_what_is_not_finite_poisons_its_block() {
        for isa in Isa::all() {
            assert_eq!(
                quantized(isa, &[0.0; 32]),
                (vec![0; 32], vec![BlockMeta::default()])
            );
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 13, 31] {
                    let mut x = [1.0; 64];
                    x[at] = bad;
                    let (_, meta) = quantized(isa, &x);
                    assert!(meta[0].d.is_nan() && meta[0].sum.is_nan());
                    assert!(meta[1].d.is_finite());
                }
            }
        }
    }
}
