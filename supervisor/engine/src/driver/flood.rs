//! Rate limit on a child's messages.
//!
//! Tokens are bounded by the requests. Other messages cost a child nothing, so they are counted.

use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;

/// Messages without tokens that a child may send in a second. A correct child sends a heartbeat and a load report each
/// interval, and a step report without tokens for each prompt chunk.
const MAX_WORDS_PER_SECOND: u32 = 10_000;

/// Heartbeats and load reports need at most 1 % of the limit.
const _: () = assert!(2 * 1000 / HEARTBEAT_INTERVAL_MS <= MAX_WORDS_PER_SECOND as u64 / 100);

#[derive(Debug)]
pub(super) struct FloodGate {
    second: Instant,
    words: u32,
}

impl FloodGate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            second: now,
            words: 0,
        }
    }

    /// Counts a message without tokens. False: the limit of this second is exceeded.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second) >= Duration::from_secs(1) {
            *self = Self::new(now);
        }
        self.words += 1;
        self.words <= MAX_WORDS_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let start = Instant::now();
        let mut gate = FloodGate::new(start);
        assert!((0..MAX_WORDS_PER_SECOND).all(|_| gate.admit(start)));
        assert!(!gate.admit(start));
        assert!(
            gate.admit(start + Duration::from_secs(1)),
            "the next second is a new one"
        );
    }
}
