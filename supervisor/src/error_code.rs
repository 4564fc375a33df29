//! The error codes that clients see, each with its HTTP status and whether trying again helps.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    pub const ALL: [Self; 11] = [
        Self::InvalidRequest,
        Self::Unauthorized,
        Self::DuplicateJob,
        Self::Quarantined,
        Self::QueueFull,
        Self::Cancelled,
        Self::VramOom,
        Self::CudaError,
        Self::Internal,
        Self::WorkerUnhealthy,
        Self::InferenceTimeout,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "INVALID_REQUEST",
            Self::Unauthorized => "UNAUTHORIZED",
            Self::DuplicateJob => "DUPLICATE_JOB",
            Self::Quarantined => "QUARANTINED",
            Self::QueueFull => "QUEUE_FULL",
            Self::Cancelled => "CANCELLED",
            Self::VramOom => "VRAM_OOM",
            Self::CudaError => "CUDA_ERROR",
            Self::Internal => "INTERNAL",
            Self::WorkerUnhealthy => "WORKER_UNHEALTHY",
            Self::InferenceTimeout => "INFERENCE_TIMEOUT",
        }
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

    /// The same request may succeed later, or elsewhere.
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

/// How a request ends whose reader is not there any more.
pub const CLIENT_GONE: &str = "CLIENT_GONE";

/// Codes of refusals that are no [`ErrorCode`]: of routes and bodies, before any request is read.
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

    /// The contract's own table, as a client reads it.
    #[test]
    fn the_table_is_the_contracts() {
        let rows: Vec<String> = ErrorCode::ALL
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
}
