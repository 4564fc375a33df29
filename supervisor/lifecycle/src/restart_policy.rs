//! Restart policy: immediate restart, delayed restart, or failure after a death.

use crate::death::{DeathCause, HandshakeRefusal};
use crate::exit::SupervisorExit;
use crate::gpu::{Condemnation, Need};
use crate::life::Achieved;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use worker_orcd_ipc::{ExitCode, FaultKind};

/// Limits and delays of restarts, per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Maximum number of children in a row that die without progress. The next such death fails the device.
    pub max_deaths: u32,
    /// Maximum number of deaths within `window` that is not a burst. More deaths make the device unsteady for another
    /// `window`.
    pub burst: u32,
    pub window: Duration,
    /// Time of service without a request that counts as progress.
    pub steady: Duration,
    /// Delay after the first death; each further one doubles it.
    pub first_delay: Duration,
    pub max_delay: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            // A query of death kills at most five children, and deaths in exclusive execution are not counted
            // (`Event::DiscountDeaths`). A defective card fails at every load and reaches six deaths soon.
            max_deaths: 5,
            // One interruption per twelve seconds is the most that is acceptable where another worker could serve the
            // clients without interruptions.
            burst: 5,
            window: Duration::from_secs(60),
            steady: Duration::from_secs(10),
            // Delay after a first death by a cause that needs time (`DeathCause::needs_time`), such as memory that is
            // not freed yet or a full disk. Each further such death doubles it, as does each death without progress of
            // any cause: see `a_delay_doubles_with_each_death`.
            first_delay: Duration::from_millis(250),
            max_delay: Duration::from_secs(8),
        }
    }
}

/// Failure of a worker or of one of its devices: exit code and reason.
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

/// Decision after a death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    RestartNow,
    RestartAfter(Duration),
    Fail(WorkerFailure),
}

impl Verdict {
    /// Time until the next spawn. `None`: no child follows.
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

/// Counts of deaths of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Children in a row that died without progress.
    pub without_progress: u32,
    /// Children in a row that died before they served.
    pub unserved: u32,
    /// Deaths within the window by a cause that needs time.
    pub slow: u32,
}

impl Tally {
    /// Counts including one more death. `cause` is `None` while it is unknown.
    #[must_use]
    pub(crate) fn and(self, cause: Option<&DeathCause>, achieved: Achieved) -> Self {
        let is_from_outside = cause.is_some_and(DeathCause::is_from_outside);
        let needs_time = cause.is_some_and(DeathCause::needs_time);
        Self {
            without_progress: match achieved {
                Achieved::Progress => 0,
                Achieved::Nothing | Achieved::Service => self
                    .without_progress
                    .saturating_add(u32::from(!is_from_outside)),
            },
            unserved: match achieved {
                Achieved::Nothing => self.unserved.saturating_add(1),
                Achieved::Service | Achieved::Progress => self.unserved,
            },
            slow: self.slow.saturating_add(u32::from(needs_time)),
        }
    }
}

impl RestartPolicy {
    /// Decision after a death. `tally` includes this death. `has_served`: a child of the device has served before, so model,
    /// device and memory were usable.
    #[must_use]
    pub fn judge(&self, cause: &DeathCause, tally: Tally, has_served: bool) -> Verdict {
        if let Some(exit) = permanent_cause(cause, has_served) {
            return Verdict::Fail(WorkerFailure {
                exit,
                reason: cause.to_string(),
            });
        }
        if tally.without_progress > self.max_deaths {
            let reason = format!(
                "{} children in a row died without progress, the last because: {cause}",
                tally.without_progress
            );
            return Verdict::Fail(WorkerFailure {
                exit: SupervisorExit::CrashLoop,
                reason,
            });
        }
        if cause.is_from_outside() {
            return self.pause(tally.unserved);
        }
        match cause.needs_time() {
            true => Verdict::RestartAfter(self.delay(tally.without_progress.max(tally.slow))),
            false => self.pause(tally.without_progress),
        }
    }

    /// Decision after a death of unknown cause, on the assumption that the cause neither needs time nor is permanent.
    #[must_use]
    pub(crate) fn judge_unknown(&self, tally: Tally) -> Verdict {
        self.pause(tally.without_progress)
    }

    /// No delay after a single death, a growing one from the second death in a row on.
    fn pause(&self, deaths: u32) -> Verdict {
        match deaths {
            0 | 1 => Verdict::RestartNow,
            _ => Verdict::RestartAfter(self.delay(deaths)),
        }
    }

    fn delay(&self, deaths: u32) -> Duration {
        let doublings = deaths.saturating_sub(1).min(16);
        self.first_delay
            .saturating_mul(1 << doublings)
            .min(self.max_delay)
    }
}

/// Exit code for a cause that a new child would meet again. `None`: a restart may succeed.
fn permanent_cause(cause: &DeathCause, has_served: bool) -> Option<SupervisorExit> {
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
        DeathCause::Reported(fault) if !has_served => permanent_fault(fault.kind()),
        DeathCause::Exited(ExitCode::Fault(kind)) if !has_served => permanent_fault(*kind),
        _ => None,
    }
}

fn permanent_fault(kind: FaultKind) -> Option<SupervisorExit> {
    match kind {
        FaultKind::ModelLoad => Some(SupervisorExit::ModelLoad),
        FaultKind::InsufficientMemory => Some(SupervisorExit::InsufficientMemory),
        FaultKind::DeviceUnavailable => Some(SupervisorExit::DeviceUnavailable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(cause: &DeathCause, tally: impl Fn(u32) -> Tally) -> Vec<Option<u128>> {
        let policy = RestartPolicy::default();
        let judge = |deaths| match policy.judge(cause, tally(deaths), true) {
            Verdict::RestartNow => Some(0),
            Verdict::RestartAfter(delay) => Some(delay.as_millis()),
            Verdict::Fail(_) => None,
        };
        (1..=6).map(judge).collect()
    }

    #[test]
    fn a_delay_doubles_with_each_death() {
        let without_progress = |deaths| Tally {
            without_progress: deaths,
            ..Tally::default()
        };
        let [second, third, fourth, fifth] = [500, 1000, 2000, 4000].map(Some);
        let expected = |first| [Some(first), second, third, fourth, fifth, None];
        assert_eq!(
            verdicts(&DeathCause::Signalled(11), without_progress),
            expected(0)
        );
        assert_eq!(
            verdicts(&DeathCause::OomKilled, without_progress),
            expected(250)
        );
    }

    #[test]
    fn after_progress_only_a_cause_that_needs_time_delays_the_next_child() {
        let slow = |slow| Tally {
            slow,
            ..Tally::default()
        };
        assert_eq!(verdicts(&DeathCause::Signalled(11), slow), [Some(0); 6]);
        let growing = [250, 500, 1000, 2000, 4000, 8000].map(Some);
        assert_eq!(verdicts(&DeathCause::OomKilled, slow), growing);
    }

    #[test]
    fn an_external_signal_delays_the_next_child_only_if_the_previous_ones_never_served() {
        let killed = DeathCause::Signalled(9);
        let unserved = |unserved| Tally {
            unserved,
            ..Tally::default()
        };
        let growing = [0, 500, 1000, 2000, 4000, 8000].map(Some);
        assert_eq!(verdicts(&killed, unserved), growing);
        let after_faults = |without_progress| Tally {
            without_progress: without_progress - 1,
            ..Tally::default()
        };
        assert_eq!(verdicts(&killed, after_faults), [Some(0); 6]);
    }
}
