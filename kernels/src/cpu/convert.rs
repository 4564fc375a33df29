//! `f32` to the bits of F16 (round to nearest even), for the KV cache.

use super::isa::Isa;
use half::f16;

/// Converts a row.
///
/// # Panics
/// If the lengths differ.
pub fn to_f16(isa: Isa, values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len(), "rows of different lengths");
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() {
        // SAFETY: the token proves the features.
        return unsafe { avx2(values, out) };
    }
    let _ = isa;
    portable(values, out);
}

fn portable(values: &[f32], out: &mut [u16]) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out = f16::from_f32(value).to_bits();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2(values: &[f32], out: &mut [u16]) {
    use std::arch::x86_64::*;
    let (values, values_left) = values.as_chunks::<8>();
    let (out, out_left) = out.as_chunks_mut::<8>();
    for (values, out) in values.iter().zip(out) {
        // SAFETY: eight floats are read and eight halves written.
        unsafe {
            let eight = _mm256_loadu_ps(values.as_ptr());
            let bits = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
            _mm_storeu_si128(out.as_mut_ptr().cast(), bits);
        }
    }
    portable(values_left, out_left);
}
