//! Powers of two that scale inputs of products to F16 (`kernels/cuda/input_rows.cuh`), computed from the model's weights:
//! for outputs of mixers and of gated units.
//!
//! `kernels/cuda/bound.cu` computes an upper bound of these values that holds for every row; the power of two moves it to
//! the upper end of F16. A row whose largest value is more than 2^-15 of the bound is as exact as with a power of its own.
//! Below that, its smallest values lose one bit for each further bit. The bound is computed once the weights are loaded, so
//! it is equal for every batch size and in every process with these weights.

use super::context::Context;
use super::headers::constant;
use super::kernels::{BoundArgs, Geometry, Kernel, Module, Part};
use super::memory::{Arena, DevicePtr, Purpose, download};
use super::mixers;
use super::weights::{Layer, Linear, Vector, Weights, units};
use crate::model::{FeedForward, ModelConfig};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::Activation;

/// Threads of a block of `bound.cu`.
const THREADS: u32 = 32 * constant!("bound.cu", BOUND_WARPS) as u32;
/// Power of two for outputs of a clamped unit.
const CLAMPED: i32 = constant!("glu.cuh", SWIGLU_LOG_UP) as i32;

/// Factor 2^n of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Power(i32);

impl Power {
    /// For bounds below 2^29. With a higher bound each row has its own power, because rows far below the bound would lose
    /// accuracy (bench/results/cuda.md).
    const LEAST: i32 = -14;
    /// Brings the smallest values of F16 to 1.
    const MOST: i32 = 24;

    /// Moves a bound between 2^14 and 2^15, half of the largest F16; the other half is room for rounding. `None` for a bound
    /// of 2^29 and more, and for one that is not finite.
    #[must_use]
    pub fn below(bound: f32) -> Option<Self> {
        if !bound.is_finite() {
            return None;
        }
        let exponent = (bound.to_bits() >> 23) as i32 - 127;
        let power = (14 - exponent).min(Self::MOST);
        (power >= Self::LEAST).then_some(Self(power))
    }

    /// For a mean of F16 values, which fits in F16 whatever the bound is.
    fn of_mean(bound: f32) -> Self {
        Self(Self::below(bound).map_or(0, |power| power.0.max(0)))
    }

    #[must_use]
    pub fn up(self) -> f32 {
        2_f32.powi(self.0)
    }

    /// Factor 2^-n of products of such inputs.
    #[must_use]
    pub fn down(self) -> f32 {
        2_f32.powi(-self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayerPowers {
    mixer: Power,
    unit: Option<Power>,
}

/// Powers of every layer.
#[derive(Debug)]
pub struct Powers {
    layers: Vec<LayerPowers>,
}

impl Powers {
    /// Computes the powers from loaded weights.
    ///
    /// # Errors
    /// If the device fails.
    pub fn find(
        context: &Context,
        module: &Module,
        config: &ModelConfig,
        weights: &Weights,
    ) -> Result<Self, Fault> {
        // SAFETY: bound.cu takes BoundArgs.
        let kernel: Kernel<BoundArgs> = unsafe { module.kernel("bound") }?;
        let bounded: Vec<Bounded<'_>> = weights.tensors.layers.iter().flat_map(bounded).collect();
        let tiles: Vec<usize> = bounded.iter().map(|it| it.tiles()).collect();
        let words = tiles.iter().sum();
        let mut squares = vec![0_u32; words];
        let place = Arena::new(context, Purpose::Scratch, size_of_val(&*squares) as u64)?;
        let mut at = place.at(0, words);
        for (it, tiles) in bounded.iter().zip(&tiles) {
            let geometry = Geometry::line(*tiles, THREADS);
            // SAFETY: one block for each tile; the matrices have equal numbers of rows, and their input is the norm's output.
            unsafe { kernel.launch(context, geometry, &it.arguments(weights, at)) }?;
            at = at.add(*tiles);
        }
        // SAFETY: as many words.
        unsafe { download(context, &mut squares, place.at(0, words)) }?;
        let mut squares = squares.into_iter();
        let mut bounds: Vec<f32> = tiles
            .into_iter()
            .map(|tiles| bound_of(squares.by_ref().take(tiles)))
            .collect();
        for (index, [mixer, _]) in bounds.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *mixer = mixers::known_bound(config, index).unwrap_or(*mixer);
        }
        Ok(Self {
            layers: layers_of(config.activation, &bounds),
        })
    }

    /// Power for the outputs of a layer's mixer.
    #[must_use]
    pub fn mixer(&self, layer: usize) -> Power {
        self.layers[layer].mixer
    }

    /// Power for outputs of a layer's dense gated unit. `None`: each row has its own.
    #[must_use]
    pub fn unit(&self, layer: usize) -> Option<Power> {
        self.layers[layer].unit
    }
}

/// Matrices with bounded outputs, and the norm of their input.
#[derive(Clone, Copy)]
pub struct Bounded<'a> {
    pub norm: &'a Vector,
    /// One matrix, or gate and up, which may be the same. Empty without a bound.
    pub linears: &'a [Linear],
}

impl Bounded<'_> {
    fn tiles(&self) -> usize {
        self.linears.first().map_or(0, |it| it.weight.tiles())
    }

    fn arguments(&self, weights: &Weights, squares: DevicePtr<u32>) -> BoundArgs {
        let mut parts = [Part::NONE; 2];
        for (part, linear) in parts.iter_mut().zip(self.linears) {
            *part = weights.part(linear, 0);
        }
        let cols = self.linears.first().map_or(0, |it| it.weight.cols);
        BoundArgs {
            parts,
            norm: weights.vector(self.norm),
            squares,
            n_parts: self.linears.len() as i32,
            units: units(cols) as i32,
            cols: cols as i32,
            unused: 0,
        }
    }
}

/// The mixer, and the dense gated unit: in a mixture of experts, the shared expert or the unit beside them.
fn bounded(layer: &Layer) -> [Bounded<'_>; 2] {
    let mixer = layer.mixer.as_ref().map(mixers::bounded);
    let unit = layer.feed_forward.as_ref().map(|block| Bounded {
        norm: &block.norm,
        linears: match &block.part {
            FeedForward::Dense(unit) => &unit.gate_up,
            FeedForward::Experts(experts) => match (&experts.shared, &experts.beside) {
                (Some(shared), _) => &shared.unit.gate_up,
                (None, Some(beside)) => &beside.unit.gate_up,
                (None, None) => &[],
            },
        },
    });
    // The power of a missing part has no meaning.
    let any = mixer.or(unit).expect("a layer with a part");
    [mixer, unit].map(|it| {
        it.unwrap_or(Bounded {
            linears: &[],
            ..any
        })
    })
}

/// Largest bound of all tiles, from the bits of their squares. NaN has larger bits than every number.
fn bound_of(squares: impl Iterator<Item = u32>) -> f32 {
    f32::from_bits(squares.max().unwrap_or_default()).sqrt()
}

/// Powers for the bounds of the mixer and of the gated unit of each layer.
fn layers_of(activation: Activation, bounds: &[f32]) -> Vec<LayerPowers> {
    let of = |&[values, unit]: &[f32; 2]| LayerPowers {
        mixer: Power::of_mean(values),
        unit: match activation {
            Activation::ClampedSwiglu => Some(Power(CLAMPED)),
            _ => Power::below(unit),
        },
    };
    bounds.as_chunks::<2>().0.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
