//! Code shared by all devices.

pub mod arena_layout;
pub mod batch;
pub mod budget;
pub mod kv;
pub mod layer_groups;
pub mod manifest;
pub mod placement;
pub mod states;

use crate::model::{FileWeights, GgufFile, ModelConfig};
use manifest::RetainedWeights;
use worker_orcd_ipc::{KvReaders, Role};

/// A checked model before it is loaded onto a device.
#[derive(Debug)]
pub struct Source<'a> {
    pub config: &'a ModelConfig,
    pub weights: &'a FileWeights<'a>,
    /// File behind the weights' mapping, if there is one: a card's load reads the file, and touches no page of the
    /// mapping.
    pub file: Option<&'a GgufFile>,
    /// Retained weights of an earlier process.
    pub retained: Option<RetainedWeights>,
}

/// Options of every device, given when a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// Ordered size of the KV cache; `None`: the device's default ([`budget`]).
    pub kv_cache_bytes: Option<u64>,
    /// Maximum tokens of a batch: determines the size of the activations.
    pub max_batch_tokens: u32,
    /// Maximum tokens of a sequence.
    pub max_sequence_tokens: u32,
    /// Role of the child. On a card without a shared KV cache, a standby allocates KV cache and activations only at its
    /// promotion.
    pub role: Role,
    /// Processes for which the KV cache lies in memory that may outlive this one. None without a prefix cache, in which
    /// adopted pages are looked up.
    pub kv_readers: KvReaders,
    /// Bytes that another process holds now, and that are free when this one serves.
    pub lent: u64,
    /// Memory of another executor of this process.
    pub beside: Beside,
    /// Name of the model, for faults only.
    pub model: String,
}

/// Memory of another executor of the same process and device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Beside {
    /// Part that is allocated.
    pub taken: u64,
    /// Part that is allocated later.
    pub promised: u64,
    /// The other executor is given up rather than a KV cache with pages that a next process can adopt.
    pub gives_way: bool,
}

impl Source<'_> {
    /// The same model, for a second attempt.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let kept = self.retained.as_ref();
        Ok(Self {
            retained: kept.map(RetainedWeights::try_clone).transpose()?,
            ..*self
        })
    }
}

impl LoadOptions {
    #[must_use]
    pub fn batch_tokens(&self) -> usize {
        self.max_batch_tokens.max(1) as usize
    }
}
