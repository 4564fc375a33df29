//! Float weights: a column of eight rows is one register, the activation a broadcast.

use super::Activations;
use crate::cpu::packed::ROWS;
use std::arch::x86_64::*;

/// Access to a column of eight values.
pub trait Column {
    /// Bytes of a column.
    const BYTES: usize;
    /// # Safety
    /// AVX2 and F16C are there, and `BYTES` bytes at `column`.
    unsafe fn load(column: *const u8) -> __m256;
}

#[derive(Debug)]
pub struct F32;
#[derive(Debug)]
pub struct F16;
#[derive(Debug)]
pub struct Bf16;

impl Column for F32 {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(column: *const u8) -> __m256 {
        // SAFETY: 32 readable bytes, guaranteed by the caller.
        unsafe { _mm256_loadu_ps(column.cast()) }
    }
}

impl Column for F16 {
    const BYTES: usize = 16;
    #[inline(always)]
    unsafe fn load(column: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes, guaranteed by the caller.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(column.cast())) }
    }
}

impl Column for Bf16 {
    const BYTES: usize = 16;
    #[inline(always)]
    unsafe fn load(column: *const u8) -> __m256 {
        // SAFETY: 16 readable bytes, guaranteed by the caller. BF16 is the upper half of an F32.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(column.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

/// # Safety
/// As for [`super::avx2`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn tile<C: Column>(group: &[u8], x: &Activations<'_>, out: &mut [[f32; ROWS]]) {
    // SAFETY: the number of tokens is the length of `out`, as `fixed` demands.
    unsafe {
        match out.len() {
            1 => fixed::<C, 1>(group, x, out),
            2 => fixed::<C, 2>(group, x, out),
            3 => fixed::<C, 3>(group, x, out),
            _ => fixed::<C, 4>(group, x, out),
        }
    }
}

/// # Safety
/// As for [`tile`], with exactly `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fixed<C: Column, const T: usize>(
    group: &[u8],
    x: &Activations<'_>,
    out: &mut [[f32; ROWS]],
) {
    assert!(out.len() == T && x.values.len() == T * x.cols);
    assert_eq!(group.len(), x.cols * C::BYTES);
    let mut even = [_mm256_setzero_ps(); T];
    let mut odd = [_mm256_setzero_ps(); T];
    let (w, values) = (group.as_ptr(), x.values.as_ptr());
    // SAFETY: k < cols, so both reads lie inside the slices whose lengths are asserted above.
    let step = |k: usize, acc: &mut [__m256; T]| unsafe {
        let w = C::load(w.add(k * C::BYTES));
        for (t, acc) in acc.iter_mut().enumerate() {
            *acc = _mm256_fmadd_ps(w, _mm256_set1_ps(*values.add(t * x.cols + k)), *acc);
        }
    };
    for k in (0..x.cols & !1).step_by(2) {
        step(k, &mut even);
        step(k + 1, &mut odd);
    }
    if x.cols % 2 == 1 {
        step(x.cols - 1, &mut even);
    }
    for (t, out) in out.iter_mut().enumerate() {
        // SAFETY: `out` is eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_add_ps(even[t], odd[t])) };
    }
}
