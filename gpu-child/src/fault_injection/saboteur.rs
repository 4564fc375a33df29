//! Misdeeds that only the device itself can commit, and who makes it.

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
    /// When nobody prepared it.
    fn commit(&mut self, misdeed: DeviceMisdeed) -> Result<(), Fault>;
}
