//! Everything of one context that a pass reads: weights, kernels, KV cache and activations.
//!
//! An executor has one rank. [`forward`](super::forward) and [`mixture`](super::mixture) compute a pass with it.

use super::board::Board;
use super::bounds::Powers;
use super::context::Context;
use super::experts::Experts;
use super::kernels::Module;
use super::kv::KvCache;
use super::matmul::Matmul;
use super::memory::read;
use super::mixers::Mixers;
use super::ops::Ops;
use super::scratch::Scratch;
use super::weights::{Layer, Weights};
use crate::model::{FeedForward, GatedUnit, ModelConfig};
use worker_orcd_ipc::Fault;

#[derive(Debug)]
pub struct Rank {
    pub config: ModelConfig,
    pub weights: Weights,
    pub powers: Powers,
    /// Factor of the residual stream behind each layer.
    pub output_scales: Vec<f32>,
    pub kv: KvCache,
    pub scratch: Scratch,
    pub ops: Ops,
    pub mixers: Mixers,
    pub matmul: Matmul,
    /// Kernels of a mixture of experts.
    pub experts: Option<Experts>,
    pub board: Board,
    /// Last, because all other fields have memory of it.
    pub context: Context,
}

impl Rank {
    /// Looks up the kernels for a loaded model.
    ///
    /// # Errors
    /// If a kernel is missing, or the device fails.
    pub fn new(
        context: Context,
        module: &Module,
        config: &ModelConfig,
        weights: Weights,
        (kv, scratch): (KvCache, Scratch),
    ) -> Result<Self, Fault> {
        let types = weights.tensors.matrices().map(|matrix| matrix.ty);
        let experts = match config.experts {
            Some(of) => {
                let layers = weights.tensors.layers.iter();
                let blocks = layers.filter_map(|layer| layer.feed_forward.as_ref());
                let units = blocks.filter_map(|block| match &block.part {
                    FeedForward::Experts(experts) => Some(&experts.unit),
                    FeedForward::Dense(_) => None,
                });
                let types = units.flat_map(GatedUnit::linears).map(|it| it.weight.ty);
                Some(Experts::load(&context, module, of, types)?)
            }
            None => None,
        };
        Ok(Self {
            config: config.clone(),
            ops: Ops::load(module)?,
            mixers: Mixers::load(&context, module, config)?,
            matmul: Matmul::load(&context, module, types)?,
            experts,
            powers: Powers::find(&context, module, config, &weights)?,
            output_scales: output_scales(&context, &weights)?,
            weights,
            kv,
            scratch,
            board: Board::new(&context, config.n_layers)?,
            context,
        })
    }

    /// Takes the memory that a standby has deferred.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn take_memory(&mut self) -> Result<(), Fault> {
        self.context.enter()?;
        self.scratch.take(&self.context)?;
        self.kv.take(&self.context)?;
        self.context.synchronize("taking over")
    }

    /// Frees the mapped memory: weights, KV cache and activations. Nothing is computed afterwards.
    ///
    /// # Errors
    /// The error of any earlier launch, or one of NVIDIA's driver.
    pub fn free_mapped(&mut self) -> Result<(), Fault> {
        self.context.enter()?;
        self.context.synchronize("freeing a model")?;
        self.weights.arena.free_mapped()?;
        self.kv.arena_mut().free_mapped()?;
        self.scratch.free_mapped()
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable_kernels(&mut self) {
        self.matmul.use_portable();
        self.mixers.use_portable();
        if let Some(experts) = &mut self.experts {
            experts.use_portable();
        }
    }
}

/// Factors of the residual stream behind the layers of a loaded model. The launch of a layer's last norm multiplies by them:
/// of the norm behind the part for its per-layer input, or behind the feed-forward part.
fn output_scales(context: &Context, weights: &Weights) -> Result<Vec<f32>, Fault> {
    let factor = |layer: &Layer| {
        let feed_forward = layer.feed_forward.as_ref();
        let has_post_norm = feed_forward.is_some_and(|block| block.post_norm.is_some());
        let has_norm = has_post_norm || layer.input.is_some();
        match &layer.output_scale {
        None => Ok(1.0),
        // SAFETY: a vector of one value.
        Some(scale) if has_norm => Ok(unsafe { read(context, weights.vector(scale), 1) }?[0]),
        Some(_) => Err(Fault::ModelLoad {
            message: "a factor of a layer's output without a norm in front of it is not supported on CUDA"
                .to_owned(),
        }),
    }
    };
    weights.tensors.layers.iter().map(factor).collect()
}
