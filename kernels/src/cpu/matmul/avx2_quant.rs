//! Quantized weights: unsigned codes times signed activations by `vpmaddubsw`, eight rows at a time. No sum ever
//! crosses a register.
//!
//! One 32-bit broadcast of four activations meets one quad of weights (four columns of eight rows). Products of two
//! columns land in 16-bit lanes. The largest code limits the number of additions before these must be widened: 15
//! leaves room for all 8 quads of a block (8 · 2 · 15 · 128 = 30,720), 31 for four, 63 for two. Signed 8-bit weights
//! use `|w| · sign(a, w)` and are widened at once.
//!
//! The loop over blocks and the products are here; `formats` and `tables` read each type's blocks.

use super::Activations;
use crate::cpu::packed::ROWS;
use crate::cpu::quantize::{BlockMeta, Q_BLOCK};
use std::arch::x86_64::*;

mod formats;
mod tables;

pub use formats::*;
pub use tables::*;

/// A block of 32 columns of eight rows, ready to be multiplied.
#[derive(Clone, Copy)]
pub struct Block {
    quads: [__m256i; 8],
    /// Scales: one for each half in types with sub-blocks of 16, else both the same.
    scale: [__m256; 2],
    min: [__m256; 2],
}

/// A quantized type in the layout of a packed group.
pub trait Format {
    /// Blocks that share a header.
    const SUBS: usize;
    const HEADER_BYTES: usize;
    const BLOCK_BYTES: usize;
    type Header: Copy;
    /// # Safety
    /// AVX2 and F16C are there, and `HEADER_BYTES` bytes at `p`.
    unsafe fn header(p: *const u8) -> Self::Header;
    /// # Safety
    /// AVX2 and F16C are there, and `BLOCK_BYTES` bytes at `p`.
    unsafe fn block(p: *const u8, header: Self::Header) -> Block;
    /// # Safety
    /// AVX2 and FMA are there, and 32 bytes at `a`.
    unsafe fn accumulate(acc: __m256, block: &Block, a: *const i8, meta: &BlockMeta) -> __m256;
}

/// # Safety
/// As for [`super::avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn tile<F: Format>(group: &[u8], x: &Activations<'_>, out: &mut [[f32; ROWS]]) {
    // SAFETY: the number of tokens is the length of `out`, as `fixed` demands.
    unsafe {
        match out.len() {
            1 => fixed::<F, 1>(group, x, out),
            2 => fixed::<F, 2>(group, x, out),
            3 => fixed::<F, 3>(group, x, out),
            4 => fixed::<F, 4>(group, x, out),
            _ => fixed::<F, 8>(group, x, out),
        }
    }
}

/// # Safety
/// As for [`tile`], with exactly `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fixed<F: Format, const T: usize>(
    group: &[u8],
    x: &Activations<'_>,
    out: &mut [[f32; ROWS]],
) {
    let blocks = x.cols / Q_BLOCK;
    let headers = blocks / F::SUBS;
    assert!(out.len() == T && x.q.len() == T * x.cols && x.meta.len() == T * blocks);
    assert_eq!(
        group.len(),
        headers * (F::HEADER_BYTES + F::SUBS * F::BLOCK_BYTES)
    );
    let mut acc = [_mm256_setzero_ps(); T];
    let mut p = group.as_ptr();
    let (q, meta) = (x.q.as_ptr(), x.meta.as_ptr());
    for header_index in 0..headers {
        // SAFETY: the group holds `headers` headers of `SUBS` blocks each, asserted above, and
        // `p` walks over exactly those; `q` and `meta` hold `blocks` blocks for each of T tokens.
        // The prefetch may run past the group: it is a hint that never faults.
        unsafe {
            let header = F::header(p);
            p = p.add(F::HEADER_BYTES);
            for sub in 0..F::SUBS {
                let b = header_index * F::SUBS + sub;
                if T == 1 {
                    prefetch(p, F::BLOCK_BYTES);
                }
                let block = F::block(p, header);
                p = p.add(F::BLOCK_BYTES);
                for (t, acc) in acc.iter_mut().enumerate() {
                    let a = q.add(t * x.cols + b * Q_BLOCK);
                    *acc = F::accumulate(*acc, &block, a, &*meta.add(t * blocks + b));
                }
            }
        }
    }
    for (t, out) in out.iter_mut().enumerate() {
        // SAFETY: `out` is eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc[t]) };
    }
}

/// Bytes ahead at which decoding prefetches weights: past the range of the hardware's own prefetcher at a page
/// boundary, and little enough to stay in the first-level cache.
const PREFETCH_BYTES: usize = 1536;

#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a hint, which may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH_BYTES + 64 * line).cast()) };
    }
}

// === products ===

/// Four activations against the quad of the same columns: sums of two products, 16 bits each.
#[inline(always)]
unsafe fn products(block: &Block, a: *const i8, quad: usize) -> __m256i {
    // SAFETY: 32 bytes at `a`, guaranteed by every caller, and quad < 8.
    unsafe {
        let four = a.cast::<i32>().add(quad).read_unaligned();
        _mm256_maddubs_epi16(block.quads[quad], _mm256_set1_epi32(four))
    }
}

/// Quads `from .. from + count`, added in 16 bits, then widened to one sum a row.
#[inline(always)]
unsafe fn dot(block: &Block, a: *const i8, from: usize, count: usize) -> __m256i {
    // SAFETY: handed on from the caller.
    unsafe {
        let mut sum = products(block, a, from);
        for quad in from + 1..from + count {
            sum = _mm256_add_epi16(sum, products(block, a, quad));
        }
        _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
    }
}

/// Adds a dot and the share of the offset.
#[inline(always)]
unsafe fn scaled(
    acc: __m256,
    dot: __m256i,
    scale: __m256,
    min: __m256,
    d: f32,
    sum: f32,
) -> __m256 {
    // SAFETY: arithmetic only; AVX2 and FMA are guaranteed by every caller.
    unsafe {
        let scale = _mm256_mul_ps(scale, _mm256_set1_ps(d));
        let acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc);
        _mm256_fmadd_ps(min, _mm256_set1_ps(sum), acc)
    }
}

#[inline(always)]
unsafe fn four_bit(acc: __m256, block: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
    // SAFETY: handed on from the caller.
    unsafe {
        scaled(
            acc,
            dot(block, a, 0, 8),
            block.scale[0],
            block.min[0],
            meta.d,
            meta.sum,
        )
    }
}

#[inline(always)]
unsafe fn five_bit(acc: __m256, block: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
    // SAFETY: handed on from the caller.
    unsafe {
        let dot = _mm256_add_epi32(dot(block, a, 0, 4), dot(block, a, 4, 4));
        scaled(acc, dot, block.scale[0], block.min[0], meta.d, meta.sum)
    }
}
