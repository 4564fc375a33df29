//! The exit codes of `worker-orcd` itself: one number per way to end.
//!
//! Where a fault of the child ends the worker too, the number is the fault's. 1 and 2 are left to start-up errors and
//! the command line, 86 and 87 to listening and to the callback, 91 to a model that cannot be got.

use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};
use worker_orcd_ipc::FaultKind;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum SupervisorExit {
    /// Everything that was accepted was finished.
    Clean = 0,
    /// The file cannot be served: not a model, not one of ours, or not readable.
    ModelLoad = FaultKind::ModelLoad as u8,
    /// 1020 of the contract: required, available, device and model are in the message.
    InsufficientMemory = FaultKind::InsufficientMemory as u8,
    /// The device that was asked for is not there.
    DeviceUnavailable = FaultKind::DeviceUnavailable as u8,
    /// The child's binary speaks another protocol version or has features that were not accepted.
    ChildIncompatible = 80,
    /// The child's binary cannot be started.
    SpawnImpossible = 81,
    /// More children in a row died without progress than the restart policy allows.
    CrashLoop = 82,
    /// A child survived SIGKILL: the kernel holds it, in NVIDIA's driver most likely, and only a
    /// reboot helps.
    Unreapable = 83,
    /// The drain's time was over; what was left got terminal errors.
    DrainIncomplete = 84,
    /// Told twice to stop: nothing was waited for.
    StoppedAtOnce = 85,
    /// NVIDIA's driver says that nothing can be trusted on this GPU until it was reset.
    GpuNeedsReset = 88,
    /// NVIDIA's driver says that not even a reset helps.
    NodeNeedsReboot = 89,
    /// The model file was edited in place; the next start takes it as it is.
    ModelChanged = 90,
}

impl SupervisorExit {
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// One line for people who look a number up.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Clean => "all accepted requests finished",
            Self::ModelLoad => "the model file cannot be served",
            Self::InsufficientMemory => "too little memory for the model on this device",
            Self::DeviceUnavailable => "the selected device is not available",
            Self::ChildIncompatible => "the child's program has another version or build",
            Self::SpawnImpossible => "the child's program is missing or cannot be executed",
            Self::CrashLoop => "more than --max-restarts children in a row died without a token",
            Self::Unreapable => "a child survived SIGKILL: the node needs a reboot",
            Self::DrainIncomplete => "requests still ran at the end of --drain-timeout",
            Self::StoppedAtOnce => "a second signal stopped the worker at once",
            Self::GpuNeedsReset => "the driver asks for a reset of the GPU",
            Self::NodeNeedsReboot => "the driver asks for a reboot of the node",
            Self::ModelChanged => {
                "the model file was edited in place; a restart serves the new contents"
            }
        }
    }
}

impl fmt::Display for SupervisorExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.code())
    }
}
