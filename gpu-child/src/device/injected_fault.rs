//! Injected device faults, in a child built for fault injection; `fault_injection` triggers them.
//!
//! A [`FaultInjector`] is a device with faults of its own. For any device, a NaN can be put among the logits after their
//! computation and before their check, so that the device's own check detects it.

use std::sync::atomic::{AtomicBool, Ordering};
use worker_orcd_ipc::Fault;

/// Fault injected before a step, on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceFault {
    IllegalAddress,
    Misaligned,
    Trap,
    EndlessKernel,
    OutOfMemory,
    Full,
    NonFinite,
}

/// A device that fails on command.
pub trait FaultInjector {
    /// Prepares the device. Called once, before the first [`commit`](Self::commit).
    ///
    /// # Errors
    /// If this build or this device does not support it.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Injects a fault. Most of them are detected only by the following computation.
    ///
    /// # Errors
    /// The device's own error, if it is immediate.
    ///
    /// # Panics
    /// If the device was not prepared.
    fn commit(&mut self, fault: DeviceFault) -> Result<(), Fault>;
}

/// A process has one engine.
static NAN_ORDERED: AtomicBool = AtomicBool::new(false);
static FLIP_ORDERED: AtomicBool = AtomicBool::new(false);

/// Puts a NaN among the next logits of this process.
pub(crate) fn order_nan() {
    NAN_ORDERED.store(true, Ordering::Relaxed);
}

/// Spoils a logit, if ordered, between its computation and its check.
pub(super) fn spoil(logits: &mut [f32]) {
    if !logits.is_empty() && NAN_ORDERED.swap(false, Ordering::Relaxed) {
        logits[0] = f32::NAN;
    }
}

/// Flips a bit of the weights that this process loads.
pub(crate) fn order_flip() {
    FLIP_ORDERED.store(true, Ordering::Relaxed);
}

/// True if a flip is ordered. Called between checksumming and sealing.
pub(super) fn flip_ordered() -> bool {
    FLIP_ORDERED.swap(false, Ordering::Relaxed)
}
