//! Exit codes of `worker-orcd`: one code per kind of end.
//!
//! A child's fault that ends the worker keeps its own code ([`FaultKind`]). `supervisor/src/exit.rs` has the codes
//! outside this enum: 1 for start-up errors, 2 for the command line, 86 for listening, 87 for the callback, 91 for a model
//! that cannot be downloaded.

use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};
use worker_orcd_ipc::FaultKind;

/// Exit code of a worker that has started.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum SupervisorExit {
    /// All accepted requests finished.
    Clean = 0,
    /// The model file is not readable, not a GGUF model, or of an unsupported architecture.
    ModelLoad = FaultKind::ModelLoad as u8,
    /// Error 1020 of the contract. The message has required and available bytes, device and model.
    InsufficientMemory = FaultKind::InsufficientMemory as u8,
    /// The selected device does not exist.
    DeviceUnavailable = FaultKind::DeviceUnavailable as u8,
    /// The child's binary has another protocol version, or compile-time features that are not accepted.
    ChildIncompatible = 80,
    /// The child's binary is missing or not executable.
    SpawnImpossible = 81,
    /// More children in a row died without progress than the restart policy allows.
    CrashLoop = 82,
    /// A child survived SIGKILL. It is stuck in the kernel, most likely in NVIDIA's driver; the node needs a reboot.
    Unreapable = 83,
    /// The drain timed out; the remaining requests got terminal errors.
    DrainIncomplete = 84,
    /// A second stop signal ended the worker without a drain.
    StoppedAtOnce = 85,
    /// NVIDIA's driver requires a reset of the GPU.
    GpuNeedsReset = 88,
    /// NVIDIA's driver requires a reboot of the node.
    NodeNeedsReboot = 89,
    /// The model file was edited in place. A restart serves the new contents.
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

    /// Description for the operator, one line.
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
            Self::GpuNeedsReset => "the driver requires a reset of the GPU",
            Self::NodeNeedsReboot => "the driver requires a reboot of the node",
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
