//! The activations of a gated feed-forward part, of which a model's description names one.
//!
//! A new one is a variant here, a case in `kernels/cuda/glu.cuh`, and a word in the description of
//! the model that has it. The fast path of the CPU ([`glu`](crate::cpu::glu)) takes any of them.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// `x / (1 + exp(-x))`; the gated unit is SwiGLU.
    Silu = 0,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2`, the approximation of Hendrycks and Gimpel (arXiv:1606.08415,
    /// section 2); the gated unit is GEGLU. Written as `x / (1 + exp(-2 …))`, which is the same number.
    Gelu = 1,
}

/// `-2 sqrt(2 / pi)`.
pub(crate) const GELU_SLOPE: f64 = -2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
/// The factor of the cube.
pub(crate) const GELU_CUBE: f64 = 0.044_715;

impl Activation {
    /// The definition.
    #[must_use]
    pub fn exact(self, x: f64) -> f64 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => x / (1.0 + (GELU_SLOPE * (x + GELU_CUBE * x * x * x)).exp()),
        }
    }

    /// The same in single precision.
    #[must_use]
    pub fn fast(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Gelu => {
                let (slope, cube) = (GELU_SLOPE as f32, GELU_CUBE as f32);
                x / (1.0 + (slope * (x + cube * x * x * x)).exp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Activation; 2] = [Activation::Silu, Activation::Gelu];

    #[test]
    fn the_device_knows_it_by_the_same_number() {
        let header = include_str!("../cuda/glu.cuh");
        for activation in ALL {
            let name = format!("{activation:?}").to_uppercase();
            let line = format!("{name} = {},", activation as i32);
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn gelu_is_its_definition_with_tanh() {
        for x in [-4.0, -1.0, -0.1, 0.0, 0.5, 1.0, 3.0_f64] {
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            let defined = 0.5 * x * (1.0 + (slope * (x + 0.044_715 * x.powi(3))).tanh());
            assert!((Activation::Gelu.exact(x) - defined).abs() < 1e-14, "{x}");
        }
    }
}
