//! What can go wrong in a child, and the number each cause of death leaves behind.

use crate::ids::RequestId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a child is about to die, in its own words. What a child cannot say itself (a signal, a
/// lost heartbeat) is in the lifecycle crate's `DeathCause`.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Fault {
    /// The file cannot be served, and would not be the next time either.
    #[error("the model cannot be loaded: {message}")]
    ModelLoad { message: String },
    /// 1020 of the contract.
    #[error(
        "not enough memory on {device} for {model}: {required_bytes} bytes required, \
         {available_bytes} available"
    )]
    InsufficientMemory {
        required_bytes: u64,
        available_bytes: u64,
        device: String,
        model: String,
    },
    /// The device that was asked for is not there, or this build has no code for it.
    #[error("no such device: {message}")]
    DeviceUnavailable { message: String },
    /// A sticky error: the context is lost. `name` is the driver's own, such as
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    #[error("device error {name}: {message}")]
    Device { name: String, message: String },
    /// A NaN or an infinity where logits should be: a fault, not an answer.
    #[error("non-finite logits in step {step} for request {request}")]
    NonFiniteLogits { step: u64, request: RequestId },
    #[error("the supervisor broke the protocol: {message}")]
    Protocol { message: String },
    #[error("out of memory: {message}")]
    OutOfMemory { message: String },
    #[error("panic at {location}: {message}")]
    Panic { message: String, location: String },
    #[error("input/output error: {message}")]
    Io { message: String },
}

/// Exit codes of `worker-orcd-gpu`: one number per cause of death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum ExitCode {
    /// Asked to go, and went.
    Clean = 0,
    /// The command line cannot be understood (clap's own number).
    Usage = 2,
    ModelLoad = 65,
    InsufficientMemory = 66,
    DeviceUnavailable = 67,
    Device = 68,
    NonFiniteLogits = 69,
    Protocol = 70,
    OutOfMemory = 71,
    Panic = 72,
    Io = 73,
    /// The control socket closed: the supervisor is gone, and so must the child be.
    SupervisorLost = 74,
}

impl ExitCode {
    pub const ALL: [Self; 12] = [
        Self::Clean,
        Self::Usage,
        Self::ModelLoad,
        Self::InsufficientMemory,
        Self::DeviceUnavailable,
        Self::Device,
        Self::NonFiniteLogits,
        Self::Protocol,
        Self::OutOfMemory,
        Self::Panic,
        Self::Io,
        Self::SupervisorLost,
    ];

    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| exit.code() == code)
    }

    #[must_use]
    pub fn code(self) -> i32 {
        i32::from(self as u8)
    }
}

impl Fault {
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::ModelLoad { .. } => ExitCode::ModelLoad,
            Self::InsufficientMemory { .. } => ExitCode::InsufficientMemory,
            Self::DeviceUnavailable { .. } => ExitCode::DeviceUnavailable,
            Self::Device { .. } => ExitCode::Device,
            Self::NonFiniteLogits { .. } => ExitCode::NonFiniteLogits,
            Self::Protocol { .. } => ExitCode::Protocol,
            Self::OutOfMemory { .. } => ExitCode::OutOfMemory,
            Self::Panic { .. } => ExitCode::Panic,
            Self::Io { .. } => ExitCode::Io,
        }
    }

    /// A new child would fail in the same way: restarting does not help.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::ModelLoad { .. }
                | Self::InsufficientMemory { .. }
                | Self::DeviceUnavailable { .. }
        )
    }
}
