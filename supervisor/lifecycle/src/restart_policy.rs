//! The restart policy: after a death again at once, again later, or never again.

use crate::death::{DeathCause, HandshakeRefusal};
use crate::exit::SupervisorExit;
use crate::gpu::{Condemnation, Need};
use crate::life::Achieved;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use worker_orcd_ipc::{ExitCode, FaultKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Children in a row that may die without progress; the next one is not replaced.
    pub max_deaths: u32,
    /// Deaths within `window` that are no burst yet. More make the device unsteady, for another `window`.
    pub burst: u32,
    pub window: Duration,
    /// Service without a request that counts as progress.
    pub steady: Duration,
    pub first_delay: Duration,
    pub max_delay: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            // A query of death costs five children at most, and only those count that die before it runs
            // alone (`Event::Absolve`). A card that faults by itself does so at every load, and comes to
            // six deaths soon.
            max_deaths: 5,
            // A pause every twelve seconds is what clients may be asked to bear where another worker could
            // serve them without any.
            burst: 5,
            window: Duration::from_secs(60),
            steady: Duration::from_secs(10),
            // The delay of a first death whose cause needs time (`DeathCause::needs_time`: memory that is not
            // back yet, a full disk). Each further one doubles it, and so does each death without progress,
            // whatever its cause: see `a_delay_doubles_with_each_death`.
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

/// Deaths of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Children in a row that died without progress.
    pub fruitless: u32,
    /// Children in a row that died before they served.
    pub unserved: u32,
    /// Deaths within the window whose cause needs time.
    pub slow: u32,
}

impl Tally {
    /// One death more, whose cause may not be known yet.
    #[must_use]
    pub(crate) fn and(self, cause: Option<&DeathCause>, achieved: Achieved) -> Self {
        let is_from_outside = cause.is_some_and(DeathCause::is_from_outside);
        let needs_time = cause.is_some_and(DeathCause::needs_time);
        Self {
            fruitless: match achieved {
                Achieved::Progress => 0,
                Achieved::Nothing | Achieved::Service => {
                    self.fruitless.saturating_add(u32::from(!is_from_outside))
                }
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
    /// `tally` includes the death that is judged. `has_served` says whether any child ever got as far as serving, which proves that model, device and memory
    /// were good.
    #[must_use]
    pub fn judge(&self, cause: &DeathCause, tally: Tally, has_served: bool) -> Verdict {
        if let Some(exit) = hopeless(cause, has_served) {
            return Verdict::Fail(WorkerFailure {
                exit,
                reason: cause.to_string(),
            });
        }
        if tally.fruitless > self.max_deaths {
            let reason = format!(
                "{} children in a row died and delivered nothing, the last because: {cause}",
                tally.fruitless
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
            true => Verdict::RestartAfter(self.delay(tally.fruitless.max(tally.slow))),
            false => self.pause(tally.fruitless),
        }
    }

    /// The same of a death whose cause is not known yet, if there is nothing special about it.
    #[must_use]
    pub(crate) fn judge_unknown(&self, tally: Tally) -> Verdict {
        self.pause(tally.fruitless)
    }

    /// Nothing behind a single death; from the second in a row on it grows.
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
        let fruitless = |deaths| Tally {
            fruitless: deaths,
            ..Tally::default()
        };
        let [second, third, fourth, fifth] = [500, 1000, 2000, 4000].map(Some);
        let expected = |first| [Some(first), second, third, fourth, fifth, None];
        assert_eq!(verdicts(&DeathCause::Signalled(11), fruitless), expected(0));
        assert_eq!(verdicts(&DeathCause::OomKilled, fruitless), expected(250));
    }

    #[test]
    fn with_progress_between_only_a_cause_that_needs_time_delays_the_next_child() {
        let slow = |slow| Tally {
            slow,
            ..Tally::default()
        };
        assert_eq!(verdicts(&DeathCause::Signalled(11), slow), [Some(0); 6]);
        let growing = [250, 500, 1000, 2000, 4000, 8000].map(Some);
        assert_eq!(verdicts(&DeathCause::OomKilled, slow), growing);
    }

    #[test]
    fn a_signal_from_outside_delays_the_next_child_only_where_none_came_to_serve() {
        let killed = DeathCause::Signalled(9);
        let unserved = |unserved| Tally {
            unserved,
            ..Tally::default()
        };
        let growing = [0, 500, 1000, 2000, 4000, 8000].map(Some);
        assert_eq!(verdicts(&killed, unserved), growing);
        let after_faults = |fruitless| Tally {
            fruitless: fruitless - 1,
            ..Tally::default()
        };
        assert_eq!(verdicts(&killed, after_faults), [Some(0); 6]);
    }
}
