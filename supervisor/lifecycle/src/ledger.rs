//! Who died when, and of what. Bounded: a window of times, a count per cause, and the last death.

use crate::death::DeathCause;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use worker_orcd_ipc::Generation;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    pub generation: Generation,
    pub at: Duration,
    pub cause: DeathCause,
}

#[derive(Debug, Clone, Default)]
pub struct Ledger {
    by_cause: BTreeMap<&'static str, u64>,
    last: Option<Death>,
    /// Times of deaths that count against the restart intensity, oldest first.
    recent: VecDeque<Duration>,
    /// Deaths since a child last got as far as serving.
    fruitless: u32,
}

impl Ledger {
    /// Forgets what is older than `window` on the way, so that `recent` stays as small as the
    /// restart intensity.
    pub fn record(&mut self, death: Death, window: Duration) {
        while self
            .recent
            .front()
            .is_some_and(|at| *at + window <= death.at)
        {
            self.recent.pop_front();
        }
        self.recent.push_back(death.at);
        *self.by_cause.entry(death.cause.label()).or_default() += 1;
        self.last = Some(death);
        self.fruitless = self.fruitless.saturating_add(1);
    }

    /// A child serves: the deaths before it were worth their restarts.
    pub fn served(&mut self) {
        self.fruitless = 0;
    }

    #[must_use]
    pub fn by_cause(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_cause
    }

    #[must_use]
    pub fn last(&self) -> Option<&Death> {
        self.last.as_ref()
    }

    /// Deaths less than `window` ago.
    #[must_use]
    pub fn within(&self, now: Duration, window: Duration) -> u32 {
        let recent = self.recent.iter().filter(|at| **at + window > now).count();
        u32::try_from(recent).unwrap_or(u32::MAX)
    }

    /// What the restart intensity is measured on: deaths in the window, or, when children die
    /// so slowly that no window holds enough of them (a load that stalls takes half a minute),
    /// deaths in a row without any service between.
    #[must_use]
    pub fn intensity(&self, now: Duration, window: Duration) -> u32 {
        self.within(now, window).max(self.fruitless)
    }
}
