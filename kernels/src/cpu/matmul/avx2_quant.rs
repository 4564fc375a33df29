//! Quantized weights: unsigned codes times signed activations by `vpmaddubsw`, eight rows at a
//! time, no sum ever crossing a register.
//!
//! One 32-bit broadcast of four activations meets one quad of weights (four columns of eight
//! rows). Products of two columns land in 16-bit lanes; how many of those may be added before
//! they must be widened follows from the largest code: 15 leaves room for all 8 quads of a block
//! (8 · 2 · 15 · 128 = 30,720), 31 for four, 63 for two. Signed 8-bit weights use
//! `|w| · sign(a, w)` and are widened at once.

use super::Activations;
use crate::cpu::packed::ROWS;
use crate::cpu::quantize::{BlockMeta, Q_BLOCK};
use std::arch::x86_64::*;

/// One block of 32 columns of eight rows, ready to be multiplied.
#[derive(Clone, Copy)]
pub struct Block {
    quads: [__m256i; 8],
    /// For Q6_K one for each half, else both the same.
    scale: [__m256; 2],
    min: [__m256; 2],
}

/// A quantized type as it lies in a packed group.
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
            _ => fixed::<F, 4>(group, x, out),
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

/// How far ahead decoding asks for weights: past what the hardware's own prefetcher covers at a
/// page boundary, and little enough to stay in the first-level cache.
const PREFETCH_BYTES: usize = 1536;

#[inline(always)]
unsafe fn prefetch(p: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a hint, which may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH_BYTES + 64 * line).cast()) };
    }
}

// === loads ===

#[inline(always)]
unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: 16 bytes at `p`, promised by every caller.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

#[inline(always)]
unsafe fn load(p: *const u8, register: usize) -> __m256i {
    // SAFETY: `32 * (register + 1)` bytes at `p`, promised by every caller.
    unsafe { _mm256_loadu_si256(p.add(32 * register).cast()) }
}

/// 128 bytes of nibbles as eight quads.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> [__m256i; 8] {
    // SAFETY: 128 bytes at `p`, promised by every caller.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let raw = [load(p, 0), load(p, 1), load(p, 2), load(p, 3)];
        let low = raw.map(|v| _mm256_and_si256(v, mask));
        let high = raw.map(|v| _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask));
        [
            low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
        ]
    }
}

/// 32 bytes of fifth bits, then 128 bytes of nibbles.
#[inline(always)]
unsafe fn fives(p: *const u8) -> [__m256i; 8] {
    // SAFETY: 160 bytes at `p`, promised by every caller.
    unsafe {
        let fifth = load(p, 0);
        let mut quads = nibbles(p.add(32));
        let bit = _mm256_set1_epi8(16);
        // Bit j moves to bit 4; what a 16-bit shift drags in from the neighbour is masked off.
        let moved = [
            _mm256_slli_epi16::<4>(fifth),
            _mm256_slli_epi16::<3>(fifth),
            _mm256_slli_epi16::<2>(fifth),
            _mm256_slli_epi16::<1>(fifth),
            fifth,
            _mm256_srli_epi16::<1>(fifth),
            _mm256_srli_epi16::<2>(fifth),
            _mm256_srli_epi16::<3>(fifth),
        ];
        for (quad, moved) in quads.iter_mut().zip(moved) {
            *quad = _mm256_or_si256(*quad, _mm256_and_si256(moved, bit));
        }
        quads
    }
}

/// 128 bytes of nibbles, then 64 bytes of high bit pairs.
#[inline(always)]
unsafe fn sixes(p: *const u8) -> [__m256i; 8] {
    // SAFETY: 192 bytes at `p`, promised by every caller.
    unsafe {
        let mut quads = nibbles(p);
        let pair = _mm256_set1_epi8(0x30);
        for h in 0..2 {
            let high = load(p, 4 + h);
            let moved = [
                _mm256_slli_epi16::<4>(high),
                _mm256_slli_epi16::<2>(high),
                high,
                _mm256_srli_epi16::<2>(high),
            ];
            for (f, moved) in moved.into_iter().enumerate() {
                let quad = &mut quads[4 * h + f];
                *quad = _mm256_or_si256(*quad, _mm256_and_si256(moved, pair));
            }
        }
        quads
    }
}

// === products ===

/// Four activations against the quad of the same columns: sums of two products, 16 bits each.
#[inline(always)]
unsafe fn products(block: &Block, a: *const i8, quad: usize) -> __m256i {
    // SAFETY: 32 bytes at `a`, promised by every caller, and quad < 8.
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
    // SAFETY: arithmetic only; AVX2 and FMA are promised by every caller.
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

#[inline(always)]
fn uniform(quads: [__m256i; 8], scale: __m256, min: __m256) -> Block {
    Block {
        quads,
        scale: [scale; 2],
        min: [min; 2],
    }
}

// === formats ===

/// Legacy types: everything in the block, no header.
macro_rules! legacy {
    ($name:ident, $bytes:expr, $accumulate:ident, |$p:ident| $block:expr) => {
        #[derive(Debug)]
        pub struct $name;
        impl Format for $name {
            const SUBS: usize = 1;
            const HEADER_BYTES: usize = 0;
            const BLOCK_BYTES: usize = $bytes;
            type Header = ();
            #[inline(always)]
            unsafe fn header(_: *const u8) {}
            #[inline(always)]
            unsafe fn block($p: *const u8, (): ()) -> Block {
                // SAFETY: reads stay inside BLOCK_BYTES, promised by the caller.
                unsafe { $block }
            }
            #[inline(always)]
            unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
                // SAFETY: handed on from the caller.
                unsafe { $accumulate(acc, b, a, meta) }
            }
        }
    };
}

legacy!(Q4_0, 144, four_bit, |p| {
    let d = halves(p);
    uniform(
        nibbles(p.add(16)),
        d,
        _mm256_mul_ps(d, _mm256_set1_ps(-8.0)),
    )
});
legacy!(Q4_1, 160, four_bit, |p| uniform(
    nibbles(p.add(32)),
    halves(p),
    halves(p.add(16))
));
legacy!(Q5_0, 176, five_bit, |p| {
    let d = halves(p);
    uniform(fives(p.add(16)), d, _mm256_mul_ps(d, _mm256_set1_ps(-16.0)))
});
legacy!(Q5_1, 192, five_bit, |p| uniform(
    fives(p.add(32)),
    halves(p),
    halves(p.add(16))
));
legacy!(Q8_0, 272, eight_bit, |p| {
    let quads = std::array::from_fn(|j| load(p.add(16), j));
    uniform(quads, halves(p), _mm256_setzero_ps())
});

#[inline(always)]
unsafe fn eight_bit(acc: __m256, block: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
    // SAFETY: 32 bytes at `a`, promised by the caller.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut dot = _mm256_setzero_si256();
        for (quad, &w) in block.quads.iter().enumerate() {
            let a = _mm256_set1_epi32(a.cast::<i32>().add(quad).read_unaligned());
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
            dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
        }
        let scale = _mm256_mul_ps(block.scale[0], _mm256_set1_ps(meta.d));
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc)
    }
}

/// Q4_K and Q5_K: F16 scales of 256 columns in the header, 8-bit ones in each block.
macro_rules! k_quant {
    ($name:ident, $bytes:expr, $accumulate:ident, $quads:ident) => {
        #[derive(Debug)]
        pub struct $name;
        impl Format for $name {
            const SUBS: usize = 8;
            const HEADER_BYTES: usize = 32;
            const BLOCK_BYTES: usize = $bytes;
            /// d and -dmin.
            type Header = (__m256, __m256);
            #[inline(always)]
            unsafe fn header(p: *const u8) -> Self::Header {
                // SAFETY: 32 bytes, promised by the caller.
                unsafe {
                    let zero = _mm256_setzero_ps();
                    (halves(p), _mm256_sub_ps(zero, halves(p.add(16))))
                }
            }
            #[inline(always)]
            unsafe fn block(p: *const u8, (d, minus_dmin): Self::Header) -> Block {
                // SAFETY: reads stay inside BLOCK_BYTES, promised by the caller.
                unsafe {
                    let bytes = _mm_loadu_si128(p.cast());
                    let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                    let min = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
                    let scale = _mm256_mul_ps(d, scale);
                    uniform($quads(p.add(16)), scale, _mm256_mul_ps(minus_dmin, min))
                }
            }
            #[inline(always)]
            unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
                // SAFETY: handed on from the caller.
                unsafe { $accumulate(acc, b, a, meta) }
            }
        }
    };
}

k_quant!(Q4K, 144, four_bit, nibbles);
k_quant!(Q5K, 176, five_bit, fives);

#[derive(Debug)]
pub struct Q6K;

impl Format for Q6K {
    const SUBS: usize = 8;
    const HEADER_BYTES: usize = 16;
    const BLOCK_BYTES: usize = 208;
    type Header = __m256;
    #[inline(always)]
    unsafe fn header(p: *const u8) -> __m256 {
        // SAFETY: 16 bytes, promised by the caller.
        unsafe { halves(p) }
    }
    #[inline(always)]
    unsafe fn block(p: *const u8, d: __m256) -> Block {
        // SAFETY: reads stay inside BLOCK_BYTES, promised by the caller.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
            let scale = [_mm256_mul_ps(d, first), _mm256_mul_ps(d, second)];
            let min = scale.map(|scale| _mm256_mul_ps(scale, _mm256_set1_ps(-32.0)));
            Block {
                quads: sixes(p.add(16)),
                scale,
                min,
            }
        }
    }
    #[inline(always)]
    unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
        // SAFETY: handed on from the caller.
        unsafe {
            let first = _mm256_add_epi32(dot(b, a, 0, 2), dot(b, a, 2, 2));
            let second = _mm256_add_epi32(dot(b, a, 4, 2), dot(b, a, 6, 2));
            let [low, high] = meta.half_sums;
            let acc = scaled(acc, first, b.scale[0], b.min[0], meta.d, low);
            scaled(acc, second, b.scale[1], b.min[1], meta.d, high)
        }
    }
}
