//! `f32` to the bits of F16 (round to nearest even), for the KV cache.

use half::f16;

#[must_use]
pub fn f16_bits(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// # Panics
/// When the lengths differ.
pub fn to_f16(values: &[f32], out: &mut [u16]) {
    assert_eq!(values.len(), out.len(), "rows of different lengths");
    for (out, &value) in out.iter_mut().zip(values) {
        *out = f16_bits(value);
    }
}
