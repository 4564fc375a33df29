//! Scratch buffers of a mixture of experts: the chosen experts of each row, and the rows of each expert.
//!
//! A pair is a row and an expert that it chose. There is room for every pair of the largest batch.

use super::expert_arguments::{Choice, Routing, Share};
use super::experts_wide::most_places;
use super::memory::{Arena, DevicePtr, Layout};
use super::weights::{UNIT, units};
use crate::model::ModelConfig;
use worker_orcd_kernels::Activation;

/// All sizes are zero for models without experts.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExpertSizes {
    tokens: usize,
    pairs: usize,
    /// Maximum number of places: each expert has whole groups.
    places: usize,
    n_embd: usize,
    /// Columns of an input of gate and up, and of an input of down, in whole units.
    input: usize,
    inner: usize,
    /// Columns of a pair's products: gate and up beside each other, or the result.
    widest: usize,
    logits: usize,
    has_shared: bool,
}

impl ExpertSizes {
    #[must_use]
    pub fn of(config: &ModelConfig, tokens: usize) -> Self {
        let Some(experts) = &config.experts else {
            return Self::default();
        };
        Self {
            tokens,
            pairs: tokens * experts.used,
            places: most_places(tokens * experts.used, experts.count),
            n_embd: config.n_embd,
            input: units(config.n_embd) * UNIT,
            inner: units(experts.n_ff) * UNIT,
            widest: (2 * experts.n_ff).max(match is_bounded(config) {
                true => config.n_embd + units(experts.n_ff) * UNIT / 2,
                false => config.n_embd,
            }),
            logits: experts.logits(),
            has_shared: experts.shared_n_ff.is_some(),
        }
    }

    fn shared(&self) -> usize {
        match self.has_shared {
            true => self.tokens * self.n_embd,
            false => 0,
        }
    }
}

/// Offsets in the scratch.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPlaces {
    logits: u64,
    norm: u64,
    norm_scale: u64,
    ff: u64,
    act: u64,
    act_scale: u64,
    shared: u64,
    choices: u64,
    places: u64,
    rows: u64,
    shares: u64,
    counts: u64,
}

/// Words of `counts`: shares, and finished blocks of `route.cu`.
const COUNTS: usize = 2;

/// Outputs of gate and up have a bound (`glu.cuh`), so these products may write inputs of down.
#[must_use]
pub fn is_bounded(config: &ModelConfig) -> bool {
    config.activation == Activation::ClampedSwiglu
}

impl ExpertPlaces {
    pub fn of(layout: &mut Layout, s: &ExpertSizes) -> Self {
        let mut words = |count: usize| layout.place(4 * count as u64);
        Self {
            logits: words(s.tokens * s.logits),
            norm_scale: words(s.tokens),
            ff: words(s.places * s.widest),
            act_scale: words(s.places),
            shared: words(s.shared()),
            choices: words(s.pairs * size_of::<Choice>() / 4),
            places: words(s.pairs),
            rows: words(s.places),
            shares: words(s.pairs * size_of::<Share>() / 4),
            counts: words(COUNTS),
            // Halves.
            norm: words(s.tokens * s.input / 2),
            act: words(s.places * s.input.max(s.inner) / 2),
        }
    }

    #[must_use]
    pub fn buffers(&self, arena: &Arena, s: &ExpertSizes) -> ExpertBuffers {
        ExpertBuffers {
            logits: arena.at(self.logits, s.tokens * s.logits),
            norm: arena.at(self.norm, s.tokens * s.input),
            norm_scale: arena.at(self.norm_scale, s.tokens),
            ff: arena.at(self.ff, s.places * s.widest),
            act: arena.at(self.act, s.places * s.input.max(s.inner)),
            act_scale: arena.at(self.act_scale, s.places),
            shared: arena.at(self.shared, s.shared()),
            routing: Routing {
                choices: arena.at(self.choices, s.pairs),
                places: arena.at(self.places, s.pairs),
                rows: arena.at(self.rows, s.places),
                shares: arena.at(self.shares, s.pairs),
                counts: arena.at(self.counts, COUNTS),
            },
        }
    }
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
    /// Outputs of the shared expert, `[tokens, n_embd]`.
    pub shared: DevicePtr<f32>,
    pub routing: Routing,
}
