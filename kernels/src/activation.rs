//! The activations of a gated feed-forward part, of which a model's description names one.
//!
//! A new one is a variant here, a case in `kernels/cuda/glu.cuh`, and a word in the description of
//! the model that has it. The fast path of the CPU ([`glu`](crate::cpu::glu)) takes any of them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// `x / (1 + exp(-x))`; the gated unit is SwiGLU.
    Silu = 0,
}

impl Activation {
    /// The definition.
    #[must_use]
    pub fn exact(self, x: f64) -> f64 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
        }
    }

    /// The same in single precision.
    #[must_use]
    pub fn fast(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Activation; 1] = [Activation::Silu];

    #[test]
    fn the_device_knows_it_by_the_same_number() {
        let header = include_str!("../cuda/glu.cuh");
        for activation in ALL {
            let name = format!("{activation:?}").to_uppercase();
            let line = format!("{name} = {},", activation as i32);
            assert!(header.contains(&line), "{line}");
        }
    }
}
