//! The ledger of deaths of one device: how many lately, how many in a row led to nothing, and of what. Bounded:
//! a window of times, and a count per cause.

use crate::death::DeathCause;
use crate::life::Achieved;
use crate::restart_policy::{RestartPolicy, Tally};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Ledger {
    by_cause: BTreeMap<&'static str, u64>,
    /// Times of deaths that interrupted the device, oldest first.
    recent: VecDeque<Duration>,
    /// Those of them whose cause needs time.
    slow: VecDeque<Duration>,
    /// Children in a row that died without progress.
    fruitless: u32,
    /// Children in a row that died before they served, whatever killed them.
    unserved: u32,
    /// A burst of deaths counts until then.
    unsteady_until: Option<Duration>,
}

impl Ledger {
    /// Counts a death under its cause.
    pub fn count(&mut self, cause: &DeathCause) {
        *self.by_cause.entry(cause.label()).or_default() += 1;
    }

    /// A death that the restart policy is to judge. Forgets what is older than its window on the way, so that
    /// the lists stay as small as that.
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
        (self.fruitless, self.unserved) = (tally.fruitless, tally.unserved);
        self.recent.push_back(now);
        if cause.needs_time() {
            self.slow.push_back(now);
        }
        if self.within(now, policy.window) > policy.burst {
            self.unsteady_until = Some(now + policy.window);
        }
    }

    /// A child serves, so the next one can be had at once.
    pub fn served(&mut self) {
        self.unserved = 0;
    }

    /// A child has made progress: the deaths before it were worth their restarts.
    pub fn progressed(&mut self) {
        self.fruitless = 0;
    }

    /// So many of the deaths in a row had another cause than the device.
    pub fn absolve(&mut self, deaths: u32) {
        self.fruitless = self.fruitless.saturating_sub(deaths);
    }

    /// Forgets what counts against the device; what was counted stays.
    pub fn pardon(&mut self) {
        let by_cause = std::mem::take(&mut self.by_cause);
        *self = Self {
            by_cause,
            ..Self::default()
        };
    }

    #[must_use]
    pub fn by_cause(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_cause
    }

    /// Deaths less than `window` ago.
    #[must_use]
    pub fn within(&self, now: Duration, window: Duration) -> u32 {
        count_within(&self.recent, now, window)
    }

    /// Children in a row that died without progress.
    #[must_use]
    pub fn fruitless(&self) -> u32 {
        self.fruitless
    }

    /// The end of the burst of deaths that the device is in, as far as it is known; it may be over.
    #[must_use]
    pub fn unsteady_until(&self) -> Option<Duration> {
        self.unsteady_until
    }

    /// What the restart policy goes by.
    #[must_use]
    pub(crate) fn tally(&self, now: Duration, window: Duration) -> Tally {
        Tally {
            fruitless: self.fruitless,
            unserved: self.unserved,
            slow: count_within(&self.slow, now, window),
        }
    }
}

fn count_within(times: &VecDeque<Duration>, now: Duration, window: Duration) -> u32 {
    let within = times.iter().filter(|at| **at + window > now).count();
    u32::try_from(within).unwrap_or(u32::MAX)
}
