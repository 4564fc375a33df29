//! States of a seat and its child. Each variant holds the data that exists only in that state.

use crate::death::DeathCause;
use crate::watchdog::{Deadlines, Watch};
use std::time::Duration;
use worker_orcd_ipc::{Exit, Role};

/// State of a seat. `since`, `deadline` and `spawn_at` are times since the supervisor's start.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum State {
    /// No process. The next spawn is scheduled for `spawn_at`, or not at all.
    #[strum(serialize = "backoff")]
    Vacant {
        since: Duration,
        spawn_at: Option<Duration>,
    },
    /// The spawn was ordered; no process exists yet.
    Spawning { since: Duration, deadline: Duration },
    /// The process runs, but has not sent its `Hello`.
    Handshaking {
        since: Duration,
        pid: u32,
        deadline: Duration,
    },
    /// The child loads the model.
    Loading {
        since: Duration,
        pid: u32,
        watch: Watch,
        progress: LoadProgress,
        /// Role in its `Command::Load`.
        role: Role,
    },
    /// The child is ready and waits for promotion.
    StandingBy {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    /// The child computes requests.
    Serving {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    /// The supervisor ends the child for `cause`. `deadline` is the end of the current stage.
    Killing {
        since: Duration,
        pid: u32,
        cause: DeathCause,
        stage: KillStage,
        deadline: Duration,
    },
    /// The child exits or exited on its own. Its exit status and the end of its socket, which may still carry a fault, are
    /// awaited in either order until `deadline`.
    Reaping {
        since: Duration,
        pid: u32,
        reported: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
        deadline: Duration,
    },
    /// The process survived SIGKILL: it is stuck in the kernel. A final state.
    Unreapable { since: Duration, pid: u32 },
}

/// Stage of a dismissal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KillStage {
    /// `Command::Shutdown` was sent.
    Asked,
    /// SIGTERM was sent.
    Terminated,
    /// SIGKILL was sent. The last stage.
    Killed,
}

/// Progress of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadProgress {
    pub bytes_done: u64,
    pub bytes_total: u64,
    /// Time at which `bytes_done` last grew.
    pub advanced_at: Duration,
}

impl State {
    /// Stable name for `/health`, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Description for the operator.
    #[must_use]
    pub fn description(&self) -> &'static str {
        match self {
            Self::Vacant { .. } => "waiting before the next child is started",
            Self::Spawning { .. } => "a child process is being started",
            Self::Handshaking { .. } => "the child has not sent its Hello yet",
            Self::Loading { .. } => "the model is being loaded",
            Self::StandingBy { .. } => "a standby is ready",
            Self::Serving { .. } => "serving",
            Self::Killing { .. } => "the child is being ended",
            Self::Reaping { .. } => "the child is exiting",
            Self::Unreapable { .. } => "the child is stuck in the kernel",
        }
    }

    /// Time at which the state was entered.
    #[must_use]
    pub fn since(&self) -> Duration {
        match self {
            Self::Vacant { since, .. }
            | Self::Spawning { since, .. }
            | Self::Handshaking { since, .. }
            | Self::Loading { since, .. }
            | Self::StandingBy { since, .. }
            | Self::Serving { since, .. }
            | Self::Killing { since, .. }
            | Self::Reaping { since, .. }
            | Self::Unreapable { since, .. } => *since,
        }
    }

    /// Process id, in states with a process that can still end.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Handshaking { pid, .. }
            | Self::Loading { pid, .. }
            | Self::StandingBy { pid, .. }
            | Self::Serving { pid, .. }
            | Self::Killing { pid, .. }
            | Self::Reaping { pid, .. } => Some(*pid),
            Self::Vacant { .. } | Self::Spawning { .. } | Self::Unreapable { .. } => None,
        }
    }

    /// Heartbeat record, in states with a heartbeat deadline.
    #[must_use]
    pub(crate) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Loading { watch, .. }
            | Self::StandingBy { watch, .. }
            | Self::Serving { watch, .. } => Some(watch),
            _ => None,
        }
    }

    pub(crate) fn watch_mut(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Loading { watch, .. }
            | Self::StandingBy { watch, .. }
            | Self::Serving { watch, .. } => Some(watch),
            _ => None,
        }
    }

    /// Time at which the state's deadline passes or its spawn is due.
    #[must_use]
    pub(crate) fn deadline(&self, deadlines: &Deadlines) -> Option<Duration> {
        match self {
            Self::Spawning { deadline, .. }
            | Self::Handshaking { deadline, .. }
            | Self::Killing { deadline, .. }
            | Self::Reaping { deadline, .. } => Some(*deadline),
            Self::Loading {
                watch, progress, ..
            } => Some(watch.deadline(deadlines).min(progress.deadline(deadlines))),
            Self::Vacant { spawn_at, .. } => *spawn_at,
            _ => self.watch().map(|watch| watch.deadline(deadlines)),
        }
    }

    /// Cause of death if a heartbeat, step or load deadline has passed.
    #[must_use]
    pub(crate) fn overdue(&self, now: Duration, deadlines: &Deadlines) -> Option<DeathCause> {
        let overdue = self.watch()?.overdue(now, deadlines);
        match self {
            Self::Loading { progress, .. } => overdue.or_else(|| progress.overdue(now, deadlines)),
            _ => overdue,
        }
    }

    /// True from the start of a child's end to its reaping.
    #[must_use]
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Reaping { .. })
    }

    /// Cause of an ending child's death as known before its reaping.
    #[must_use]
    pub(crate) fn cause_so_far(&self) -> Option<DeathCause> {
        match self {
            Self::Killing { cause, .. } => Some(cause.clone()),
            Self::Reaping { reported, exit, .. } => {
                reported.clone().or_else(|| exit.map(DeathCause::of_exit))
            }
            _ => None,
        }
    }

    /// True from the order to spawn until the child's end begins.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.is_spawning() || self.is_trusted()
    }

    #[must_use]
    pub(crate) fn is_spawning(&self) -> bool {
        matches!(self, Self::Spawning { .. })
    }

    /// True if no process can still end: the seat is empty, or its process is stuck.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Vacant { .. } | Self::Unreapable { .. })
    }

    /// True for a running child before its end begins.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        matches!(self, Self::Handshaking { .. }) || self.is_watched()
    }

    /// True for a child with a heartbeat deadline.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watch().is_some()
    }

    /// True if requests may be sent to the child.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        matches!(self, Self::Serving { .. })
    }

    /// True while tokens of the child are accepted: while it serves, and for messages that it sent before its own exit.
    /// Tokens of a child that is being killed are dropped.
    #[must_use]
    pub fn accepts_tokens(&self) -> bool {
        matches!(self, Self::Serving { .. } | Self::Reaping { .. })
    }
}
