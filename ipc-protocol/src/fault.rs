//! Faults of a child, and the number each cause of death leaves behind.

use crate::ids::RequestId;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{EnumDiscriminants, IntoStaticStr, VariantArray};
use thiserror::Error;

/// Why a child is about to die, in its own words: a row for each, with the sentence, the name and
/// the code that it exits with. What a child cannot say itself (a signal, a lost heartbeat) is in
/// the lifecycle crate's `DeathCause`.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize, EnumDiscriminants)]
#[repr(u8)]
#[strum_discriminants(
    name(FaultKind),
    doc = "A [`Fault`] without its particulars; as a number it is the exit code.",
    derive(Hash, IntoStaticStr, VariantArray),
    strum(serialize_all = "snake_case")
)]
pub enum Fault {
    /// The file cannot be served, and would not be the next time either.
    #[error("the model cannot be loaded: {message}")]
    ModelLoad { message: String } = 65,
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
    } = 66,
    /// The device that was asked for is not there, or this build has no code for it.
    #[error("no such device: {message}")]
    DeviceUnavailable { message: String } = 67,
    /// The device cannot be trusted any more, in what it holds or in what it computes.
    #[error("device error {error}: {message}")]
    Device { error: DeviceError, message: String } = 68,
    /// A NaN or an infinity where logits should be: a fault, not an answer.
    #[error("non-finite logits in step {step} for request {request}")]
    NonFiniteLogits { step: u64, request: RequestId } = 69,
    #[error("the supervisor broke the protocol: {message}")]
    Protocol { message: String } = 70,
    #[error("out of memory: {message}")]
    OutOfMemory { message: String } = 71,
    #[error("panic at {location}: {message}")]
    Panic { message: String, location: String } = 72,
    #[error("input/output error: {message}")]
    Io { message: String } = 73,
}

/// The error of a device, and its source.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum DeviceError {
    /// A sticky error: the context is lost. The name is NVIDIA's driver's own, such as
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    #[error("{0}")]
    Cuda(String),
    /// A step was answered with tokens that were not asked for.
    #[error("WRONG_RESULT")]
    WrongResult,
    #[error("WEIGHTS_CHANGED")]
    WeightsChanged,
    /// Weights or KV cache are not in the device's own memory.
    #[error("NOT_RESIDENT")]
    NotResident,
}

/// Exit codes of `worker-orcd-gpu`: one number per cause of death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitCode {
    /// Asked to go, and went.
    Clean,
    /// The command line cannot be understood (clap's own number).
    Usage,
    /// The control socket closed: the supervisor is gone, and so must the child be.
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

/// The name, as in the sentence of a death.
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

    /// What was computed before it may be wrong.
    #[must_use]
    pub fn casts_doubt(&self) -> bool {
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
    /// The label of a death by this fault.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
