//! The ledger of deaths: how many lately, and of what. Bounded: a window of times, and a count per
//! cause.

use crate::death::DeathCause;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Ledger {
    by_cause: BTreeMap<&'static str, u64>,
    /// Times of deaths that count against the restart intensity, oldest first.
    recent: VecDeque<Duration>,
    /// Deaths since a child last got as far as serving.
    fruitless: u32,
}

impl Ledger {
    /// A death that counts against the restart intensity. Forgets what is older than `window` on the way, so
    /// that `recent` stays as small as that.
    pub fn record(&mut self, now: Duration, window: Duration) {
        while self.recent.front().is_some_and(|at| *at + window <= now) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.fruitless = self.fruitless.saturating_add(1);
    }

    /// Counts a death that may or may not count against the restart intensity.
    pub fn count(&mut self, cause: &DeathCause) {
        *self.by_cause.entry(cause.label()).or_default() += 1;
    }

    /// A child serves: the deaths before it were worth their restarts.
    pub fn served(&mut self) {
        self.fruitless = 0;
    }

    /// Forgets what counts against the restart intensity; what was counted stays.
    pub fn pardon(&mut self) {
        self.recent.clear();
        self.fruitless = 0;
    }

    #[must_use]
    pub fn by_cause(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_cause
    }

    /// Deaths less than `window` ago.
    #[must_use]
    pub fn within(&self, now: Duration, window: Duration) -> u32 {
        let recent = self.recent.iter().filter(|at| **at + window > now).count();
        u32::try_from(recent).unwrap_or(u32::MAX)
    }

    /// Deaths on which the restart intensity is measured: those in the window, or, when children
    /// die so slowly that no window holds enough of them (a load that stalls takes half a minute),
    /// deaths in a row without any service between.
    #[must_use]
    pub fn intensity(&self, now: Duration, window: Duration) -> u32 {
        self.within(now, window).max(self.fruitless)
    }
}
