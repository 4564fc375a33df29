//! The wish for a standby: whether there is to be one, and when the next one follows a death.

use crate::death::DeathCause;
use crate::ledger::Ledger;
use crate::life::Achieved;
use crate::restart_policy::{RestartPolicy, Verdict};
use std::time::Duration;

/// Time from a child's beginning to serve to the beginning of its standby: a load takes cores and
/// bandwidth from streams that have just been interrupted.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Standby {
    /// There is to be one at all times.
    is_kept: bool,
    /// The next one takes the place of the child that serves.
    replaces: bool,
    /// Why there is none, although there should be.
    given_up: Option<String>,
    /// Deaths of standbys. They cost no stream anything, and end nothing but the standby.
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

    /// A child is to be replaced.
    pub(crate) fn order_replacement(&mut self) {
        self.replaces = true;
    }

    /// One stands by; true if it is to replace a child.
    pub(crate) fn stands_by(&mut self) -> bool {
        self.ledger.served();
        std::mem::take(&mut self.replaces)
    }

    /// One was promoted, or stood by for long: those before it were worth their loads.
    pub(crate) fn progressed(&mut self) {
        self.ledger.progressed();
    }

    /// A child begins to serve: what kept a standby from loading may be gone.
    pub(crate) fn try_again(&mut self) {
        self.given_up = None;
    }

    /// The pause after the end of a standby until the next one begins. `None`: there is none.
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
