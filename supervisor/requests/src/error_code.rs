//! Error codes of the API, each with its HTTP status and whether a retry may succeed.

use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantArray};
use worker_orcd_ipc::{DeviceError, Fault};
use worker_orcd_lifecycle::DeathCause;

#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    InvalidRequest,
    Unauthorized,
    DuplicateJob,
    Quarantined,
    QueueFull,
    Cancelled,
    VramOom,
    CudaError,
    Internal,
    WorkerUnhealthy,
    InferenceTimeout,
}

impl ErrorCode {
    /// Error code for a request that ends because of a child's death.
    #[must_use]
    pub fn of_death(cause: &DeathCause) -> Self {
        match cause {
            DeathCause::Reported(Fault::Device {
                error: DeviceError::Cuda(_),
                ..
            }) => Self::CudaError,
            _ => Self::WorkerUnhealthy,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::DuplicateJob => 409,
            Self::Quarantined => 422,
            Self::QueueFull => 429,
            Self::Cancelled => 499,
            Self::VramOom | Self::CudaError | Self::Internal => 500,
            Self::WorkerUnhealthy => 503,
            Self::InferenceTimeout => 504,
        }
    }

    /// True if the same request may succeed later, or on another worker.
    #[must_use]
    pub fn is_retriable(self) -> bool {
        matches!(
            self,
            Self::CudaError
                | Self::InferenceTimeout
                | Self::Internal
                | Self::QueueFull
                | Self::WorkerUnhealthy
        )
    }
}

/// Outcome in logs and metrics of a request without a reader.
pub const CLIENT_GONE: &str = "CLIENT_GONE";

/// Codes of refusals of routes and bodies, before any request is read. No [`ErrorCode`] covers them.
pub const OTHER_REFUSALS: [&str; 6] = [
    "NOT_FOUND",
    "FORBIDDEN",
    "METHOD_NOT_ALLOWED",
    "PAYLOAD_TOO_LARGE",
    "UNSUPPORTED_MEDIA_TYPE",
    "REQUEST_TIMEOUT",
];

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table of the public contract: code, HTTP status, retriable.
    #[test]
    fn the_table_is_the_contracts() {
        let rows: Vec<String> = ErrorCode::VARIANTS
            .iter()
            .map(|code| format!("{code} {} {}", code.http_status(), code.is_retriable()))
            .collect();
        let expected = [
            "INVALID_REQUEST 400 false",
            "UNAUTHORIZED 401 false",
            "DUPLICATE_JOB 409 false",
            "QUARANTINED 422 false",
            "QUEUE_FULL 429 true",
            "CANCELLED 499 false",
            "VRAM_OOM 500 false",
            "CUDA_ERROR 500 true",
            "INTERNAL 500 true",
            "WORKER_UNHEALTHY 503 true",
            "INFERENCE_TIMEOUT 504 true",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn only_the_word_of_the_cuda_driver_is_a_cuda_error() {
        let of = |error| {
            let message = String::new();
            ErrorCode::of_death(&DeathCause::Reported(Fault::Device { error, message }))
        };
        let cuda = DeviceError::Cuda("CUDA_ERROR_ASSERT".to_owned());
        assert_eq!(of(cuda), ErrorCode::CudaError);
        for error in [
            DeviceError::WrongResult,
            DeviceError::WeightsChanged,
            DeviceError::NotResident,
        ] {
            assert_eq!(of(error), ErrorCode::WorkerUnhealthy);
        }
        let other = DeathCause::Signalled(9);
        assert_eq!(ErrorCode::of_death(&other), ErrorCode::WorkerUnhealthy);
    }
}
