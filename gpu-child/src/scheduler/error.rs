//! Errors of the scheduler.

use thiserror::Error;
use worker_orcd_ipc::{RequestId, TokenId};

/// Errors that only a defective supervisor or device causes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchedulerError {
    #[error("request {0} was submitted while it was still running")]
    DuplicateRequest(RequestId),
    #[error("{found} tokens where {expected} were to be drawn")]
    DrawnCount { expected: usize, found: usize },
    #[error("request {request} was drawn token {token}, which is not in the vocabulary")]
    TokenOutOfRange { request: RequestId, token: TokenId },
    #[error("another token was drawn where the next one of request {0} was to be")]
    NotToBeDrawn(RequestId),
}
