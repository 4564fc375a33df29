//! What can be true of a child. Each state owns what only makes sense in it.

use crate::death::{DeathCause, Exit};
use crate::exit::SupervisorExit;
use crate::restart_policy::Failure;
use crate::watchdog::Watch;
use std::time::Duration;

/// `since`, `deadline` and `until` are times since the supervisor's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The spawn thread was asked; there is no process yet.
    Spawning {
        since: Duration,
        deadline: Duration,
    },
    /// It runs, but has not said who it is.
    Handshaking {
        since: Duration,
        pid: u32,
        deadline: Duration,
    },
    Loading {
        since: Duration,
        pid: u32,
        watch: Watch,
        progress: LoadProgress,
    },
    Serving {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    /// Serving what was accepted, and nothing new.
    Draining {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    /// It must go, and `cause` says why; `deadline` ends the present stage.
    Killing {
        since: Duration,
        pid: u32,
        cause: DeathCause,
        stage: KillStage,
        deadline: Duration,
    },
    /// It is dead or dying by itself. Its exit says why, its socket may still hold last words:
    /// both are awaited, in either order, until `deadline`.
    Reaping {
        since: Duration,
        pid: u32,
        said: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
        deadline: Duration,
    },
    /// No process; the next one is spawned at `until`.
    Backoff {
        since: Duration,
        until: Duration,
    },
    Stopped {
        since: Duration,
        exit: SupervisorExit,
    },
    Failed {
        since: Duration,
        failure: Failure,
    },
}

/// How hard a child has been asked to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KillStage {
    /// `Command::Shutdown` was sent.
    Asked,
    /// SIGTERM was sent.
    Terminated,
    /// SIGKILL was sent; after that there is nothing left to send.
    Killed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadProgress {
    pub bytes_done: u64,
    pub bytes_total: u64,
    /// When `bytes_done` last grew.
    pub advanced_at: Duration,
}

impl State {
    /// A stable word for /health, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Spawning { .. } => "spawning",
            Self::Handshaking { .. } => "handshaking",
            Self::Loading { .. } => "loading",
            Self::Serving { .. } => "serving",
            Self::Draining { .. } => "draining",
            Self::Killing { .. } => "killing",
            Self::Reaping { .. } => "reaping",
            Self::Backoff { .. } => "backoff",
            Self::Stopped { .. } => "stopped",
            Self::Failed { .. } => "failed",
        }
    }

    #[must_use]
    pub fn since(&self) -> Duration {
        match self {
            Self::Spawning { since, .. }
            | Self::Handshaking { since, .. }
            | Self::Loading { since, .. }
            | Self::Serving { since, .. }
            | Self::Draining { since, .. }
            | Self::Killing { since, .. }
            | Self::Reaping { since, .. }
            | Self::Backoff { since, .. }
            | Self::Stopped { since, .. }
            | Self::Failed { since, .. } => *since,
        }
    }

    /// The process that exists in this state.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Handshaking { pid, .. }
            | Self::Loading { pid, .. }
            | Self::Serving { pid, .. }
            | Self::Draining { pid, .. }
            | Self::Killing { pid, .. }
            | Self::Reaping { pid, .. } => Some(*pid),
            Self::Spawning { .. }
            | Self::Backoff { .. }
            | Self::Stopped { .. }
            | Self::Failed { .. } => None,
        }
    }

    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Stopped { .. } | Self::Failed { .. })
    }

    /// Requests may be sent to the child.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        matches!(self, Self::Serving { .. } | Self::Draining { .. })
    }

    /// What the child computed is believed: while it serves, and for what it said before it
    /// died by itself. A child that is being killed for cause is not listened to.
    #[must_use]
    pub fn believes_tokens(&self) -> bool {
        self.takes_work() || matches!(self, Self::Reaping { .. })
    }
}
