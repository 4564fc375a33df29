//! `y = x / sqrt(mean(x²) + eps) * w`.
//!
//! Squares are added in sixteen running sums (element `i` to sum `i % 16`), which a fixed tree
//! then folds: one order for every row, and an order that the compiler can keep in registers.

use super::isa::Isa;

const SUMS: usize = 16;

/// Normalizes a row.
///
/// # Panics
/// If the lengths differ.
pub fn rmsnorm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == weight.len() && x.len() == out.len(),
        "rows of different lengths"
    );
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() {
        // SAFETY: the token proves the features; nothing else is asked.
        return unsafe { avx2(x, weight, eps, out) };
    }
    let _ = isa;
    body(x, weight, eps, out);
}

/// The same code, compiled for wider registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    body(x, weight, eps, out);
}

#[inline(always)]
fn body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inverse = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
        *out = x * inverse * w;
    }
}

#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0f32; SUMS];
    let chunks = x.chunks_exact(SUMS);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (sum, &v) in sums.iter_mut().zip(chunk) {
            *sum += v * v;
        }
    }
    for (sum, &v) in sums.iter_mut().zip(rest) {
        *sum += v * v;
    }
    let mut width = SUMS / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}
