//! The CUDA device: one forward pass for every architecture, by kernels of our own.
//!
//! ```text
//! load ──► weights (packed arena)          step: plan ─► forward ─► head ─► tokens
//!          kv      (page arena)                            │          │
//!          scratch (activations)                           └── matmul, ops: launches
//! ```
//!
//! * [`driver`] is one context and one stream; [`memory`] owns every byte of device memory and
//!   knows what it is for; [`kernels`] finds and launches what `kernels/cuda` was compiled to.
//! * [`load`] decides what fits, copies the file's tensors and has the device pack them.
//! * [`plan`] lays a batch out; [`forward`] is the pass; [`matmul`] chooses among kernels that
//!   give the same bits; [`decode_step`] is the whole pass in one launch, for small batches, and
//!   [`graph`] a recording of its launches, for larger ones; [`sample`] draws the tokens,
//!   and [`flight`] keeps two steps on their way.
//!
//! The law of [`device`](super) holds here because every output has one owner and one order of
//! additions, given by its own indices and the weight's shape (`kernels/cuda/common.cuh`).
//!
//! Deliberately absent: managed memory, any way to compute on the host instead, and cudarc's safe
//! layer, whose destructors panic or run after a sticky error. Nothing is released at the end: the
//! process ends, and the driver takes everything back.

mod decode_step;
mod driver;
mod flight;
mod forward;
mod graph;
mod head;
mod kernels;
mod kv;
mod load;
mod matmul;
mod memory;
mod ops;
mod plan;
mod sample;
mod scratch;
mod weights;

use crate::device::{Ahead, Batch, Executor, KvGeometry, NoTap, Tap};
use crate::model::{ModelConfig, ModelWeights};
use decode_step::DecodeStep;
use driver::Driver;
use flight::Flights;
use graph::Graphs;
use kv::KvCache;
use matmul::Matmul;
use memory::DevicePtr;
use ops::Ops;
use sample::Draws;
use scratch::Scratch;
use weights::Weights;
use worker_orcd_ipc::{DeviceFacts, Fault, MemoryReport, TokenId};

/// How much of the device may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which device, as the driver counts them.
    pub ordinal: u32,
    /// `None` takes nearly all that is free.
    pub kv_cache_bytes: Option<u64>,
    /// The largest batch, in tokens: decides the size of the activations.
    pub max_batch_tokens: u32,
    /// The longest sequence, in tokens.
    pub max_sequence_tokens: u32,
    /// Named in a fault; nothing else depends on it.
    pub model: String,
}

/// A loaded model on a CUDA device.
#[derive(Debug)]
pub struct CudaExecutor {
    config: ModelConfig,
    weights: Weights,
    /// RoPE's cos and sin, in the weights' arena.
    turns: DevicePtr<[f32; 2]>,
    kv: KvCache,
    scratch: Scratch,
    ops: Ops,
    matmul: Matmul,
    decode_step: Option<DecodeStep>,
    graphs: Graphs,
    draws: Draws,
    flights: Flights,
    driver: Driver,
}

impl CudaExecutor {
    /// Uploads the model. `file` is the mapping that the weights lie in, where there is one: it
    /// is registered for the time of the load, which makes copies five times faster. `progress`
    /// hears of bytes done and in all, as the file counts them.
    ///
    /// # Errors
    /// [`Fault::DeviceUnavailable`] when there is no such device or this build has no kernels,
    /// [`Fault::InsufficientMemory`] when weights, KV cache and activations do not fit, and
    /// [`Fault::ModelLoad`] when the model asks for what is not compiled in.
    pub fn load(
        config: &ModelConfig,
        weights: &ModelWeights<'_>,
        file: Option<&[u8]>,
        options: &CudaOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Fault> {
        load::load(config, weights, file, options, progress)
    }
}

impl Executor for CudaExecutor {
    fn facts(&self) -> DeviceFacts {
        self.driver.facts()
    }

    fn memory(&self) -> MemoryReport {
        let memory = self.driver.memory().ok();
        MemoryReport {
            total_bytes: memory.map(|(_, total)| total),
            free_bytes: memory.map(|(free, _)| free),
            weights_bytes: self.weights.arena.bytes(),
            kv_capacity_bytes: self.kv.bytes(),
            kv_used_bytes: 0,
            scratch_bytes: self.scratch.bytes() + self.draws.bytes(),
            // Others may be on the card, so the driver's own share cannot be told from theirs.
            context_bytes: None,
            // Plain device memory cannot move.
            resident: Some(true),
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.kv.geometry()
    }

    fn max_batch_tokens(&self) -> u32 {
        self.scratch.sizes.tokens as u32
    }

    fn step(
        &mut self,
        batch: &Batch<'_>,
        tap: &mut dyn Tap,
    ) -> Result<Vec<Option<TokenId>>, Fault> {
        forward::depart(self, batch, tap)?;
        self.finish()
    }

    fn ahead(&mut self) -> Option<&mut dyn Ahead> {
        Some(self)
    }
}

impl Ahead for CudaExecutor {
    fn begin(&mut self, batch: &Batch<'_>) -> Result<(), Fault> {
        forward::depart(self, batch, &mut NoTap)
    }

    fn finish(&mut self) -> Result<Vec<Option<TokenId>>, Fault> {
        self.driver.enter()?;
        self.flights.land(&mut self.draws)
    }
}
