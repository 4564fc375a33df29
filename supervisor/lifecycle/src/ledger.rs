//! Ledger of deaths of one device: recent deaths, deaths in a row without progress, and a count per cause. Its size is
//! bounded by a time window and by the number of causes.

use crate::death::DeathCause;
use crate::life::Achieved;
use crate::restart_policy::{RestartPolicy, Tally};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Deaths of one device.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    by_cause: BTreeMap<&'static str, u64>,
    /// Times of recorded deaths within the policy's window, oldest first.
    recent: VecDeque<Duration>,
    /// Times of the recorded deaths of a cause that [needs time](DeathCause::needs_time).
    slow: VecDeque<Duration>,
    /// Children in a row that died without progress.
    without_progress: u32,
    /// Children in a row that died before they served, of any cause.
    unserved: u32,
    /// End of the latest burst of deaths; may lie in the past.
    unsteady_until: Option<Duration>,
}

impl Ledger {
    /// Counts a death under its cause.
    pub fn count(&mut self, cause: &DeathCause) {
        *self.by_cause.entry(cause.label()).or_default() += 1;
    }

    /// Records a death for the restart policy. Deaths older than the policy's window are removed, which bounds the lists.
    pub fn record(
        &mut self,
        now: Duration,
        cause: &DeathCause,
        achieved: Achieved,
        policy: &RestartPolicy,
    ) {
        for times in [&mut self.recent, &mut self.slow] {
            while times.front().is_some_and(|at| *at + policy.window <= now) {
                times.pop_front();
            }
        }
        let tally = self.tally(now, policy.window).and(Some(cause), achieved);
        (self.without_progress, self.unserved) = (tally.without_progress, tally.unserved);
        self.recent.push_back(now);
        if cause.needs_time() {
            self.slow.push_back(now);
        }
        if self.within(now, policy.window) > policy.burst {
            self.unsteady_until = Some(now + policy.window);
        }
    }

    /// Resets the count of children that died before they served: a child serves.
    pub fn served(&mut self) {
        self.unserved = 0;
    }

    /// Resets the count of deaths without progress: a child has made progress.
    pub fn progressed(&mut self) {
        self.without_progress = 0;
    }

    /// Removes deaths that the device did not cause from the count of deaths without progress.
    pub fn discount_deaths(&mut self, deaths: u32) {
        self.without_progress = self.without_progress.saturating_sub(deaths);
    }

    /// Clears everything that the restart policy reads. The counts per cause stay.
    pub fn reset(&mut self) {
        let by_cause = std::mem::take(&mut self.by_cause);
        *self = Self {
            by_cause,
            ..Self::default()
        };
    }

    /// Deaths per label of their cause, since start.
    #[must_use]
    pub fn by_cause(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_cause
    }

    /// Number of recorded deaths less than `window` ago.
    #[must_use]
    pub fn within(&self, now: Duration, window: Duration) -> u32 {
        count_within(&self.recent, now, window)
    }

    /// Children in a row that died without progress.
    #[must_use]
    pub fn deaths_without_progress(&self) -> u32 {
        self.without_progress
    }

    /// End of the latest burst of deaths; may lie in the past. `None`: there was no burst.
    #[must_use]
    pub fn unsteady_until(&self) -> Option<Duration> {
        self.unsteady_until
    }

    /// Input of the restart policy.
    #[must_use]
    pub(crate) fn tally(&self, now: Duration, window: Duration) -> Tally {
        Tally {
            without_progress: self.without_progress,
            unserved: self.unserved,
            slow: count_within(&self.slow, now, window),
        }
    }
}

fn count_within(times: &VecDeque<Duration>, now: Duration, window: Duration) -> u32 {
    let within = times.iter().filter(|at| **at + window > now).count();
    u32::try_from(within).unwrap_or(u32::MAX)
}
