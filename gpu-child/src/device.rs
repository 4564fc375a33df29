//! The device boundary is a step, not an operation.
//!
//! The scheduler hands a [`Batch`] (which sequences, which new tokens at which positions, which
//! KV pages) to the device's [`Executor`] and gets back what was [`Drawn`]
//! for each row that draws. What happens below that line (fusing, graphs, persistent kernels, threads)
//! is the device's own business, under one law:
//!
//! > What one sequence gets depends on (weights, its tokens, its positions, its sampling
//! > parameters) and on nothing else, bit for bit: not on its neighbours in the batch, not on
//! > how its prompt was cut into chunks, not on whether its pages were computed by another
//! > request with the same prefix, not on the number of threads.

use std::any::Any;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, MemoryReport, RequestId, TokenId};

mod common;
pub mod cpu;
pub mod cuda;
mod kv_custody;
mod kv_geometry;
#[cfg(feature = "fault-injection")]
pub mod misdeed;
mod open;

pub use crate::sampler::SampleWork;
pub use common::arena_layout::ARENA_LAYOUT;
pub use common::manifest::KeptWeights;
pub use common::{LoadOptions, Source};
pub use kv_custody::{KvCustody, PageCopy, PagePart};
pub use kv_geometry::{KvGeometry, KvGroups, NearGroups, PageId};
pub(crate) use open::OpenDevice;

/// Stands for the token that the step before draws for the same request, where a step is launched
/// before that one has ended: the device puts the token in its place. Never in a prompt, and only
/// the newest of a sequence's tokens.
pub const TO_BE_DRAWN: TokenId = TokenId(u32::MAX);

/// Everything one step computes.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Steps of this child, counted from 1; goes into faults.
    pub step: u64,
    pub sequences: &'a [SequenceWork<'a>],
}

/// A sequence's share of a step: `tokens` are run at `first_position ..`, their keys and values
/// written to `pages`, attending to everything before them.
#[derive(Debug, Clone, Copy)]
pub struct SequenceWork<'a> {
    pub request: RequestId,
    /// Never empty.
    pub tokens: &'a [TokenId],
    pub first_position: u32,
    /// Page table from position 0 on; covers at least `first_position + tokens.len()`. Of block `b` and group `g` of layers at
    /// `b * groups + g`; where nothing of a block is seen any more, or was written yet, a page of anybody.
    pub pages: &'a [PageId],
    /// Parameters of the draw, when `tokens` ends at the newest token, so that a next one may be drawn.
    pub sample: Option<SampleWork<'a>>,
}

/// `Any`, so that fault injection finds the devices that can fail by themselves.
pub trait Executor: Any + Send {
    fn facts(&self) -> DeviceFacts;
    /// `kv_used_bytes` is left 0 here: the scheduler knows which pages are in use.
    fn memory(&self) -> MemoryReport;
    fn kv_geometry(&self) -> KvGeometry;
    /// The largest number of tokens, over all sequences, that one batch may hold.
    fn max_batch_tokens(&self) -> u32;

    /// Prompt tokens of a first step, when nobody knows yet how long one takes: few enough on the slowest
    /// machine.
    fn first_prompt_tokens(&self) -> u32 {
        32
    }

    /// Begins a step: computes the batch, or sends it on its way, up to the draws. The draws of the step
    /// before were decided on. A token that they are still to give is [`TO_BE_DRAWN`] here.
    ///
    /// # Errors
    /// A [`Fault`]: the executor cannot be used any more and the child must end. It may be that of the step
    /// before.
    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault>;

    /// The draws of the step begun last: an entry for each of its sequences with a `sample`, in order. Where
    /// it is `None` nothing is drawn. What counts is given here; at the beginning, masks may not be known yet.
    /// The tap says which [`Checkpoint::Logits`] it wants. They are shown here, or when the step is finished.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault>;

    /// Waits for the oldest step whose draws were decided on, and gives what it drew, in order. The tap is that of
    /// its draws: it sees what it wanted then and was not shown.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn finish(&mut self, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault>;

    /// It computes while the caller goes on, so that a step may be begun while another is on its way: two at
    /// most.
    fn is_ahead(&self) -> bool {
        false
    }

    /// A whole step.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn step(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        self.begin(batch, tap)?;
        let samples = batch.sequences.iter().filter_map(|work| work.sample);
        let draws: Vec<_> = samples.map(Some).collect();
        self.draw(&draws, tap)?;
        self.finish(tap)
    }

    /// Looks whether what was loaded is still there and still the same, a part of it at a time.
    /// Called between steps, some ten times a second, also while there is nothing to do; must not
    /// wait. A device that cannot look reports [`MemoryReport::resident`] as unknown.
    ///
    /// # Errors
    /// A [`Fault`]: what was computed lately cannot be trusted, and the child must end.
    fn inspect(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// Takes the memory that a standby has left to the child that served, and that the device may get
    /// back only now. Called once, before the first step, where the order to load was for a
    /// [`Role::Standby`](worker_orcd_ipc::Role::Standby).
    ///
    /// # Errors
    /// A [`Fault`]: the memory is not there.
    fn promote(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// The KV cache as others may have it; `None` where it dies with its process.
    fn kv_custody(&mut self) -> Option<&mut dyn KvCustody> {
        None
    }

    /// A witness of steps that do not end; asked for once, when everything is loaded. A device that
    /// computes in the caller's thread tells its [`Tap`] how far it is, and needs none.
    fn witness(&mut self) -> Option<Box<dyn Witness>> {
        None
    }
}

/// A reader of a device's progress, for another thread than the one that waits for the device.
pub trait Witness: Send {
    /// An account in one line. Waits for a bounded time, whatever the device does.
    fn account(&mut self) -> String;
}

/// Looks at intermediate values while a step runs; behind it are the logits trace and the parity
/// tests. Slow on purpose, so it is asked first.
pub trait Tap {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool;
    /// `values` is one row: `[n_embd]` for a layer or a norm, `[vocab]` for logits (before penalties and
    /// temperature), of the token at `position`.
    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]);
    /// The step is that far, for all its rows. A device that runs a whole step in one go says
    /// nothing.
    fn reached(&mut self, _: &Checkpoint) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checkpoint {
    /// Output of the token embedding.
    Embedding,
    /// The residual stream after this layer.
    Layer(u32),
    /// Output of the final norm, only for positions at which a token is drawn.
    FinalNorm,
    /// Logits, only for positions at which a token is drawn.
    Logits,
    /// Output of the final norm at every position of who wants it, whether a token is drawn there or not.
    /// Nobody else's is computed.
    Hidden,
    /// Logits at every position of who wants them, whether a token is drawn there or not: the same bits as
    /// `Logits` where one is. Nobody else's are computed.
    PromptLogits,
}

/// A tap that sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTap;

impl Tap for NoTap {
    fn wants(&self, _: RequestId, _: &Checkpoint) -> bool {
        false
    }
    fn see(&mut self, _: RequestId, _: &Checkpoint, _: u32, _: &[f32]) {}
}
