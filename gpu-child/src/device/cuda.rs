//! The CUDA device: one forward pass for every architecture, by kernels of our own.
//!
//! ```text
//! load ──► weights (packed arena)          step: plan ─► forward ─► head ─► tokens
//!          kv      (page arena)                            │          │
//!          scratch (activations)                           └── matmul, ops: launches
//! ```
//!
//! * [`context`] is one context and one stream; [`memory`] owns every byte of device memory and
//!   knows what it is for; [`kernels`] finds and launches what `kernels/cuda` was compiled to.
//! * [`load`] decides what fits on an open device, copies the file's tensors and has the device pack
//!   them, and [`tables`] by position behind them; [`bounds`] looks how large what they give can be, and [`residency`] from then
//!   on whether they are still there, and still the same.
//! * [`plan`] lays a batch out; [`launch`] sends a step on its way; [`forward`] is the pass; [`matmul`] chooses among kernels that
//!   give the same bits, and [`wide`] the tiling of Hopper's; [`sample`] draws the tokens, and [`shown_rows`] has what
//!   they were drawn from.
//! * [`mixture`] is the part of a layer that is a mixture of experts; [`experts`] has its kernels ([`expert_way`] names the
//!   ways to multiply, [`experts_wide`] has the one of Hopper), and [`products_few`] one for the products of few rows around it.
//! * [`decode_step`] is the whole pass in one launch, for small batches ([`tags`] of its exchanges,
//!   [`shared_plan`] of its blocks' memory, [`deal`] of its attention); [`graph`] records the launches of larger ones.
//! * [`kv_custody`] is the KV cache as others may have it: seals of its pages, and copies of theirs.
//! * [`warm_up`] runs what a standby will need at once;
//! * [`step_queue`] keeps two steps in flight; [`board`] is where kernels post how far they are.
//!
//! The law of [`device`](super) holds here because every output has one owner and one order of
//! additions, given by its own indices and the weight's shape (`kernels/cuda/common.cuh`).
//!
//! Deliberately absent: managed memory, any way to compute on the host instead, and cudarc's safe
//! layer, whose destructors panic or run after a sticky error. Nothing is released at the end: the
//! process ends, and NVIDIA's driver takes everything back.

mod architectures;
mod arguments;
mod aside;
mod board;
mod bounds;
mod checksum;
mod context;
mod deal;
mod decode_step;
mod expert_arguments;
mod expert_room;
mod expert_way;
mod experts;
mod experts_wide;
#[cfg(feature = "fault-injection")]
mod faults;
mod feed;
mod forward;
mod graph;
mod head;
mod headers;
mod host_memory;
mod kernels;
mod kv;
mod kv_custody;
mod launch;
mod load;
mod mapping;
mod matmul;
mod memory;
mod mixture;
mod ops;
mod pack;
mod plan;
mod products_few;
mod purpose;
mod residency;
mod sample;
mod scratch;
mod shared_plan;
mod shown_rows;
mod step_queue;
mod tables;
mod tags;
mod tensor_map;
mod warm_up;
mod weights;
mod wide;

use crate::device::{
    Batch, Executor, KvCustody, KvGeometry, LoadOptions, SampleWork, Source, Tap, Witness,
};
use crate::model::ModelConfig;
use aside::Aside;
use board::Board;
use bounds::Powers;
use context::Context;
pub use context::{count_devices, outlook};
use decode_step::DecodeStep;
use experts::Experts;
use graph::Graphs;
use head::OpenStep;
pub(crate) use kernels::KERNELS_VARIABLE;
pub use kernels::are_at_hand as kernels_are_at_hand;
use kv::KvCache;
use kv_custody::KvSharing;
pub use load::Device;
use matmul::Matmul;
use memory::Purpose;
use ops::Ops;
use residency::Residency;
use sample::Draws;
use scratch::Scratch;
use shown_rows::ShownRows;
use std::os::fd::OwnedFd;
use step_queue::StepQueue;
use weights::Weights;
pub use weights::bits_a_weight;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, MemoryBound, MemoryReport, WeightsManifest};

/// Parts of the device that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// The KV cache, where its size is not ordered, takes what is left of this part of the device's
    /// memory, in thousandths …
    pub memory_permille: u16,
    /// … but no more than so many sequences of full length can fill.
    pub max_sequences: u32,
    pub load: LoadOptions,
}

/// A loaded model on a CUDA device.
#[derive(Debug)]
pub struct CudaExecutor {
    config: ModelConfig,
    weights: Weights,
    powers: Powers,
    kv: KvCache,
    kv_sharing: Option<KvSharing>,
    scratch: Scratch,
    ops: Ops,
    matmul: Matmul,
    experts: Option<Experts>,
    decode_step: Option<DecodeStep>,
    graphs: Graphs,
    #[cfg(feature = "fault-injection")]
    misdeeds: Option<faults::Misdeeds>,
    residency: Residency,
    draws: Draws,
    shown: ShownRows,
    steps: StepQueue,
    /// The step whose draws are to come.
    open: Option<OpenStep>,
    board: Board,
    aside: Aside,
    context: Context,
}

impl CudaExecutor {
    /// Gets the model in place: packs the file's tensors, or takes over what an earlier process has
    /// packed. `progress` hears of bytes done and in all, as the file counts them.
    ///
    /// # Errors
    /// [`Fault::InsufficientMemory`] when weights, KV cache and activations do not fit,
    /// [`Fault::ModelLoad`] when the model asks for what is not compiled in or contradicts what was
    /// kept, and [`Fault::Device`] when what was kept has changed.
    pub fn load(
        device: Device,
        source: Source<'_>,
        options: &CudaOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Fault> {
        load::load(device, source, options, progress)
    }

    /// What lies where in the memory of the weights; the same for the same file, program and device.
    #[must_use]
    pub fn manifest(&self) -> &WeightsManifest {
        &self.weights.manifest
    }

    /// The memory of the weights, for a later process.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn share_weights(&self) -> Result<OwnedFd, Fault> {
        self.weights.arena.share()
    }

    /// Gives up the kernels that only some architectures have, so that one device can compare both
    /// sets.
    pub fn use_portable_kernels(&mut self) {
        self.matmul.use_portable();
        self.ops.use_portable();
        if let Some(experts) = &mut self.experts {
            experts.use_portable();
        }
        self.decode_step = None;
        self.graphs = Graphs::default();
    }
}

impl Executor for CudaExecutor {
    fn facts(&self) -> DeviceFacts {
        self.context.facts()
    }

    fn memory(&self) -> MemoryReport {
        let (free, total) = self.aside.memory();
        let bytes = |purpose| self.context.ledger().bytes(purpose);
        MemoryReport {
            total_bytes: Some(total),
            free_bytes: Some(free),
            bound: Some(MemoryBound::Device),
            weights_bytes: bytes(Purpose::Weights),
            kv_capacity_bytes: bytes(Purpose::Kv),
            kv_used_bytes: 0,
            kv_taken_bytes: Some(bytes(Purpose::Kv)),
            scratch_bytes: bytes(Purpose::Scratch),
            graphs_bytes: bytes(Purpose::Graphs),
            // Others may be on the card, so NVIDIA's driver's own share cannot be told from theirs.
            context_bytes: None,
            // Else it would have been a fault.
            resident: Some(true),
            weights_checked: self.residency.rounds(),
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.kv.geometry()
    }

    fn max_batch_tokens(&self) -> u32 {
        self.scratch.sizes.tokens as u32
    }

    /// What the streams of a child that died leave to be computed at once.
    fn first_prompt_tokens(&self) -> u32 {
        512
    }

    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
        launch::begin(self, batch, tap)
    }

    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault> {
        launch::draw(self, draws, tap)
    }

    fn finish(&mut self, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        self.context.enter()?;
        let end = self.steps.wait()?;
        // Also what is no number: somebody looks for it there.
        self.shown.show(end.slot, tap);
        end.drawn(&mut self.draws)
    }

    fn is_ahead(&self) -> bool {
        true
    }

    fn promote(&mut self) -> Result<(), Fault> {
        self.context.enter()?;
        self.scratch.take(&self.context)?;
        self.kv.take(&self.context)?;
        self.context.synchronize("taking over")
    }

    fn kv_custody(&mut self) -> Option<&mut dyn KvCustody> {
        self.kv_sharing.is_some().then_some(self as _)
    }

    fn witness(&mut self) -> Option<Box<dyn Witness>> {
        let witness = self.board.witness(&self.context, self.steps.ends());
        witness.ok().map(|witness| Box::new(witness) as _)
    }

    fn inspect(&mut self) -> Result<(), Fault> {
        let kv = Some(self.kv.arena()).filter(|arena| arena.has_memory());
        self.residency
            .check_slice(&self.context, &self.weights.arena, kv)
    }
}
