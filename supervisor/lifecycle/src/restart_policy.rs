//! The restart policy: after a death again at once, again later, or never again.

use crate::death::{DeathCause, HandshakeRefusal};
use crate::exit::SupervisorExit;
use crate::gpu::{Condemnation, Need};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::time::Duration;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Deaths within `window`, or in a row without service between, after which the next one
    /// is not answered by a restart.
    pub max_deaths: u32,
    pub window: Duration,
    pub first_delay: Duration,
    pub max_delay: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            // Five deaths a minute are survived, the sixth is not. On a machine that is well a
            // query of death costs three children and two at once cost four, so neither ends a
            // worker (requests/live/probation/tests.rs). A card that faults by itself does so at
            // every load, and comes to six deaths soon.
            max_deaths: 5,
            window: Duration::from_secs(60),
            // The delay of a first death whose cause needs time (`needs_time`: memory that is not
            // back yet, a full disk). Each further death doubles it, whatever its cause: see
            // `a_delay_doubles_with_each_death`.
            first_delay: Duration::from_millis(250),
            max_delay: Duration::from_secs(8),
        }
    }
}

/// Why the worker gives up, and the number it leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFailure {
    pub exit: SupervisorExit,
    pub reason: String,
}

impl From<Condemnation> for WorkerFailure {
    fn from(condemnation: Condemnation) -> Self {
        Self {
            exit: match condemnation.need {
                Need::GpuReset => SupervisorExit::GpuNeedsReset,
                Need::NodeReboot => SupervisorExit::NodeNeedsReboot,
            },
            reason: condemnation.to_string(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    RestartNow,
    RestartAfter(Duration),
    Fail(WorkerFailure),
}

impl Verdict {
    /// Time until the next child. `None`: there is none.
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self {
            Self::RestartNow => Some(Duration::ZERO),
            Self::RestartAfter(delay) => Some(*delay),
            Self::Fail(_) => None,
        }
    }

    pub(crate) fn failure(self) -> Option<WorkerFailure> {
        match self {
            Self::Fail(failure) => Some(failure),
            Self::RestartNow | Self::RestartAfter(_) => None,
        }
    }
}

impl RestartPolicy {
    /// `deaths` is [`Ledger::intensity`](crate::Ledger::intensity), this one included; `has_served`
    /// says whether any child ever got as far as serving, which proves that model, device and memory
    /// were good.
    #[must_use]
    pub fn judge(&self, cause: &DeathCause, deaths: u32, has_served: bool) -> Verdict {
        if let Some(exit) = hopeless(cause, has_served) {
            return Verdict::Fail(WorkerFailure {
                exit,
                reason: cause.to_string(),
            });
        }
        self.judge_number(deaths, needs_time(cause), cause)
    }

    /// The same of a death whose cause is not known yet, if there is nothing special about it.
    #[must_use]
    pub(crate) fn judge_unknown(&self, deaths: u32) -> Verdict {
        self.judge_number(deaths, false, &"not known yet")
    }

    fn judge_number(&self, deaths: u32, needs_time: bool, cause: &dyn Display) -> Verdict {
        if deaths > self.max_deaths {
            let reason = format!(
                "{deaths} children died within {} s or without serving, the last because: {cause}",
                self.window.as_secs()
            );
            return Verdict::Fail(WorkerFailure {
                exit: SupervisorExit::CrashLoop,
                reason,
            });
        }
        if deaths <= 1 && !needs_time {
            return Verdict::RestartNow;
        }
        Verdict::RestartAfter(self.delay(deaths))
    }

    fn delay(&self, deaths: u32) -> Duration {
        let doublings = deaths.saturating_sub(1).min(16);
        self.first_delay
            .saturating_mul(1 << doublings)
            .min(self.max_delay)
    }
}

/// Causes that a new child would meet again.
fn hopeless(cause: &DeathCause, has_served: bool) -> Option<SupervisorExit> {
    match cause {
        DeathCause::HandshakeRefused(
            HandshakeRefusal::Preamble(_) | HandshakeRefusal::Features(_),
        ) => Some(SupervisorExit::ChildIncompatible),
        DeathCause::Exited(ExitCode::Usage) => Some(SupervisorExit::ChildIncompatible),
        DeathCause::SpawnFailed {
            permanent: true, ..
        } => Some(SupervisorExit::SpawnImpossible),
        DeathCause::ModelChanged => Some(SupervisorExit::ModelChanged),
        DeathCause::Unservable(_) if !has_served => Some(SupervisorExit::ModelLoad),
        DeathCause::Said(fault) if !has_served => permanent(fault.kind()),
        DeathCause::Exited(ExitCode::Fault(kind)) if !has_served => permanent(*kind),
        _ => None,
    }
}

fn permanent(kind: FaultKind) -> Option<SupervisorExit> {
    match kind {
        FaultKind::ModelLoad => Some(SupervisorExit::ModelLoad),
        FaultKind::InsufficientMemory => Some(SupervisorExit::InsufficientMemory),
        FaultKind::DeviceUnavailable => Some(SupervisorExit::DeviceUnavailable),
        _ => None,
    }
}

/// Causes that lie in the machine's condition: another child at once would find it unchanged.
fn needs_time(cause: &DeathCause) -> bool {
    matches!(
        cause,
        DeathCause::Said(
            Fault::ModelLoad { .. }
                | Fault::InsufficientMemory { .. }
                | Fault::DeviceUnavailable { .. }
                | Fault::OutOfMemory { .. }
                | Fault::Io { .. }
        ) | DeathCause::Exited(_)
            | DeathCause::OomKilled
            | DeathCause::SpawnFailed { .. }
            | DeathCause::Unservable(_)
            | DeathCause::LoadStalled { .. }
            | DeathCause::HandshakeDeadline { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_doubles_with_each_death() {
        let policy = RestartPolicy::default();
        let verdicts = |cause: &DeathCause| -> Vec<_> {
            let judge = |deaths| match policy.judge(cause, deaths, true) {
                Verdict::RestartNow => Some(0),
                Verdict::RestartAfter(delay) => Some(delay.as_millis()),
                Verdict::Fail(_) => None,
            };
            (1..=6).map(judge).collect()
        };
        let [second, third, fourth, fifth] = [500, 1000, 2000, 4000].map(Some);
        let expected = |first| [Some(first), second, third, fourth, fifth, None];
        assert_eq!(verdicts(&DeathCause::Signalled(9)), expected(0));
        assert_eq!(verdicts(&DeathCause::OomKilled), expected(250));
    }
}
