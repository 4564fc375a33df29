//! Reasons for a refused admission, with the messages for the client.

use crate::error_code::ErrorCode;
use crate::logprob_memory::MOST_BYTES;
use std::time::Duration;
use thiserror::Error;

/// Reason for a refused admission. A refused request leaves no state.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("a job with this id is running")]
    Duplicate,
    #[error("the queue is full; try again in {} s", .retry_after.as_secs())]
    QueueFull { retry_after: Duration },
    /// The queue has free places, but they are reserved for clients without a request.
    #[error(
        "this client has requests in the queue, and its last places are kept for others; try again \
         in {} s",
        .retry_after.as_secs()
    )]
    ShareFull { retry_after: Duration },
    /// Other requests use the memory for log probabilities of prompts.
    #[error(
        "log probabilities of others' prompts have the memory that is kept for them; try again in {} s",
        .retry_after.as_secs()
    )]
    ToldPromptsFull { retry_after: Duration },
    /// The request alone exceeds the memory for log probabilities of prompts.
    #[error(
        "log probabilities of the prompts would take {bytes} bytes, and {MOST_BYTES} are kept for them: ask for fewer \
         prompts, choices or most likely tokens at a time"
    )]
    TellsTooMuch { bytes: u64 },
    #[error("the worker is shutting down")]
    Draining,
    /// The same request killed a child while it ran alone.
    #[error(
        "this request killed the children that ran it, and is refused for another {} s",
        .left.as_secs().max(1)
    )]
    Quarantined { left: Duration },
    /// The worker has no model yet, or has failed.
    #[error("the worker cannot serve: {0}")]
    Unavailable(String),
}

impl Refusal {
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Duplicate => ErrorCode::DuplicateJob,
            Self::QueueFull { .. } | Self::ShareFull { .. } | Self::ToldPromptsFull { .. } => {
                ErrorCode::QueueFull
            }
            Self::TellsTooMuch { .. } => ErrorCode::InvalidRequest,
            Self::Quarantined { .. } => ErrorCode::Quarantined,
            Self::Draining | Self::Unavailable(_) => ErrorCode::WorkerUnhealthy,
        }
    }

    /// Time after which a retry may succeed. `None`: unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::QueueFull { retry_after }
            | Self::ShareFull { retry_after }
            | Self::ToldPromptsFull { retry_after } => Some(*retry_after),
            Self::Duplicate
            | Self::TellsTooMuch { .. }
            | Self::Draining
            | Self::Quarantined { .. }
            | Self::Unavailable(_) => None,
        }
    }
}
