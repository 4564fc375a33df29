//! Phases of a worker: serving, draining, stopping, over.

use crate::exit::SupervisorExit;
use crate::restart_policy::WorkerFailure;
use std::time::Duration;

/// Phase of a worker. Phases only advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerPhase {
    /// Requests are accepted, and a dead child is replaced.
    Serve,
    /// New requests are refused. Dead children are replaced until the accepted requests end or the deadline passes.
    Drain(Drain),
    /// Children are being ended. The worker is over with this result once no process is left.
    Leave(End),
    /// No process is left, and none follows.
    Over { since: Duration, end: End },
}

/// Times of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drain {
    pub since: Duration,
    /// Deadline; the earliest of all drain events.
    pub until: Duration,
}

/// Result of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Stop(SupervisorExit),
    Fail(WorkerFailure),
}

impl WorkerPhase {
    pub(crate) fn drain(&self) -> Option<Drain> {
        match self {
            Self::Drain(drain) => Some(*drain),
            Self::Serve | Self::Leave(_) | Self::Over { .. } => None,
        }
    }
}

impl End {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Stop(_) => "stopped",
            Self::Fail(_) => "failed",
        }
    }
}
