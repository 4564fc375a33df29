//! The CPU device: one forward pass for every architecture, on threads of its own.
//!
//! ```text
//! load ──► weights (packed arena)          step: embed ─► layers ─► head ─► tokens
//!          kv      (page arena)                  │          │         │
//!          scratch (activations)                 └── pool: items claimed by threads
//! ```
//!
//! * [`load`] decides what fits on an open device, then packs the file's tensors into one arena, or
//!   takes over the arena of an earlier process; after it the file is not read again. The arena is
//!   [`sealed`] and may outlive the process.
//! * [`forward`] is the pass: embedding, [`attention`], [`linear`] layers, [`experts`] where a
//!   model has them, and [`head`] for the rows that draw a token.
//! * [`pool`] hands numbered items to threads; [`memory`] owns every large allocation and knows
//!   what it is for; [`control_group`] may leave less of it than the machine has.
//!
//! The law of [`device`](super) holds here because an item of work is always "these outputs,
//! from all of their inputs, in an order given by their own indices": who computes it, and what
//! else is computed beside it, cannot be seen in the bits. Arithmetic lives in
//! [`worker_orcd_kernels::cpu`]; this folder decides what runs where.

mod attention;
mod control_group;
mod experts;
mod forward;
mod head;
mod kv;
mod kv_custody;
mod linear;
mod load;
mod memory;
mod plan;
mod pool;
mod scratch;
mod sealed;
mod weights;

use crate::device::common::batch::DrawingRow;
use crate::device::{Batch, Executor, KvCustody, KvGeometry, LoadOptions, SampleWork, Source, Tap};
use crate::model::ModelConfig;
use kv::KvCache;
use kv_custody::KvSharing;
pub use linear::Device;
use scratch::Scratch;
use std::os::fd::OwnedFd;
use weights::CpuWeights;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, MemoryReport, WeightsManifest};

/// A loaded model on the CPU.
#[derive(Debug)]
pub struct CpuExecutor {
    device: Device,
    config: ModelConfig,
    weights: CpuWeights,
    kv: KvCache,
    kv_sharing: KvSharing,
    scratch: Scratch,
    /// The step whose draws are to come.
    open: Option<OpenStep>,
    /// What the step before drew, until it is asked for.
    drawn: Vec<Drawn>,
}

/// A step that is computed up to its draws: its residual stream lies in the scratch.
#[derive(Debug)]
pub struct OpenStep {
    step: u64,
    rows: Vec<DrawingRow>,
}

impl CpuExecutor {
    /// Gets the model in place: packs the file's tensors, or takes over what an earlier process has
    /// packed. `progress` hears of bytes done and in all, as the file counts them.
    ///
    /// # Errors
    /// [`Fault::InsufficientMemory`] when weights, KV cache and activations do not fit,
    /// [`Fault::ModelLoad`] when the tensors contradict the configuration or what was kept, and
    /// [`Fault::Device`] when what was kept has changed.
    pub fn load(
        device: Device,
        source: Source<'_>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Fault> {
        load::load(device, source, options, progress)
    }

    /// What lies where in the memory of the weights; the same for the same file and program.
    #[must_use]
    pub fn manifest(&self) -> &WeightsManifest {
        &self.weights.manifest
    }

    /// The memory of the weights, for a later process.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn share_weights(&self) -> Result<OwnedFd, Fault> {
        self.weights.arena.share()
    }
}

impl Executor for CpuExecutor {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            id: "cpu".to_owned(),
            name: memory::cpu_name().unwrap_or_else(|| "unknown CPU".to_owned()),
            uuid: None,
            driver: None,
            compute_capability: None,
            features: self
                .device
                .isa
                .features()
                .iter()
                .map(|&name| name.to_owned())
                .collect(),
            threads: Some(self.device.pool.threads() as u32),
        }
    }

    fn memory(&self) -> MemoryReport {
        let room = memory::room();
        MemoryReport {
            total_bytes: room.map(|room| room.total),
            free_bytes: room.map(|room| room.available),
            bound: room.map(|room| room.bound),
            weights_bytes: self.weights.bytes(),
            kv_capacity_bytes: self.kv.bytes(),
            kv_used_bytes: 0,
            kv_taken_bytes: self.kv.arena().taken_bytes(),
            scratch_bytes: self.scratch.bytes(),
            graphs_bytes: 0,
            context_bytes: None,
            resident: None,
            weights_checked: 0,
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.kv.geometry()
    }

    fn max_batch_tokens(&self) -> u32 {
        self.scratch.max_tokens() as u32
    }

    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
        let rows = forward::begin(self, batch, tap);
        let step = batch.step;
        self.open = Some(OpenStep { step, rows });
        Ok(())
    }

    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault> {
        let open = self.open.take().expect("a step that was begun");
        self.drawn = forward::draw(self, &open, draws, tap)?;
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        Ok(std::mem::take(&mut self.drawn))
    }

    fn kv_custody(&mut self) -> Option<&mut dyn KvCustody> {
        self.kv.arena().is_shareable().then_some(self as _)
    }
}
