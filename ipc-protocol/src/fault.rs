//! Faults of a child, its exit codes, and ends of its process.

use crate::ids::RequestId;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};
use thiserror::Error;

/// Fault that a child reports before it exits. Each variant has its message, its name and its exit code. Causes that a child
/// cannot report, such as a signal or a lost heartbeat, are in `DeathCause` of the lifecycle crate.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize, EnumDiscriminants)]
#[repr(u8)]
#[strum_discriminants(
    name(FaultKind),
    doc = "Kind of a [`Fault`]. Its number is the exit code.",
    derive(Hash, IntoStaticStr, VariantArray),
    strum(serialize_all = "snake_case")
)]
pub enum Fault {
    /// The model file cannot be loaded, and a retry cannot succeed.
    #[error("the model cannot be loaded: {message}")]
    ModelLoad { message: String } = 65,
    /// Error 1020 of the contract.
    #[error(
        "not enough memory on {device} for {model}: {required_bytes} bytes required, \
         {available_bytes} available"
    )]
    InsufficientMemory {
        required_bytes: u64,
        available_bytes: u64,
        device: String,
        model: String,
    } = 66,
    /// The selected device does not exist, or this build has no code for it.
    #[error("no such device: {message}")]
    DeviceUnavailable { message: String } = 67,
    /// The device's memory or results are not trustworthy.
    #[error("device error {error}: {message}")]
    Device { error: DeviceError, message: String } = 68,
    /// Logits of a request are NaN or infinite.
    #[error("non-finite logits in step {step} for request {request}")]
    NonFiniteLogits { step: u64, request: RequestId } = 69,
    /// The supervisor sent an invalid message, or a command in the wrong state.
    #[error("the supervisor violated the protocol: {message}")]
    Protocol { message: String } = 70,
    /// An allocation on host or device failed.
    #[error("out of memory: {message}")]
    OutOfMemory { message: String } = 71,
    /// A thread panicked.
    #[error("panic at {location}: {message}")]
    Panic { message: String, location: String } = 72,
    /// A file or socket operation failed.
    #[error("input/output error: {message}")]
    Io { message: String } = 73,
}

/// Error of a device.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DeviceError {
    /// Sticky CUDA error: the context is lost. The value is the driver's name of the error, such as
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    #[error("{0}")]
    Cuda(String),
    /// A step returned a wrong number of tokens, a token outside the vocabulary, or a token for a sequence that samples none.
    #[error("WRONG_RESULT")]
    WrongResult,
    /// A checksum of the weights differs from that of the load.
    #[error("WEIGHTS_CHANGED")]
    WeightsChanged,
    /// Weights or KV cache are not resident in the device's own memory.
    #[error("NOT_RESIDENT")]
    NotResident,
}

/// Exit status of a process, as `waitpid` returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// SIGKILL by the kernel's OOM killer, according to its `oom_kill` counter.
    OomKilled,
}

/// Exit code of `worker-orcd-gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitCode {
    /// The child shut down on command.
    Clean,
    /// The command line is invalid. The code is clap's.
    Usage,
    /// The control socket closed: the supervisor has exited.
    SupervisorLost,
    Fault(FaultKind),
}

impl ExitCode {
    pub fn all() -> impl Iterator<Item = Self> {
        let of_faults = FaultKind::VARIANTS.iter().copied().map(Self::Fault);
        [Self::Clean, Self::Usage]
            .into_iter()
            .chain(of_faults)
            .chain([Self::SupervisorLost])
    }

    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::all().find(|exit| exit.code() == code)
    }

    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Clean => 0,
            Self::Usage => 2,
            Self::SupervisorLost => 74,
            Self::Fault(kind) => kind as i32,
        }
    }
}

/// Name for the message of a death.
impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(kind) => write!(f, "{kind:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

impl Fault {
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        self.into()
    }

    /// True if results before this fault may be wrong.
    #[must_use]
    pub fn invalidates_results(&self) -> bool {
        match self {
            Self::NonFiniteLogits { .. } => true,
            Self::Device { error, .. } => match error {
                DeviceError::WrongResult
                | DeviceError::WeightsChanged
                | DeviceError::NotResident => true,
                DeviceError::Cuda(_) => false,
            },
            Self::ModelLoad { .. }
            | Self::InsufficientMemory { .. }
            | Self::DeviceUnavailable { .. }
            | Self::Protocol { .. }
            | Self::OutOfMemory { .. }
            | Self::Panic { .. }
            | Self::Io { .. } => false,
        }
    }

    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::Fault(self.kind())
    }
}

impl FaultKind {
    /// Label of a death by this fault.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
