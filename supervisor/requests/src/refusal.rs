//! Why a request is not let in, in the words that its client is told.

use crate::error_code::ErrorCode;
use crate::record::Failure;
use crate::told_prompts::MOST_BYTES;
use std::time::Duration;
use thiserror::Error;

/// Why a request was not accepted. Nothing of it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("a job with this id is running")]
    Duplicate,
    #[error("the queue is full; try again in {} s", .retry_after.as_secs())]
    QueueFull { retry_after: Duration },
    /// Places are left, but this client has no right to them.
    #[error(
        "this client has requests in the queue, and its last places are kept for others; try again \
         in {} s",
        .retry_after.as_secs()
    )]
    ShareFull { retry_after: Duration },
    /// Answers that tell of their prompts have all the memory for that.
    #[error(
        "log probabilities of others' prompts have the memory that is kept for them; try again in {} s",
        .retry_after.as_secs()
    )]
    ToldPromptsFull { retry_after: Duration },
    /// There would be no room for it if there were no others.
    #[error(
        "log probabilities of the prompts would take {bytes} bytes, and {MOST_BYTES} are kept for them: ask for fewer \
         prompts, choices or most likely tokens at a time"
    )]
    TellsTooMuch { bytes: u64 },
    #[error("the worker is shutting down")]
    Draining,
    /// The same request killed a child that had nothing else to do.
    #[error(
        "this request killed the children that ran it, and is refused for another {} s",
        .left.as_secs().max(1)
    )]
    Quarantined { left: Duration },
    /// A worker without a model yet, or one that has failed.
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

    /// Time after which another try may help, where that is known.
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

    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(self.code(), self.to_string())
    }
}
