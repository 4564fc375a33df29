//! The mixers of a model's layers: attention, gated delta nets, short convolutions, and state-space layers.
//!
//! The module of a mixer owns everything of it: kernels and their arguments, buffers, what it prepares of a step, bounds of
//! its outputs, and its launches. Other modules hold the types below and run through them. Only the step in one launch
//! ([`decode_step`](super::decode_step)) has an attention of its own, with the arguments of [`attention`].

use super::attention::plan::AttentionPlan;
pub use super::attention::tables::{PlacedTables, Tables};
use super::attention::{AttentionBuffers, AttentionGrids, AttentionKernels};
use super::bounds::Bounded;
use super::buffer_allocator::{BufferAllocator, StepInput};
use super::context::Context;
use super::delta_net::{DeltaNetBuffers, DeltaNetKernels};
use super::kernels::{INPUTS, Module};
use super::mamba::{MambaBuffers, MambaKernels};
use super::memory::DevicePtr;
use super::plan::Plan;
use super::rank::Rank;
use super::scratch::{Largest, OWN_INPUTS};
use super::short_conv::ShortConvKernels;
use super::states::{StateBuffers, StatePlan};
use super::weights::{Layer, MixerBlock};
use super::{attention, delta_net, mamba, short_conv, states};
use crate::device::Batch;
use crate::model::{DeltaNetConfig, MambaConfig, Mixer, ModelConfig, ShortConvConfig};
use worker_orcd_ipc::Fault;

// One launch copies the inputs of a step.
const _: () = assert!(OWN_INPUTS + attention::INPUTS + states::INPUTS <= INPUTS);

/// Refuses mixers that the kernels do not support. `shared_bytes` is the maximum shared memory per block.
///
/// # Errors
/// A message that names what is not supported.
pub fn check(config: &ModelConfig, shared_bytes: u32) -> Result<(), String> {
    attention::check(config, shared_bytes)?;
    config.delta_net().map_or(Ok(()), delta_net::check)?;
    config.mamba().map_or(Ok(()), mamba::check)
}

/// All layers have attention, without gates, norms of values, and norms over all heads.
#[must_use]
pub fn are_plain(config: &ModelConfig) -> bool {
    config.recurrent.is_none()
        && !config.gates_attention
        && !config.normalizes_values
        && !config.has_joint_norms
}

/// Columns of the widest outputs of a mixer, which its last product takes.
#[must_use]
pub fn outputs_width(config: &ModelConfig) -> usize {
    let net = config.delta_net().map_or(0, DeltaNetConfig::v_width);
    let conv = config.short_conv().map_or(0, |conv| conv.width);
    let mamba = config.mamba().map_or(0, MambaConfig::width);
    let widest = attention::heads_width(config);
    widest.max(net).max(conv).max(mamba)
}

/// Weights that bound the outputs of a mixer.
#[must_use]
pub fn bounded(block: &MixerBlock) -> Bounded<'_> {
    Bounded {
        norm: &block.norm,
        linears: match &block.part {
            Mixer::Attention(attention) => attention::bounded(attention),
            // Rows have a power of their own: the launch that makes them has all of a row anyway.
            Mixer::DeltaNet(_) | Mixer::ShortConv(_) | Mixer::Mamba(_) => &[],
        },
    }
}

/// Bound of the outputs of a layer's mixer that does not depend on weights, if there is one.
#[must_use]
pub fn known_bound(config: &ModelConfig, index: usize) -> Option<f32> {
    let attention = config.has_attention(index);
    let bound = attention.then(|| attention::bound_of_normal_values(config, index));
    bound.flatten()
}

/// Adds the output of a layer's mixer, if it has one, to the residual stream of all rows.
///
/// # Errors
/// If a launch fails.
pub fn run(rank: &Rank, plan: &Plan<'_>, index: usize, layer: &Layer) -> Result<(), Fault> {
    let Some(block) = &layer.mixer else {
        return Ok(());
    };
    match &block.part {
        Mixer::Attention(attention) => attention::run(rank, plan, index, (block, attention)),
        Mixer::DeltaNet(net) => delta_net::run(rank, plan, index, (block, net)),
        Mixer::ShortConv(conv) => short_conv::run(rank, plan, index, (block, conv)),
        Mixer::Mamba(of_layer) => mamba::run(rank, plan, index, (block, of_layer)),
    }
}

/// Kernels of a model's mixers.
#[derive(Debug)]
pub struct Mixers {
    pub attention: AttentionKernels,
    pub delta_nets: Option<DeltaNetKernels>,
    pub short_convs: Option<ShortConvKernels>,
    pub mamba: Option<MambaKernels>,
}

impl Mixers {
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for one.
    pub fn load(context: &Context, module: &Module, config: &ModelConfig) -> Result<Self, Fault> {
        let delta_nets = config.delta_net();
        let delta_nets = delta_nets.map(|net| DeltaNetKernels::load(module, net));
        let mamba = config.mamba();
        let mamba = mamba.map(|mamba| MambaKernels::load(module, mamba));
        let short_convs = config.short_conv();
        let short_convs = short_convs.map(|_| ShortConvKernels::load(module));
        Ok(Self {
            attention: AttentionKernels::load(context, module, config)?,
            delta_nets: delta_nets.transpose()?,
            short_convs: short_convs.transpose()?,
            mamba: mamba.transpose()?,
        })
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable(&mut self) {
        self.attention.use_portable();
    }

    /// Prepares a step.
    ///
    /// # Panics
    /// If the batch violates its contract: a page table too short, or an empty sequence.
    #[must_use]
    pub fn plan(&self, rank: &Rank, batch: &Batch<'_>) -> MixerPlan {
        MixerPlan {
            attention: self.attention.plan(rank, batch),
            states: StatePlan::new(batch.sequences, rank.kv.page_groups()),
        }
    }
}

/// Plan of a step for the mixers.
#[derive(Debug)]
pub struct MixerPlan {
    pub attention: AttentionPlan,
    pub states: StatePlan,
}

impl MixerPlan {
    /// Start of each sequence in the page tables.
    pub fn tables(&self) -> impl Iterator<Item = i32> {
        self.attention.starts.iter().copied()
    }

    /// Makes the launches of steps with drafts equal for longer.
    pub fn expect_drafts(&mut self) {
        self.attention.round_splits();
    }

    #[must_use]
    pub fn has_wide_tiles(&self) -> bool {
        self.attention.has_wide_tiles()
    }

    /// Sizes that determine the grids of the mixers' launches, beside the numbers of rows and sequences.
    #[must_use]
    pub fn grids(&self, rank: &Rank) -> MixerGrids {
        MixerGrids {
            attention: attention::grids(rank, &self.attention),
            pieces: self.states.pieces(),
        }
    }
}

/// The launches of steps with equal sizes are equal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MixerGrids {
    attention: AttentionGrids,
    /// Blocks of positions of a long prompt in delta nets.
    pieces: usize,
}

/// Buffers of the mixers.
#[derive(Debug, Clone, Copy)]
pub struct MixerBuffers {
    /// Output of a mixer's first product.
    pub projected: DevicePtr<f32>,
    /// Input of its last product.
    pub outputs: DevicePtr<f32>,
    pub attention: AttentionBuffers,
    pub delta_nets: Option<DeltaNetBuffers>,
    pub mamba: Option<MambaBuffers>,
    /// Buffers of layers with a recurrent state.
    pub states: Option<StateBuffers>,
}

impl MixerBuffers {
    pub fn place(places: &mut BufferAllocator<'_>, config: &ModelConfig, largest: Largest) -> Self {
        let net = config.delta_net();
        let projected = attention::projected_width(config);
        let projected = projected.max(net.map_or(0, delta_net::projected_width));
        let conv = config.short_conv();
        let projected = projected.max(conv.map_or(0, ShortConvConfig::projected_width));
        let mamba = config.mamba();
        let projected = projected.max(mamba.map_or(0, mamba::projected_width));
        let recurrent = config.recurrent.as_ref();
        Self {
            projected: places.buffer(largest.tokens * projected),
            outputs: places.buffer(largest.tokens * outputs_width(config)),
            delta_nets: net.map(|net| DeltaNetBuffers::place(places, net, largest)),
            mamba: mamba.map(|mamba| MambaBuffers::place(places, mamba, largest)),
            states: recurrent.map(|_| StateBuffers::place(places, largest)),
            attention: AttentionBuffers::place(places, config, largest),
        }
    }

    /// Inputs of the mixers for a step.
    ///
    /// # Panics
    /// If the batch is larger than announced.
    pub fn inputs<'a>(&self, plan: &'a MixerPlan) -> impl Iterator<Item = StepInput<'a>> {
        let of_states = self.states.map(|states| states.inputs(&plan.states));
        let of_attention = self.attention.inputs(&plan.attention);
        of_attention.chain(of_states.into_iter().flatten())
    }
}
