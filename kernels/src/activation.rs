//! The gated units of a feed-forward part, named by their activation, of which a model's description names one.
//!
//! A new one is a variant here, a case in `kernels/cuda/glu.cuh` (or a refusal on CUDA), and a word in the
//! description of the model that has it. The fast path of the CPU ([`glu`](crate::cpu::glu)) takes any of them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Activation {
    /// `gate / (1 + exp(-gate)) * up`: SwiGLU.
    Silu = 0,
    /// gpt-oss's SwiGLU (`swiglu` in the `torch/model.py` of openai/gpt-oss, llama.cpp's `ggml_swiglu_oai`): of a gate that
    /// is at most [`SWIGLU_LIMIT`] and an `up` within plus and minus that, `gate / (1 + exp(-α gate)) * (up + 1)`, α
    /// being [`SWIGLU_ALPHA`].
    ClampedSwiglu = 2,
}

pub const SWIGLU_ALPHA: f32 = 1.702;
pub const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// The unit's definition.
    #[must_use]
    pub fn exact(self, gate: f64, up: f64) -> f64 {
        match self {
            Self::Silu => gate / (1.0 + (-gate).exp()) * up,
            Self::ClampedSwiglu => {
                let (alpha, limit) = (f64::from(SWIGLU_ALPHA), f64::from(SWIGLU_LIMIT));
                let gate = if gate > limit { limit } else { gate };
                gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
            }
        }
    }

    /// The same in single precision.
    #[must_use]
    pub fn fast(self, gate: f32, up: f32) -> f32 {
        match self {
            Self::Silu => gate / (1.0 + (-gate).exp()) * up,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The others are refused there.
    const ON_CUDA: [Activation; 1] = [Activation::Silu];

    #[test]
    fn the_device_knows_it_by_the_same_number() {
        let header = include_str!("../cuda/glu.cuh");
        for activation in ON_CUDA {
            let name = format!("{activation:?}").to_uppercase();
            let line = format!("{name} = {},", activation as i32);
            assert!(header.contains(&line), "{line}");
        }
    }
}
