//! Interface to one GPU, without any implementation.
//!
//! `None` means that the library, NVIDIA's driver or the device has no value. It is never replaced by zero.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_lifecycle::{RecoveryAction, Xid};

/// Opens the GPU, or returns the reason why there is none. Called on the thread that may block.
pub(crate) type Opener = Box<dyn FnOnce() -> Result<Arc<dyn Gpu>, String> + Send>;

/// One GPU. Each call may block while the device hangs.
pub(crate) trait Gpu: Send + Sync {
    fn identity(&self) -> Identity;

    fn gauges(&self) -> Gauges;

    /// Memory part of [`Self::gauges`], sampled every few milliseconds after a death.
    fn memory(&self) -> Option<DeviceMemory>;

    fn recovery_action(&self) -> Option<RecoveryAction>;

    /// Passes each Xid to `heard`, and `None` at least once per `slice`, until `heard` breaks.
    ///
    /// # Errors
    /// If Xid events are unavailable, from the start or from now on.
    fn listen(
        &self,
        slice: Duration,
        heard: &mut dyn FnMut(Option<Xid>) -> ControlFlow<()>,
    ) -> Result<(), String>;
}

/// Facts that are constant while NVIDIA's driver is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    pub name: Option<String>,
    pub uuid: Option<String>,
    /// Version of the kernel's driver.
    pub driver: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gauges {
    pub memory: Option<DeviceMemory>,
    pub temperature_celsius: Option<u32>,
    pub power_milliwatts: Option<u32>,
    pub ecc_enabled: Option<bool>,
    /// Uncorrected ECC errors since NVIDIA's driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// True if a memory row (or page) is replaced at the next reset.
    pub remap_pending: Option<bool>,
    /// True if row remapping failed: replace the GPU.
    pub remap_failed: Option<bool>,
    pub action: Option<RecoveryAction>,
}

/// Memory in bytes by NVIDIA's driver, independent of a process's own report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
    /// Processes with a context on the device.
    pub processes: Option<Vec<Process>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub bytes: Option<u64>,
}

impl DeviceMemory {
    #[must_use]
    pub(crate) fn lists(&self, pid: u32) -> Option<bool> {
        let processes = self.processes.as_ref()?;
        Some(processes.iter().any(|process| process.pid == pid))
    }

    /// Bytes of a process. It may have several contexts.
    #[must_use]
    pub fn of(&self, pid: u32) -> Option<u64> {
        let own = self.processes.as_ref()?.iter();
        let mut own = own.filter(|process| process.pid == pid).peekable();
        own.peek()?;
        own.map(|process| process.bytes).sum()
    }

    /// Used bytes that belong to no process: those of NVIDIA's driver, and leaks of a dead process. Other processes do
    /// not change it.
    #[must_use]
    pub(crate) fn unowned(&self) -> Option<u64> {
        let processes = self.processes.as_ref()?.iter();
        let owned: u64 = processes
            .map(|process| process.bytes)
            .sum::<Option<u64>>()?;
        Some(self.used.saturating_sub(owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(used: u64, processes: Option<&[(u32, Option<u64>)]>) -> DeviceMemory {
        let process = |(pid, bytes): &(u32, Option<u64>)| Process {
            pid: *pid,
            bytes: *bytes,
        };
        DeviceMemory {
            total: 1000,
            free: 1000 - used,
            used,
            processes: processes.map(|list| list.iter().map(process).collect()),
        }
    }

    #[test]
    fn what_is_not_known_is_never_zero() {
        let listed = memory(100, Some(&[(7, Some(30)), (8, Some(20)), (7, Some(5))]));
        assert_eq!((listed.of(7), listed.of(9)), (Some(35), None));
        assert_eq!(listed.unowned(), Some(45));
        assert_eq!(
            (listed.lists(8), listed.lists(9)),
            (Some(true), Some(false))
        );
        let unmeasured = memory(100, Some(&[(7, None), (8, Some(20))]));
        assert_eq!((unmeasured.of(7), unmeasured.of(8)), (None, Some(20)));
        assert_eq!(unmeasured.unowned(), None);
        let unlisted = memory(100, None);
        assert_eq!((unlisted.of(7), unlisted.unowned()), (None, None));
        assert_eq!(unlisted.lists(7), None);
        assert_eq!(memory(100, Some(&[])).unowned(), Some(100));
    }
}
