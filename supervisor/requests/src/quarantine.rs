//! Requests that killed a child when it had nothing else to do: refused for a while.
//!
//! Bounded in number and in time. A fingerprint that goes before its time, because the table is
//! full, costs three deaths or more to be found again.

use crate::fingerprint::Fingerprint;
use std::time::{Duration, Instant};

/// Each entry cost three deaths at least, of which a worker survives five a minute: a table of this size
/// is never full by accident.
const MAX_ENTRIES: usize = 1024;

/// One entry, as /health lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantined {
    pub fingerprint: Fingerprint,
    pub until: Instant,
}

#[derive(Debug)]
pub struct Quarantine {
    duration: Duration,
    /// Oldest first, which is the order of expiry: all stay equally long.
    entries: Vec<Quarantined>,
}

impl Quarantine {
    /// A quarantine. With no duration nothing is ever refused: the one request that killed ends,
    /// and that is all.
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            entries: Vec::new(),
        }
    }

    pub fn add(&mut self, fingerprint: Fingerprint, now: Instant) {
        self.forget_expired(now);
        self.entries
            .retain(|entry| entry.fingerprint != fingerprint);
        if self.entries.len() >= MAX_ENTRIES {
            self.entries.remove(0);
        }
        // A time past the end of time is one that is far enough away.
        let until = now
            .checked_add(self.duration)
            .unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600));
        if until > now {
            self.entries.push(Quarantined { fingerprint, until });
        }
    }

    /// Time for which it is still refused.
    pub fn refused_for(&mut self, fingerprint: Fingerprint, now: Instant) -> Option<Duration> {
        self.forget_expired(now);
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.fingerprint == fingerprint)?;
        Some(entry.until.saturating_duration_since(now))
    }

    /// True while no fingerprint has to be taken.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn list(&self, now: Instant) -> Vec<Quarantined> {
        let mut entries = self.entries.clone();
        entries.retain(|entry| entry.until > now);
        entries
    }

    fn forget_expired(&mut self, now: Instant) {
        self.entries.retain(|entry| entry.until > now);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;
    use crate::record::NewRequest;
    use crate::testing::request;

    const MINUTE: Duration = Duration::from_secs(60);

    fn print(max_tokens: u32) -> Fingerprint {
        Fingerprint::of(&NewRequest {
            max_tokens,
            ..request("job")
        })
    }

    #[test]
    fn it_is_refused_until_its_time_is_over() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(MINUTE);
        quarantine.add(print(1), now);
        assert_eq!(quarantine.refused_for(print(1), now), Some(MINUTE));
        assert_eq!(quarantine.refused_for(print(2), now), None);
        assert_eq!(quarantine.list(now).len(), 1);
        assert_eq!(quarantine.refused_for(print(1), now + MINUTE), None);
        assert!(quarantine.is_empty(), "what has expired is forgotten");
    }

    #[test]
    fn a_second_conviction_prolongs_the_first() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(MINUTE);
        quarantine.add(print(1), now);
        quarantine.add(print(1), now + MINUTE / 2);
        let left = quarantine.refused_for(print(1), now + MINUTE / 2);
        assert_eq!((left, quarantine.list(now).len()), (Some(MINUTE), 1));
    }

    #[test]
    fn the_table_is_bounded_and_the_oldest_goes_first() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(MINUTE);
        for number in 0..=MAX_ENTRIES as u32 {
            quarantine.add(print(number), now);
        }
        assert_eq!(quarantine.list(now).len(), MAX_ENTRIES);
        assert_eq!(quarantine.refused_for(print(0), now), None);
        assert!(quarantine.refused_for(print(1), now).is_some());
    }

    #[test]
    fn without_a_duration_nothing_is_kept() {
        let now = Instant::now();
        let mut quarantine = Quarantine::new(Duration::ZERO);
        quarantine.add(print(1), now);
        assert!(quarantine.is_empty());
        let mut forever = Quarantine::new(Duration::MAX);
        forever.add(print(1), now);
        assert!(forever.refused_for(print(1), now + MINUTE * 60).is_some());
    }
}
