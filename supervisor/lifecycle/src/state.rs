//! States of a seat and its child. Each state owns what only makes sense in it.

use crate::death::{DeathCause, Exit};
use crate::watchdog::{Deadlines, Watch};
use std::time::Duration;
use worker_orcd_ipc::Role;

/// `since`, `deadline` and `until` are times since the supervisor's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// A seat without a process; the worker wants the next one at `spawn_at`, or none.
    Vacant {
        since: Duration,
        spawn_at: Option<Duration>,
    },
    /// The spawn thread was asked; there is no process yet.
    Spawning { since: Duration, deadline: Duration },
    /// A child that runs, but has not said who it is.
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
        /// The role that it was told when its load was ordered.
        role: Role,
    },
    /// A child that is ready, and waits until another one dies.
    StandingBy {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    Serving {
        since: Duration,
        pid: u32,
        watch: Watch,
    },
    /// A child that must go, and `cause` says why; `deadline` ends the present stage.
    Killing {
        since: Duration,
        pid: u32,
        cause: DeathCause,
        stage: KillStage,
        deadline: Duration,
    },
    /// A child that is dead or dying by itself. Its exit says why, its socket may still hold last
    /// words: both are awaited, in either order, until `deadline`.
    Reaping {
        since: Duration,
        pid: u32,
        said: Option<DeathCause>,
        exit: Option<Exit>,
        link_closed: bool,
        deadline: Duration,
    },
    /// A child that survived SIGKILL: it is stuck in the kernel, for good as far as anybody here
    /// can tell.
    Unreapable { since: Duration, pid: u32 },
}

/// The means by which a child has been asked to go.
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
    /// The moment at which `bytes_done` last grew.
    pub advanced_at: Duration,
}

impl State {
    /// A stable word for /health, metrics and logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vacant { .. } => "backoff",
            Self::Spawning { .. } => "spawning",
            Self::Handshaking { .. } => "handshaking",
            Self::Loading { .. } => "loading",
            Self::StandingBy { .. } => "standing_by",
            Self::Serving { .. } => "serving",
            Self::Killing { .. } => "killing",
            Self::Reaping { .. } => "reaping",
            Self::Unreapable { .. } => "unreapable",
        }
    }

    /// The same for a person.
    #[must_use]
    pub fn in_words(&self) -> &'static str {
        match self {
            Self::Vacant { .. } => "waiting before the next child is started",
            Self::Spawning { .. } => "a child process is being started",
            Self::Handshaking { .. } => "the child has not introduced itself yet",
            Self::Loading { .. } => "the model is being loaded",
            Self::StandingBy { .. } => "a child stands by",
            Self::Serving { .. } => "serving",
            Self::Killing { .. } => "the child was asked to go",
            Self::Reaping { .. } => "the child is dying",
            Self::Unreapable { .. } => "the child is stuck in the kernel",
        }
    }

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

    /// The process of this life.
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

    /// The pulse of a child whose silence is measured.
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

    /// The moment at which something is to be done about it.
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

    /// What a child that is watched has failed to do in time.
    #[must_use]
    pub(crate) fn overdue(&self, now: Duration, deadlines: &Deadlines) -> Option<DeathCause> {
        let overdue = self.watch()?.overdue(now, deadlines);
        match self {
            Self::Loading { progress, .. } => overdue.or_else(|| progress.overdue(now, deadlines)),
            _ => overdue,
        }
    }

    /// True from the beginning of a child's end until it is buried.
    #[must_use]
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self, Self::Killing { .. } | Self::Reaping { .. })
    }

    /// Why a child is ending, as far as that is known before it is buried.
    #[must_use]
    pub(crate) fn cause_so_far(&self) -> Option<DeathCause> {
        match self {
            Self::Killing { cause, .. } => Some(cause.clone()),
            Self::Reaping { said, exit, .. } => {
                said.clone().or_else(|| exit.map(DeathCause::of_exit))
            }
            _ => None,
        }
    }

    /// True from the order for a process until the child's end begins.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.is_spawning() || self.is_trusted()
    }

    #[must_use]
    pub(crate) fn is_spawning(&self) -> bool {
        matches!(self, Self::Spawning { .. })
    }

    /// Nothing will come of it by itself.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Vacant { .. } | Self::Unreapable { .. })
    }

    /// True for a child that exists, and against which nothing is known.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        matches!(self, Self::Handshaking { .. }) || self.is_watched()
    }

    /// True for a child whose silence is measured.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watch().is_some()
    }

    /// Requests may be sent to the child.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        matches!(self, Self::Serving { .. })
    }

    /// True while what the child computed is believed: while it serves, and for what it said before
    /// it died by itself. A child that is being killed for cause is not listened to.
    #[must_use]
    pub fn believes_tokens(&self) -> bool {
        matches!(self, Self::Serving { .. } | Self::Reaping { .. })
    }
}
