//! The gated linear unit over eight rows of one token, in place over `gate`: the result layout of
//! [`matmul_group`](super::matmul_group).

use super::isa::Isa;
use super::packed::ROWS;
use crate::Activation;

/// The unit of `activation`.
pub fn glu(activation: Activation, isa: Isa, gate: &mut [[f32; ROWS]], up: &[[f32; ROWS]]) {
    #[cfg(target_arch = "x86_64")]
    if isa.is_avx2() {
        // SAFETY: the token proves the features.
        return unsafe {
            match activation {
                Activation::Silu => sigmoid_unit_avx2(false, gate, up),
                Activation::Gelu => sigmoid_unit_avx2(true, gate, up),
                Activation::ClampedSwiglu => clamped_swiglu_avx2(gate, up),
                Activation::Relu => relu_unit_avx2(gate, up),
            }
        };
    }
    let _ = isa;
    for (gate, up) in gate.as_flattened_mut().iter_mut().zip(up.as_flattened()) {
        *gate = activation.fast(*gate, *up);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn sigmoid_unit_avx2(is_gelu: bool, gate: &mut [[f32; ROWS]], up: &[[f32; ROWS]]) {
    use super::attention::avx2::exp;
    use crate::activation::{GELU_CUBE, GELU_SLOPE};
    use std::arch::x86_64::*;
    let (slope, cube) = (
        _mm256_set1_ps(GELU_SLOPE as f32),
        _mm256_set1_ps(GELU_CUBE as f32),
    );
    for (gate, up) in gate.iter_mut().zip(up) {
        // SAFETY: both are eight floats.
        let (g, u) = unsafe { (_mm256_loadu_ps(gate.as_ptr()), _mm256_loadu_ps(up.as_ptr())) };
        let exponent = match is_gelu {
            false => _mm256_sub_ps(_mm256_setzero_ps(), g),
            true => {
                let cubed = _mm256_mul_ps(_mm256_mul_ps(g, g), g);
                _mm256_mul_ps(slope, _mm256_fmadd_ps(cube, cubed, g))
            }
        };
        // SAFETY: AVX2 and FMA are enabled for this function.
        let e = unsafe { exp(exponent) };
        let active = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0), e));
        // SAFETY: eight floats.
        unsafe { _mm256_storeu_ps(gate.as_mut_ptr(), _mm256_mul_ps(active, u)) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn relu_unit_avx2(gate: &mut [[f32; ROWS]], up: &[[f32; ROWS]]) {
    use std::arch::x86_64::*;
    for (gate, up) in gate.iter_mut().zip(up) {
        // SAFETY: both are eight floats.
        let (g, u) = unsafe { (_mm256_loadu_ps(gate.as_ptr()), _mm256_loadu_ps(up.as_ptr())) };
        // If either is a NaN it returns the second.
        let active = _mm256_max_ps(_mm256_setzero_ps(), g);
        // SAFETY: eight floats.
        unsafe { _mm256_storeu_ps(gate.as_mut_ptr(), _mm256_mul_ps(active, u)) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn clamped_swiglu_avx2(gate: &mut [[f32; ROWS]], up: &[[f32; ROWS]]) {
    use super::attention::avx2::exp;
    use crate::activation::{SWIGLU_ALPHA, SWIGLU_LIMIT};
    use std::arch::x86_64::*;
    let (one, limit) = (_mm256_set1_ps(1.0), _mm256_set1_ps(SWIGLU_LIMIT));
    for (gate, up) in gate.iter_mut().zip(up) {
        // SAFETY: both are eight floats.
        let (g, u) = unsafe { (_mm256_loadu_ps(gate.as_ptr()), _mm256_loadu_ps(up.as_ptr())) };
        // If either is a NaN these return the second.
        let g = _mm256_min_ps(limit, g);
        let u = _mm256_max_ps(_mm256_set1_ps(-SWIGLU_LIMIT), _mm256_min_ps(limit, u));
        // SAFETY: AVX2 and FMA are enabled for this function.
        let e = unsafe { exp(_mm256_mul_ps(_mm256_set1_ps(-SWIGLU_ALPHA), g)) };
        let half = _mm256_div_ps(g, _mm256_add_ps(one, e));
        // SAFETY: eight floats.
        unsafe {
            _mm256_storeu_ps(
                gate.as_mut_ptr(),
                _mm256_mul_ps(half, _mm256_add_ps(u, one)),
            )
        };
    }
}
