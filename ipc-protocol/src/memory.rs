//! Uses of a device's memory, in bytes.

use serde::{Deserialize, Serialize};

/// `None` means unknown, never zero. On the CPU device "device memory" is host memory, and
/// `total`/`free` are those of `bound`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// The memory that `total` and `free` are those of.
    pub bound: Option<MemoryBound>,
    pub weights_bytes: u64,
    pub kv_capacity_bytes: u64,
    pub kv_used_bytes: u64,
    /// Of the capacity, what takes memory by now: all of it on a card; what was ever written, or made ready for
    /// that, in a KV cache that is shared on the CPU. `None` where nobody counts it.
    pub kv_taken_bytes: Option<u64>,
    /// Activations, tables and staging buffers.
    pub scratch_bytes: u64,
    /// Bytes that NVIDIA's driver takes for recorded launches.
    pub graphs_bytes: u64,
    /// Bytes that NVIDIA's driver takes for a context of its own.
    pub context_bytes: Option<u64>,
    /// All of it was last seen to be on the device; `None` when it was not checked.
    pub resident: Option<bool>,
    /// Rounds in which all of the weights were found to be what was loaded.
    pub weights_checked: u64,
}

impl MemoryReport {
    /// Bytes that the child knows of in use: everything but a context.
    #[must_use]
    pub fn known_bytes(&self) -> u64 {
        let uses = [
            self.weights_bytes,
            self.kv_capacity_bytes,
            self.scratch_bytes,
            self.graphs_bytes,
        ];
        // A child may say anything.
        uses.into_iter().fold(0, u64::saturating_add)
    }
}

/// The memory that ends first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryBound {
    /// The GPU's own.
    Device,
    Machine,
    /// A control group that the child is in, or one above it.
    ControlGroup,
}

impl MemoryBound {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Machine => "machine",
            Self::ControlGroup => "control_group",
        }
    }
}
