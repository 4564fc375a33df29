//! The formats: conversion of each quantized type's packed blocks to quads, scales and offsets.

use super::{Block, Format, dot, five_bit, four_bit, scaled};
use crate::cpu::quantize::BlockMeta;
use std::arch::x86_64::*;

#[inline(always)]
pub(super) unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: 16 bytes at `p`, guaranteed by every caller.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

#[inline(always)]
unsafe fn load(p: *const u8, register: usize) -> __m256i {
    // SAFETY: `32 * (register + 1)` bytes at `p`, guaranteed by every caller.
    unsafe { _mm256_loadu_si256(p.add(32 * register).cast()) }
}

/// 128 bytes of nibbles as eight quads.
#[inline(always)]
pub(super) unsafe fn nibbles(p: *const u8) -> [__m256i; 8] {
    // SAFETY: 128 bytes at `p`, guaranteed by every caller.
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
    // SAFETY: 160 bytes at `p`, guaranteed by every caller.
    unsafe {
        let fifth = load(p, 0);
        let mut quads = nibbles(p.add(32));
        let bit = _mm256_set1_epi8(16);
        // Bit j moves to bit 4; bits that a 16-bit shift drags in from the neighbour are masked off.
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
    // SAFETY: 192 bytes at `p`, guaranteed by every caller.
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

#[inline(always)]
pub(super) fn uniform(quads: [__m256i; 8], scale: __m256, min: __m256) -> Block {
    Block {
        quads,
        scale: [scale; 2],
        min: [min; 2],
    }
}

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
                // SAFETY: reads stay inside BLOCK_BYTES, guaranteed by the caller.
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

pub(super) use legacy;

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

/// Quads `from .. from + count` of signed bytes, widened to one sum a row.
#[inline(always)]
pub(super) unsafe fn eight_bit_dot(
    block: &Block,
    a: *const i8,
    from: usize,
    count: usize,
) -> __m256i {
    // SAFETY: 32 bytes at `a`, guaranteed by every caller.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut dot = _mm256_setzero_si256();
        for quad in from..from + count {
            let w = block.quads[quad];
            let a = _mm256_set1_epi32(a.cast::<i32>().add(quad).read_unaligned());
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
            dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, ones));
        }
        dot
    }
}

#[inline(always)]
pub(super) unsafe fn eight_bit(
    acc: __m256,
    block: &Block,
    a: *const i8,
    meta: &BlockMeta,
) -> __m256 {
    // SAFETY: handed on from the caller.
    unsafe {
        let dot = eight_bit_dot(block, a, 0, 8);
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
                // SAFETY: 32 bytes, guaranteed by the caller.
                unsafe {
                    let zero = _mm256_setzero_ps();
                    (halves(p), _mm256_sub_ps(zero, halves(p.add(16))))
                }
            }
            #[inline(always)]
            unsafe fn block(p: *const u8, (d, minus_dmin): Self::Header) -> Block {
                // SAFETY: reads stay inside BLOCK_BYTES, guaranteed by the caller.
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

/// Types with scales of 16 columns: an F16 scale of 256 columns in the header, in each block an 8-bit one for
/// either half.
macro_rules! halved {
    ($name:ident, $bytes:expr, $quads:ident, $offset:expr) => {
        #[derive(Debug)]
        pub struct $name;
        impl Format for $name {
            const SUBS: usize = 8;
            const HEADER_BYTES: usize = 16;
            const BLOCK_BYTES: usize = $bytes;
            type Header = __m256;
            #[inline(always)]
            unsafe fn header(p: *const u8) -> __m256 {
                // SAFETY: 16 bytes, guaranteed by the caller.
                unsafe { halves(p) }
            }
            #[inline(always)]
            unsafe fn block(p: *const u8, d: __m256) -> Block {
                // SAFETY: reads stay inside BLOCK_BYTES, guaranteed by the caller.
                unsafe {
                    let scale = two_scales(p, d);
                    Block {
                        quads: $quads(p.add(16)),
                        scale,
                        min: scale.map(|scale| _mm256_mul_ps(scale, _mm256_set1_ps($offset))),
                    }
                }
            }
            #[inline(always)]
            unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
                // SAFETY: handed on from the caller.
                unsafe { by_halves(acc, b, a, meta) }
            }
        }
    };
}

halved!(Q3K, 144, nibbles, -4.0);
halved!(Q6K, 208, sixes, -32.0);

/// `d` times the signed bytes of the first and of the last 16 columns.
#[inline(always)]
pub(super) unsafe fn two_scales(p: *const u8, d: __m256) -> [__m256; 2] {
    // SAFETY: 16 bytes at `p`, guaranteed by every caller.
    unsafe {
        let bytes = _mm_loadu_si128(p.cast());
        let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
        [_mm256_mul_ps(d, first), _mm256_mul_ps(d, second)]
    }
}

#[inline(always)]
unsafe fn by_halves(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
    // SAFETY: handed on from the caller.
    unsafe {
        let first = _mm256_add_epi32(dot(b, a, 0, 2), dot(b, a, 2, 2));
        let second = _mm256_add_epi32(dot(b, a, 4, 2), dot(b, a, 6, 2));
        let [low, high] = meta.half_sums;
        let acc = scaled(acc, first, b.scale[0], b.min[0], meta.d, low);
        scaled(acc, second, b.scale[1], b.min[1], meta.d, high)
    }
}

#[derive(Debug)]
pub struct Q2K;

impl Format for Q2K {
    const SUBS: usize = 8;
    const HEADER_BYTES: usize = 32;
    const BLOCK_BYTES: usize = 80;
    /// d and -dmin.
    type Header = (__m256, __m256);
    #[inline(always)]
    unsafe fn header(p: *const u8) -> Self::Header {
        // SAFETY: 32 bytes, guaranteed by the caller.
        unsafe {
            let zero = _mm256_setzero_ps();
            (halves(p), _mm256_sub_ps(zero, halves(p.add(16))))
        }
    }
    #[inline(always)]
    unsafe fn block(p: *const u8, (d, minus_dmin): Self::Header) -> Block {
        // SAFETY: reads stay inside BLOCK_BYTES, guaranteed by the caller.
        unsafe {
            let both = _mm_loadu_si128(p.cast());
            let nibble = _mm_set1_epi8(15);
            let scales = _mm_and_si128(both, nibble);
            let mins = _mm_and_si128(_mm_srli_epi16::<4>(both), nibble);
            let times = |x: __m256, bytes| {
                _mm256_mul_ps(x, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)))
            };
            let two = |x: __m256, bytes| [times(x, bytes), times(x, _mm_srli_si128::<8>(bytes))];
            Block {
                quads: twos(p.add(16)),
                scale: two(d, scales),
                min: two(minus_dmin, mins),
            }
        }
    }
    #[inline(always)]
    unsafe fn accumulate(acc: __m256, b: &Block, a: *const i8, meta: &BlockMeta) -> __m256 {
        // SAFETY: handed on from the caller.
        unsafe { by_halves(acc, b, a, meta) }
    }
}

/// 64 bytes of codes of two bits as eight quads.
#[inline(always)]
unsafe fn twos(p: *const u8) -> [__m256i; 8] {
    // SAFETY: 64 bytes at `p`, guaranteed by every caller.
    unsafe {
        let mask = _mm256_set1_epi8(3);
        let (first, second) = (load(p, 0), load(p, 1));
        let of = |v: __m256i| {
            [
                v,
                _mm256_srli_epi16::<2>(v),
                _mm256_srli_epi16::<4>(v),
                _mm256_srli_epi16::<6>(v),
            ]
            .map(|v| _mm256_and_si256(v, mask))
        };
        let ([a, b, c, d], [e, f, g, h]) = (of(first), of(second));
        [a, b, c, d, e, f, g, h]
    }
}
