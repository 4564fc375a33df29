//! Purposes of device memory, and the allocated bytes of each.

use std::sync::atomic::{AtomicU64, Ordering};

/// Purpose of memory, as health reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Weights,
    Kv,
    Scratch,
    /// Memory of NVIDIA's driver for recorded launches: not an `Arena`, but counted here.
    Graphs,
    /// Memory of another process, also counted there.
    OfAnother,
}

/// Allocated bytes by purpose.
#[derive(Debug, Default)]
pub struct Ledger([AtomicU64; 5]);

impl Ledger {
    #[must_use]
    pub fn bytes(&self, purpose: Purpose) -> u64 {
        self.0[purpose as usize].load(Ordering::Relaxed)
    }

    pub fn add(&self, purpose: Purpose, bytes: u64) {
        self.0[purpose as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn subtract(&self, purpose: Purpose, bytes: u64) {
        self.0[purpose as usize].fetch_sub(bytes, Ordering::Relaxed);
    }
}
