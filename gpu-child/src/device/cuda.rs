//! CUDA device: one forward pass for all architectures, with kernels of this project.
//!
//! ```text
//! load ──► rank: weights (packed arena)    step: plan ─► forward ─► head ─► tokens
//!                kv      (page arena)                      │          │
//!                scratch (activations)                     └── matmul, ops: launches
//! ```
//!
//! * [`context`] owns one context and one stream; [`memory`] owns all device memory, by purpose;
//!   [`kernels`] finds and launches the compiled kernels of `kernels/cuda`.
//! * [`rank`] has everything of one context that a pass reads; [`buffer_allocator`] lays out its buffers.
//! * [`load`] computes the memory budget of an open device, copies the file's tensors and packs them on the device;
//!   [`bounds`] bounds the outputs; [`residency`] then verifies that the weights are resident and unchanged.
//! * [`plan`] lays out a batch; [`launch`] launches a step; [`forward`] is the pass; [`matmul`] selects among kernels
//!   with equal bits, and [`wide`] the tiling for Hopper; [`sample`] draws the tokens, and [`shown_rows`] returns the
//!   logits of the draws.
//! * [`mixture`] is a layer's mixture of experts; [`experts`] has its kernels ([`expert_way`] lists the ways of
//!   multiplication, [`experts_wide`] is Hopper's), and [`products_few`] a kernel for products of few rows around it.
//! * [`mixers`] holds the kinds of mixers. The module of each has everything of it: [`attention`], [`delta_net`], [`short_conv`],
//!   [`mamba`]; [`states`] has what the last three share.
//! * [`decode_step`] is the whole pass in one launch, for small batches ([`step_model`] lists the models, [`tags`] of its
//!   exchanges, [`shared_plan`] of its blocks' memory, [`deal`] of its attention); [`graph`] records the launches of larger
//!   ones.
//! * [`kv_transfer`] shares the KV cache between processes: seals of its pages, and copies of other caches' pages.
//! * [`warm_up`] runs the first steps of a standby;
//! * [`step_queue`] keeps two steps in flight; [`board`] has the progress that kernels post.
//!
//! The law of [`device`](super) holds here since every output has one owner and one order of
//! additions, given by its own indices and the weight's shape (`kernels/cuda/common.cuh`).
//!
//! Deliberately absent: managed memory, a fallback to the host, and cudarc's safe layer with destructors
//! that panic or run after a sticky error. Nothing is released at the end: the
//! process exits, and NVIDIA's driver reclaims everything.

mod architectures;
mod arguments;
mod attention;
mod board;
mod bounds;
mod buffer_allocator;
mod checksum;
mod context;
mod deal;
mod decode_step;
mod delta_net;
mod driver_thread;
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
mod kv_transfer;
mod launch;
mod layer_inputs;
mod load;
mod mamba;
mod mapping;
mod matmul;
mod memory;
mod mixers;
mod mixture;
mod ops;
mod pack;
mod plan;
mod products_few;
mod purpose;
mod rank;
mod residency;
mod sample;
mod scratch;
mod shared_plan;
mod short_conv;
mod shown_rows;
mod states;
mod step_model;
mod step_queue;
mod tags;
mod tensor_map;
mod warm_up;
mod weights;
mod wide;

use crate::device::{
    Batch, Executor, KvGeometry, KvTransfer, LoadOptions, ProgressProbe, SampleWork, Source, Tap,
};
pub use context::{count_devices, outlook};
use decode_step::DecodeStep;
use driver_thread::DriverThread;
use graph::Graphs;
use head::OpenStep;
pub(crate) use kernels::KERNELS_VARIABLE;
pub use kernels::are_at_hand as kernels_are_at_hand;
use kv_transfer::KvSharing;
pub use load::Device;
use memory::Purpose;
use rank::Rank;
use residency::Residency;
use sample::Draws;
use shown_rows::ShownRows;
use std::os::fd::OwnedFd;
use step_queue::StepQueue;
pub use weights::bits_a_weight;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, MemoryBound, MemoryReport, WeightsManifest};

/// Limits on the use of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// Share of the device's memory, in thousandths. A KV cache without a configured size takes the
    /// rest of this share …
    pub memory_permille: u16,
    /// … but at most the pages of this number of sequences of full length.
    pub max_sequences: u32,
    pub load: LoadOptions,
}

/// A loaded model on a CUDA device.
#[derive(Debug)]
pub struct CudaExecutor {
    kv_sharing: Option<KvSharing>,
    decode_step: Option<DecodeStep>,
    graphs: Graphs,
    #[cfg(feature = "fault-injection")]
    fault_kernels: Option<faults::FaultKernels>,
    residency: Residency,
    draws: Draws,
    shown: ShownRows,
    steps: StepQueue,
    /// Launched step before its draws.
    open: Option<OpenStep>,
    driver_thread: DriverThread,
    rank: Rank,
}

impl CudaExecutor {
    /// Loads the model: packs the file's tensors, or takes over the packed weights of an earlier
    /// process. `progress` receives the bytes done and the total, as the file counts them.
    ///
    /// # Errors
    /// [`Fault::InsufficientMemory`] if weights, KV cache and activations do not fit,
    /// [`Fault::ModelLoad`] if the model requires a feature that is not compiled in or contradicts the
    /// retained weights, and [`Fault::Device`] if the retained weights have changed.
    pub fn load(
        device: Device,
        source: Source<'_>,
        options: &CudaOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Fault> {
        load::load(device, source, options, progress)
    }

    /// Layout of the weights' memory; equal for the same file, program and device.
    #[must_use]
    pub fn manifest(&self) -> &WeightsManifest {
        &self.rank.weights.manifest
    }

    /// Descriptor of the weights' memory, for a later process.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn share_weights(&self) -> Result<OwnedFd, Fault> {
        self.rank.weights.arena.share()
    }

    /// Drops the architecture-specific kernels, so that a test can compare both sets on one device.
    pub fn use_portable_kernels(&mut self) {
        self.rank.use_portable_kernels();
        self.decode_step = None;
        self.graphs = Graphs::default();
    }

    /// Records steps or makes their launches one by one, so that a measurement can compare both.
    pub fn use_graphs(&mut self, is_wanted: bool) {
        self.graphs = match is_wanted {
            true => Graphs::default(),
            false => Graphs::none(),
        };
    }

    /// Number of recorded steps, so that a test can check that there are any.
    #[must_use]
    pub fn recorded_steps(&self) -> usize {
        self.graphs.count()
    }
}

impl Executor for CudaExecutor {
    fn facts(&self) -> DeviceFacts {
        self.rank.context.facts()
    }

    fn memory(&self) -> MemoryReport {
        let (free, total) = self.driver_thread.memory();
        let bytes = |purpose| self.rank.context.ledger().bytes(purpose);
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
            draft_bytes: 0,
            // Other processes may share the card, so the driver's own share cannot be separated.
            context_bytes: None,
            // A weight that is not resident is a fault.
            resident: Some(true),
            weights_checked: self.residency.rounds(),
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.rank.kv.geometry()
    }

    fn max_batch_tokens(&self) -> u32 {
        self.rank.scratch.largest.tokens as u32
    }

    /// Prompt tokens that the streams of a dead child leave to compute at once.
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
        self.rank.context.enter()?;
        let end = self.steps.wait()?;
        // Also shows logits that are not finite, for the tap to find.
        self.shown.show(end.slot, tap);
        end.drawn(&mut self.draws)
    }

    fn is_ahead(&self) -> bool {
        true
    }

    fn promote(&mut self) -> Result<(), Fault> {
        self.rank.take_memory()
    }

    fn release(&mut self) -> Result<(), Fault> {
        self.rank.free_mapped()
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        self.kv_sharing.is_some().then_some(self as _)
    }

    fn progress_probe(&mut self) -> Option<Box<dyn ProgressProbe>> {
        let progress_probe = self
            .rank
            .board
            .progress_probe(&self.rank.context, self.steps.ends());
        progress_probe
            .ok()
            .map(|progress_probe| Box::new(progress_probe) as _)
    }

    fn inspect(&mut self) -> Result<(), Fault> {
        let kv = Some(self.rank.kv.arena()).filter(|arena| arena.has_memory());
        self.residency
            .check_slice(&self.rank.context, &self.rank.weights.arena, kv)
    }
}
