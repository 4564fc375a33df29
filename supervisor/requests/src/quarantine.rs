//! Temporary refusal of requests that killed children while they ran alone.
//!
//! The table is bounded in size and time. A fingerprint that is evicted early costs three or more deaths until it is
//! found again.

use crate::fingerprint::Fingerprint;
use std::time::{Duration, Instant};

/// Maximum number of entries. Each costs at least three deaths, and a worker survives five deaths a minute, so the
/// table does not fill by accident.
const MAX_ENTRIES: usize = 1024;

/// Entry of the quarantine, as listed in `/health`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantined {
    pub fingerprint: Fingerprint,
    pub until: Instant,
}

#[derive(Debug)]
pub struct Quarantine {
    duration: Duration,
    /// Entries in order of expiry, which is the order of insertion: all have the same duration.
    entries: Vec<Quarantined>,
}

impl Quarantine {
    /// Creates a quarantine. A duration of zero refuses no request: a convicted request ends, but may be sent again.
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
        // If the expiry time overflows, a year is long enough.
        let until = now
            .checked_add(self.duration)
            .unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600));
        if until > now {
            self.entries.push(Quarantined { fingerprint, until });
        }
    }

    /// Time for which the fingerprint is still refused. `None`: it is not.
    pub fn refused_for(&mut self, fingerprint: Fingerprint, now: Instant) -> Option<Duration> {
        self.forget_expired(now);
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.fingerprint == fingerprint)?;
        Some(entry.until.saturating_duration_since(now))
    }

    /// True if no fingerprint need be computed, because none is refused.
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
    use crate::testing::{params, request};

    const MINUTE: Duration = Duration::from_secs(60);

    fn print(max_tokens: u32) -> Fingerprint {
        Fingerprint::of(&NewRequest {
            params: params(|it| it.max_tokens = max_tokens),
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
        assert!(quarantine.is_empty(), "expired entries are dropped");
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
