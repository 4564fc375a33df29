//! Memory usage of a device, in bytes.

use serde::{Deserialize, Serialize};

/// Memory usage of a child. `None`: unknown. For the CPU device the values are of host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    /// Memory to which `total_bytes` and `free_bytes` refer.
    pub bound: Option<MemoryBound>,
    pub weights_bytes: u64,
    pub kv_capacity_bytes: u64,
    pub kv_used_bytes: u64,
    /// Part of the capacity that occupies memory. On a card all of it; for a shared KV cache on the CPU the pages that were
    /// written or prepared for writing. `None`: not counted.
    pub kv_taken_bytes: Option<u64>,
    /// Activations, tables and staging buffers.
    pub scratch_bytes: u64,
    /// Memory of NVIDIA's driver for CUDA graphs.
    pub graphs_bytes: u64,
    /// Weights, KV cache, activations and graphs of the draft model.
    pub draft_bytes: u64,
    /// Memory of NVIDIA's driver for the CUDA context.
    pub context_bytes: Option<u64>,
    /// Result of the latest check that weights and KV cache are in the device's own memory. `None`: not checked.
    pub resident: Option<bool>,
    /// Number of complete, successful checks of the weights' checksums.
    pub weights_checked: u64,
}

impl MemoryReport {
    /// Sum of the uses that the child measures itself: all but the CUDA context.
    #[must_use]
    pub fn known_bytes(&self) -> u64 {
        let uses = [
            self.weights_bytes,
            self.kv_capacity_bytes,
            self.scratch_bytes,
            self.graphs_bytes,
            self.draft_bytes,
        ];
        // The values come from an untrusted child, so their sum may overflow.
        uses.into_iter().fold(0, u64::saturating_add)
    }

    /// [`Self::known_bytes`] and the CUDA context, if its size is known.
    #[must_use]
    pub fn bytes_in_use(&self) -> u64 {
        let context = self.context_bytes.unwrap_or(0);
        self.known_bytes().saturating_add(context)
    }
}

/// Memory limit that is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryBound {
    /// Memory of the GPU.
    Device,
    /// Memory of the host.
    Machine,
    /// Limit of the child's control group, or of one of its ancestors.
    ControlGroup,
}

impl MemoryBound {
    /// Stable name for `/health`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Machine => "machine",
            Self::ControlGroup => "control_group",
        }
    }
}
