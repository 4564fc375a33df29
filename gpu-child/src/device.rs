//! The device boundary is a step, not an operation.
//!
//! The scheduler passes a [`Batch`] (sequences, new tokens with positions, KV pages) to the device's [`Executor`] and
//! receives the [`Drawn`] token of each sampling row. Fusion, graphs, persistent kernels and threads are the device's
//! own choice, under one law:
//!
//! > The result of one sequence depends on (weights, its tokens, its positions, its sampling
//! > parameters) and on nothing else, bit for bit: not on its neighbours in the batch, not on
//! > how its prompt was cut into chunks, not on whether its pages were computed by another
//! > request with the same prefix, not on the number of threads.

use crate::model::ModelConfig;
use std::any::Any;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, MemoryReport, RequestId, TokenId};

mod common;
pub mod cpu;
pub mod cuda;
#[cfg(feature = "fault-injection")]
pub mod injected_fault;
mod kv_geometry;
mod kv_transfer;
mod open;

pub use common::arena_layout::ARENA_LAYOUT;
pub use common::manifest::RetainedWeights;
pub use common::{Beside, LoadOptions, Source};
pub use kv_geometry::{KvGeometry, KvGroups, PageId, SlidingGroups};
pub use kv_transfer::{KvTransfer, PageCopy, PagePart};
pub(crate) use open::{OpenDevice, Placed};
pub use worker_orcd_sampler::SampleWork;

/// Bytes of a KV cache in which each of so many sequences has a page of each block and group: for tools without a scheduler,
/// which releases pages.
#[must_use]
pub fn kv_bytes_of(config: &ModelConfig, options: &LoadOptions, sequences: usize) -> u64 {
    common::kv::KvLayout::of(config, options).bytes_of(options, sequences)
}

/// Bytes of the KV cache that the longest sequence takes at a time.
#[must_use]
pub fn sequence_kv_bytes(config: &ModelConfig, options: &LoadOptions) -> u64 {
    let layout = common::kv::KvLayout::of(config, options);
    layout.sequence_pages(options) * layout.shape.page_bytes()
}

/// Placeholder for the token that the preceding step samples for the same request, in a step launched before that one
/// has ended. The device substitutes the token. Never in a prompt, and only as the newest token of a sequence.
pub const TO_BE_DRAWN: TokenId = TokenId(u32::MAX);

/// Input of one step.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Number of the step in this child, from 1. Faults name it.
    pub step: u64,
    pub sequences: &'a [SequenceWork<'a>],
}

/// A sequence's share of a step: `tokens` run at `first_position ..`, their keys and values are written to `pages`, and
/// they attend to all earlier positions.
#[derive(Debug, Clone, Copy)]
pub struct SequenceWork<'a> {
    pub request: RequestId,
    /// Never empty.
    pub tokens: &'a [TokenId],
    pub first_position: u32,
    /// Page table from position 0 on; covers at least `first_position + tokens.len()`. Page of block `b` and group `g`
    /// of layers at `b * groups + g`. Entries outside all windows, or unwritten ones, may be any page.
    pub pages: &'a [PageId],
    /// Sampling parameters of the last row, if `tokens` ends at the newest token, so that the next one may be sampled.
    pub sample: Option<SampleWork<'a>>,
    /// The last so many of `tokens` are drafts: guesses of tokens that are not sampled yet. Their rows and the one before
    /// them may be sampled. Zero without `sample`, and smaller than the number of tokens. Tokens that a grammar forces may
    /// come as drafts, so that all rows of the step are sampling rows.
    pub drafts: usize,
}

impl<'a> SequenceWork<'a> {
    /// Sampling parameters of each row that may be sampled, in order. Their histories include the drafts before the row.
    pub fn samples(&self) -> impl Iterator<Item = SampleWork<'a>> + use<'a> {
        let drafts = self.drafts;
        let last = self.sample.into_iter();
        last.flat_map(move |last| (0..=drafts).rev().map(move |behind| last.before(behind)))
    }
}

/// A device that computes steps. `Any`, so that fault injection finds the devices with faults of their own.
pub trait Executor: Any + Send {
    fn facts(&self) -> DeviceFacts;
    /// Memory usage. `kv_used_bytes` is 0 here: the scheduler counts the pages in use.
    fn memory(&self) -> MemoryReport;
    fn kv_geometry(&self) -> KvGeometry;
    /// Maximum number of tokens of a batch, over all sequences.
    fn max_batch_tokens(&self) -> u32;

    /// Prompt tokens of the first step, before any measurement: few enough for the slowest machine.
    fn first_prompt_tokens(&self) -> u32 {
        32
    }

    /// Begins a step: computes the batch, or launches it, up to the sampling. The preceding step's sampling has been
    /// launched; a token that it has not returned yet is [`TO_BE_DRAWN`] here. A step with drafts has ended.
    ///
    /// # Errors
    /// A [`Fault`]: the executor is unusable and the child must end. The preceding step may have caused it.
    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault>;

    /// Samples the last step: an entry for each row that may be sampled ([`SequenceWork::samples`]), in order. `None`
    /// samples nothing.
    /// These parameters are the effective ones; at the beginning, masks may be missing. The tap selects
    /// [`Checkpoint::Logits`], which it receives here or when the step is finished.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault>;

    /// Waits for the oldest sampled step, and returns its tokens, in order. The tap is that of its sampling, and
    /// receives the selected values that are still missing.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    fn finish(&mut self, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault>;

    /// True for an asynchronous device: a step may begin while another is in flight, at most two.
    fn is_ahead(&self) -> bool {
        false
    }

    /// Runs a whole step.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    fn step(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        self.begin(batch, tap)?;
        let samples = batch.sequences.iter().flat_map(SequenceWork::samples);
        let draws: Vec<_> = samples.map(Some).collect();
        self.draw(&draws, tap)?;
        self.finish(tap)
    }

    /// Checks a part of the loaded memory for presence and changes. Called between steps, some ten times a second, also
    /// while idle; must not block. A device without such a check reports [`MemoryReport::resident`] as unknown.
    ///
    /// # Errors
    /// A [`Fault`]: recent results cannot be trusted, and the child must end.
    fn inspect(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Allocates the memory that a standby leaves to the serving child until now. Called once, before the first step,
    /// if the load was ordered for a [`Role::Standby`](worker_orcd_ipc::Role::Standby).
    ///
    /// # Errors
    /// A [`Fault`]: the memory is not available.
    fn promote(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Frees the memory of the model, before the executor is dropped: mapped memory of a card is not freed by that. Nothing is
    /// computed afterwards.
    ///
    /// # Errors
    /// A [`Fault`]: the device is unusable and the child must end.
    fn release(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// The shareable KV cache; `None` if it dies with its process.
    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        None
    }

    /// Progress probe for steps that do not end; requested once, after the load. A synchronous device reports progress
    /// to its [`Tap`] and needs none.
    fn progress_probe(&mut self) -> Option<Box<dyn ProgressProbe>> {
        None
    }
}

/// Reader of a device's progress, for another thread than the one that waits for the device.
pub trait ProgressProbe: Send {
    /// Report in one line. The wait is bounded, whatever the device does.
    fn account(&mut self) -> String;
}

/// Observer of intermediate values of a step: the logits trace and the parity tests. It slows the step, so the device
/// queries its selection first.
pub trait Tap {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool;
    /// Receives one row: `[n_embd]` for a layer or a norm, `[vocab]` for logits (before penalties and temperature), of
    /// the token at `position`.
    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]);
    /// Progress: all rows of the step have reached the checkpoint. An asynchronous device does not call it.
    fn reached(&mut self, _: &Checkpoint) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checkpoint {
    /// Output of the token embedding.
    Embedding,
    /// The residual stream after this layer.
    Layer(u32),
    /// Output of the final norm, only at sampling positions.
    FinalNorm,
    /// Logits, only at sampling positions.
    Logits,
    /// Output of the final norm at every position of the selected requests, sampling or not. Other requests' rows are
    /// not computed.
    Hidden,
    /// Logits at every position of the selected requests, sampling or not: the same bits as `Logits` at a sampling
    /// position. Other requests' rows are not computed.
    PromptLogits,
}

/// A tap without selection.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTap;

impl Tap for NoTap {
    fn wants(&self, _: RequestId, _: &Checkpoint) -> bool {
        false
    }
    fn see(&mut self, _: RequestId, _: &Checkpoint, _: u32, _: &[f32]) {}
}
