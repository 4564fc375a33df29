//! The CPU device: one forward pass for every architecture, on its own threads.
//!
//! ```text
//! load ──► weights (packed arena)          step: embed ─► layers ─► head ─► tokens
//!          kv      (page arena)                  │          │         │
//!          scratch (activations)                 └── pool: items claimed by threads
//! ```
//!
//! * [`load`] sizes the KV cache on an open device, then packs the file's tensors into one arena, or takes over the
//!   arena of an earlier process; afterwards the file is not read again. The arena is [`sealed`] and may outlive the
//!   process.
//! * [`forward`] is the pass: embedding, [`attention`], a [`delta_net`], a [`short_conv`] or [`mamba`], [`linear`] layers, [`experts`] and
//!   [`layer_inputs`] if the model has them, and [`head`] for sampling rows.
//! * [`pool`] distributes numbered items to threads; [`memory`] owns every large allocation and its purpose;
//!   [`control_group`] may leave less memory than the machine has.
//!
//! The law of [`device`](super) holds here because a work item is always a set of outputs, computed from all of their
//! inputs, in an order given by their own indices: neither the thread nor other items affect the bits. Arithmetic lives
//! in [`worker_orcd_kernels::cpu`]; this folder schedules it.

mod attention;
mod control_group;
mod delta_net;
mod experts;
mod forward;
mod head;
mod kv;
mod kv_transfer;
mod layer_inputs;
mod linear;
mod load;
mod mamba;
mod memory;
mod plan;
mod pool;
mod scratch;
mod sealed;
mod short_conv;
mod weights;

use crate::device::common::batch::DrawingRow;
use crate::device::{
    Batch, Executor, KvGeometry, KvTransfer, LoadOptions, SampleWork, Source, Tap,
};
use crate::model::ModelConfig;
use kv::KvCache;
use kv_transfer::KvSharing;
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
    /// The step that is not sampled yet.
    open: Option<OpenStep>,
    /// Tokens of the preceding step, until they are collected.
    drawn: Vec<Drawn>,
}

/// A step computed up to its sampling: its residual stream is in the scratch.
#[derive(Debug)]
pub struct OpenStep {
    step: u64,
    rows: Vec<DrawingRow>,
}

impl CpuExecutor {
    /// Loads the model: packs the file's tensors, or takes over the packed weights of an earlier process. `progress`
    /// receives done and total bytes, in bytes of the file.
    ///
    /// # Errors
    /// [`Fault::InsufficientMemory`] if weights, KV cache and activations do not fit, [`Fault::ModelLoad`] if the
    /// tensors contradict the configuration or the retained weights, and [`Fault::Device`] if the retained weights have
    /// changed.
    pub fn load(
        device: Device,
        source: Source<'_>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Fault> {
        load::load(device, source, options, progress)
    }

    /// Layout of the weights' memory; equal for the same file and binary.
    #[must_use]
    pub fn manifest(&self) -> &WeightsManifest {
        &self.weights.manifest
    }

    /// Descriptor of the weights' memory, for a later process.
    ///
    /// # Errors
    /// If no descriptor is left.
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
            draft_bytes: 0,
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

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        self.kv.arena().is_shareable().then_some(self as _)
    }
}
