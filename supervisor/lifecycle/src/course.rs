//! The course of a worker: on, to its end, or nowhere any more.

use crate::exit::SupervisorExit;
use crate::restart_policy::WorkerFailure;
use std::time::Duration;

/// The course of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Course {
    /// A child that dies is replaced.
    Serve,
    /// The same until what was accepted is finished, or time is over.
    Drain(Drain),
    /// Decided: what this ends with, once no process is left.
    Leave(End),
    Over {
        since: Duration,
        end: End,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drain {
    pub since: Duration,
    /// The soonest, if it was asked for twice.
    pub until: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Stop(SupervisorExit),
    Fail(WorkerFailure),
}

impl Course {
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
