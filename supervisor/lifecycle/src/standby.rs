//! Demand for a standby: whether one is wanted, and the delay of the next one after a death.

use crate::death::DeathCause;
use crate::ledger::Ledger;
use crate::life::Achieved;
use crate::restart_policy::{RestartPolicy, Verdict};
use std::time::Duration;

/// 500 ms from the start of service to the spawn of the standby, and between two standbys. A load takes cores and memory
/// bandwidth from streams that have just been interrupted.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// Demand for a standby on one device.
#[derive(Debug, Default)]
pub(crate) struct Standby {
    /// A standby is kept at all times (`--standby`).
    is_kept: bool,
    /// The next standby replaces the serving child.
    replaces: bool,
    /// Reason for which no standby is started although one is kept.
    given_up: Option<String>,
    /// Deaths of standbys. They interrupt no stream, so they end only the standby.
    ledger: Ledger,
}

impl Standby {
    pub(crate) fn new(is_kept: bool) -> Self {
        Self {
            is_kept,
            ..Self::default()
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.replaces || self.is_kept && self.given_up.is_none()
    }

    pub(crate) fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    /// Requests a standby that replaces the serving child.
    pub(crate) fn order_replacement(&mut self) {
        self.replaces = true;
    }

    /// Records that a standby is ready. True if it replaces the serving child.
    pub(crate) fn stands_by(&mut self) -> bool {
        self.ledger.served();
        std::mem::take(&mut self.replaces)
    }

    /// Resets the count of deaths without progress: a standby was promoted, or was ready for a long time.
    pub(crate) fn progressed(&mut self) {
        self.ledger.progressed();
    }

    /// Clears the reason for having given up: with a new serving child the obstacle may be gone.
    pub(crate) fn try_again(&mut self) {
        self.given_up = None;
    }

    /// Delay from the end of a standby to the next spawn. `None`: no standby follows.
    pub(crate) fn pause_after(
        &mut self,
        now: Duration,
        cause: &DeathCause,
        policy: &RestartPolicy,
    ) -> Option<Duration> {
        if *cause == DeathCause::Dismissed {
            return self.is_wanted().then_some(Duration::ZERO);
        }
        self.ledger.record(now, cause, Achieved::Nothing, policy);
        let tally = self.ledger.tally(now, policy.window);
        match policy.judge(cause, tally, false) {
            Verdict::RestartNow => self.is_wanted().then_some(PAUSE),
            Verdict::RestartAfter(delay) => self.is_wanted().then_some(delay.max(PAUSE)),
            Verdict::Fail(failure) => {
                self.given_up = Some(failure.reason);
                self.replaces = false;
                None
            }
        }
    }
}
