//! Faults that a device makes on command, in a child that was built for it; `fault_injection` gives
//! the commands.
//!
//! A [`Saboteur`] fails by itself. Where no device does, a NaN is put among the logits after they were
//! computed and before they are checked, so that it is the device's own check that finds it.

use std::sync::atomic::{AtomicBool, Ordering};
use worker_orcd_ipc::Fault;

/// Committed in front of a step, on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceMisdeed {
    IllegalAddress,
    Misaligned,
    Trap,
    EndlessKernel,
    OutOfMemory,
    Full,
    NonFinite,
}

/// A device that fails on command.
pub trait Saboteur {
    /// Once, before the first [`commit`](Self::commit).
    ///
    /// # Errors
    /// When this build or this device cannot do it.
    fn prepare(&mut self) -> Result<(), Fault>;

    /// Most of them are only found out by what is computed next.
    ///
    /// # Errors
    /// The device's own answer, where it comes at once.
    ///
    /// # Panics
    /// When it was not prepared.
    fn commit(&mut self, misdeed: DeviceMisdeed) -> Result<(), Fault>;
}

/// There is one engine in a process.
static NAN_ORDERED: AtomicBool = AtomicBool::new(false);
static FLIP_ORDERED: AtomicBool = AtomicBool::new(false);

/// The next logits of this process will hold a NaN.
pub(crate) fn order_nan() {
    NAN_ORDERED.store(true, Ordering::Relaxed);
}

/// Spoils a logit where that was ordered, between computing and checking.
pub(super) fn spoil(logits: &mut [f32]) {
    if !logits.is_empty() && NAN_ORDERED.swap(false, Ordering::Relaxed) {
        logits[0] = f32::NAN;
    }
}

/// A bit of the weights that this process places will flip.
pub(crate) fn order_flip() {
    FLIP_ORDERED.store(true, Ordering::Relaxed);
}

/// Called between taking checksums and sealing.
pub(super) fn flip_ordered() -> bool {
    FLIP_ORDERED.swap(false, Ordering::Relaxed)
}
