//! What a device's memory is used for, in bytes.

use serde::{Deserialize, Serialize};

/// `None` means unknown, never zero. On the CPU device "device memory" is host memory, and
/// `total`/`free` are the machine's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    pub total_bytes: Option<u64>,
    pub free_bytes: Option<u64>,
    pub weights_bytes: u64,
    pub kv_capacity_bytes: u64,
    pub kv_used_bytes: u64,
    /// Activations, tables and staging buffers.
    pub scratch_bytes: u64,
    /// What the device's driver takes for launches that are recorded.
    pub graphs_bytes: u64,
    /// What the device's driver takes for a context of its own.
    pub context_bytes: Option<u64>,
    /// All of it was last seen to be on the device; `None` when nobody looked.
    pub resident: Option<bool>,
    /// How often all of the weights were found to be what was loaded.
    pub weights_checked: u64,
}
