//! Scratch buffers of a mixture of experts: the chosen experts of each row, and the rows of each expert.
//!
//! A pair is a row and an expert that it chose. There is room for every pair of the largest batch.

use super::buffer_allocator::BufferAllocator;
use super::expert_arguments::Routing;
use super::experts_wide::most_places;
use super::memory::DevicePtr;
use super::weights::{UNIT, units};
use crate::model::ModelConfig;
use worker_orcd_kernels::Activation;

/// Words of `counts`: shares, and finished blocks of `route.cu`.
const COUNTS: usize = 2;

/// Outputs of gate and up have a bound (`glu.cuh`), so these products may write inputs of down.
#[must_use]
pub fn is_bounded(config: &ModelConfig) -> bool {
    config.activation == Activation::ClampedSwiglu
}

/// The buffers on the device.
#[derive(Debug, Clone, Copy)]
pub struct ExpertBuffers {
    /// Logits of the router, each row followed by that of the shared expert, `[tokens, logits]`.
    pub logits: DevicePtr<f32>,
    /// Normalized rows in rows of k, and their powers of two.
    pub norm: DevicePtr<u16>,
    pub norm_scale: DevicePtr<f32>,
    /// Products by place: gate and up, or their gated linear unit; later the results, then all bounded inputs of
    /// down.
    pub ff: DevicePtr<f32>,
    /// Inputs by place: packed rows of `norm`, then inputs of down. `act_scale` has their powers of two.
    pub act: DevicePtr<u16>,
    pub act_scale: DevicePtr<f32>,
    /// Outputs of the shared expert, or of the dense unit beside experts, `[tokens, n_embd]`.
    pub shared: DevicePtr<f32>,
    /// Outputs of all experts of a row, if a dense unit is beside them, `[tokens, n_embd]`.
    pub sums: DevicePtr<f32>,
    pub routing: Routing,
}

impl ExpertBuffers {
    /// Room for batches of `tokens` rows; `None` for models without experts.
    pub fn place(
        places: &mut BufferAllocator<'_>,
        config: &ModelConfig,
        tokens: usize,
    ) -> Option<Self> {
        let experts = config.experts.as_ref()?;
        let pairs = tokens * experts.used;
        // Each expert has whole groups of places.
        let most_places = most_places(pairs, experts.count);
        let [input, inner] = [config.n_embd, experts.n_ff].map(|cols| units(cols) * UNIT);
        // Gate and up beside each other, or the result, which bounded inputs of down follow.
        let widest = (2 * experts.n_ff).max(match is_bounded(config) {
            true => config.n_embd + inner / 2,
            false => config.n_embd,
        });
        let rows = |is_there: bool| if is_there { tokens * config.n_embd } else { 0 };
        let shared = rows(experts.shared_n_ff.is_some() || experts.beside_dense);
        Some(Self {
            logits: places.buffer(tokens * experts.logits()),
            norm: places.buffer(tokens * input),
            norm_scale: places.buffer(tokens),
            ff: places.buffer(most_places * widest),
            act: places.buffer(most_places * input.max(inner)),
            act_scale: places.buffer(most_places),
            shared: places.buffer(shared),
            sums: places.buffer(rows(experts.beside_dense)),
            routing: Routing {
                choices: places.buffer(pairs),
                places: places.buffer(pairs),
                rows: places.buffer(most_places),
                shares: places.buffer(pairs),
                counts: places.buffer(COUNTS),
            },
        })
    }
}
