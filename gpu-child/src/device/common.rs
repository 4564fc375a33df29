//! Knowledge that every device has in the same way.

pub mod arena_layout;
pub mod batch;
pub mod budget;
pub mod kv;
pub mod layer_groups;
pub mod manifest;
pub mod placement;

use crate::model::{FileWeights, GgufFile, ModelConfig};
use manifest::KeptWeights;
use worker_orcd_ipc::{KvReaders, Role};

/// A model that has been checked, before it is in place.
#[derive(Debug)]
pub struct Source<'a> {
    pub config: &'a ModelConfig,
    pub weights: &'a FileWeights<'a>,
    /// The file whose mapping the weights lie in, where there is one: a card's load reads it, and touches no page
    /// of the mapping.
    pub file: Option<&'a GgufFile>,
    /// What an earlier process has made of the weights.
    pub kept: Option<KeptWeights>,
}

/// Options of every device, given when a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// `None` takes what the device thinks best ([`budget`]).
    pub kv_cache_bytes: Option<u64>,
    /// The largest batch, in tokens: decides the size of the activations.
    pub max_batch_tokens: u32,
    /// The longest sequence, in tokens.
    pub max_sequence_tokens: u32,
    /// A standby on a card that shares no KV cache takes the memory of KV cache and activations only when it is
    /// promoted.
    pub role: Role,
    /// For whom the KV cache lies in memory that may outlive the process. Nobody without a prefix cache, by which
    /// adopted pages are found.
    pub kv_readers: KvReaders,
    /// Bytes that another process has now, and that come free when this one serves.
    pub lent: u64,
    /// Named in a fault; nothing else depends on it.
    pub model: String,
}

impl LoadOptions {
    #[must_use]
    pub fn batch_tokens(&self) -> usize {
        self.max_batch_tokens.max(1) as usize
    }
}
