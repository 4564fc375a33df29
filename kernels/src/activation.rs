//! Gated units of a feed-forward part, by activation.
//!
//! A new one requires a variant here, a case in `kernels/cuda/glu.cuh`, and an entry in the conventions of its
//! architecture. The fast path of the CPU ([`glu`](mod@crate::cpu::glu)) supports all of them.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// `gate / (1 + exp(-gate)) * up`: SwiGLU.
    Silu = 0,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2`, the approximation of Hendrycks and Gimpel (arXiv:1606.08415,
    /// section 2); the gated unit is GEGLU. Written as `x / (1 + exp(-2 …))`, which is the same number.
    Gelu = 1,
    /// gpt-oss's SwiGLU (`swiglu` in the `torch/model.py` of openai/gpt-oss, llama.cpp's `ggml_swiglu_oai`):
    /// `gate / (1 + exp(-α gate)) * (up + 1)`, with the gate clamped to at most [`SWIGLU_LIMIT`], `up` to plus and
    /// minus that, and α = [`SWIGLU_ALPHA`].
    ClampedSwiglu = 2,
    /// `max(gate, 0) * up`: ReGLU. If the gate is `up` itself, it is the square of a ReLU (Primer, arXiv:2109.08668).
    Relu = 3,
}

/// `-2 sqrt(2 / pi)`.
pub(crate) const GELU_SLOPE: f64 = -2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The factor of the cube.
pub(crate) const GELU_CUBE: f64 = 0.044_715;

pub const SWIGLU_ALPHA: f32 = 1.702;
pub const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// The unit's definition.
    #[must_use]
    pub fn exact(self, gate: f64, up: f64) -> f64 {
        match self {
            Self::Silu => gate / (1.0 + (-gate).exp()) * up,
            Self::Gelu => {
                let cubed = gate * gate * gate;
                gate / (1.0 + (GELU_SLOPE * (gate + GELU_CUBE * cubed)).exp()) * up
            }
            Self::ClampedSwiglu => {
                let (alpha, limit) = (f64::from(SWIGLU_ALPHA), f64::from(SWIGLU_LIMIT));
                let gate = if gate > limit { limit } else { gate };
                gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
            // Not `max`, which would make a number of a NaN.
            Self::Relu => (if gate < 0.0 { 0.0 } else { gate }) * up,
        }
    }

    /// The unit in single precision.
    #[must_use]
    pub fn fast(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Silu => gate / (1.0 + (-gate).exp()) * up,
            Self::Gelu => {
                let (slope, cube) = (GELU_SLOPE as f32, GELU_CUBE as f32);
                gate / (1.0 + (slope * (gate + cube * gate * gate * gate)).exp()) * up
            }
            Self::ClampedSwiglu => {
                // Not `min`, which would make a number of a NaN.
                let gate = if gate > SWIGLU_LIMIT {
                    SWIGLU_LIMIT
                } else {
                    gate
                };
                let up = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0;
                gate / (1.0 + (-SWIGLU_ALPHA * gate).exp()) * up
            }
            Self::Relu => (if gate < 0.0 { 0.0 } else { gate }) * up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_knows_it_by_the_same_number() {
        let header = include_str!("../cuda/glu.cuh");
        for (activation, name) in [
            (Activation::Silu, "SILU"),
            (Activation::Gelu, "GELU"),
            (Activation::ClampedSwiglu, "CLAMPED_SWIGLU"),
            (Activation::Relu, "RELU"),
        ] {
            let line = format!("{name} = {},", activation as i32);
            assert!(header.contains(&line), "{line}");
        }
        for (name, value) in [
            ("SWIGLU_ALPHA", SWIGLU_ALPHA),
            ("SWIGLU_LIMIT", SWIGLU_LIMIT),
        ] {
            let line = format!("float {name} = {value:?}f;");
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn gelu_is_its_definition_with_tanh() {
        for x in [-4.0, -1.0, -0.1, 0.0, 0.5, 1.0, 3.0_f64] {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            let defined = 0.5 * x * (1.0 + (slope * (x + 0.044_715 * x.powi(3))).tanh());
            assert!(
                (Activation::Gelu.exact(x, 1.0) - defined).abs() < 1e-14,
                "{x}"
            );
        }
    }
}
