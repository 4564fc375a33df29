//! A child that is overdue: clients are told of it long before it is given up.

use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;

/// Ten missed heartbeats: a busy machine delays one or two, and a client may know of more.
const SILENCE: Duration = Duration::from_millis(10 * HEARTBEAT_INTERVAL_MS);

/// A step that lasts longer keeps everybody waiting as well.
const LONG_STEP: Duration = Duration::from_secs(1);

/// A task that looks so much later than it wanted to was itself kept from running.
pub(super) const OWN_DELAY: Duration = Duration::from_millis(4 * HEARTBEAT_INTERVAL_MS);

#[derive(Debug, Default)]
pub(super) struct Silence {
    heard_at: Option<Instant>,
    /// Those whom the child keeps waiting know it.
    told: bool,
}

impl Silence {
    /// The moment at which a child will have been silent for longer than one that is well.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let heard_at = self.heard_at.filter(|_| !self.told)?;
        Some(heard_at + SILENCE)
    }

    /// Time has passed: whether clients are to be told.
    pub(super) fn is_overdue(&mut self, now: Instant) -> bool {
        let overdue = self.deadline().is_some_and(|at| at <= now);
        self.told |= overdue;
        overdue
    }

    /// The child has spoken: whether clients are to be told, once for each long step.
    pub(super) fn pulse(&mut self, now: Instant, step_elapsed: Option<Duration>) -> bool {
        let takes_long = step_elapsed.is_some_and(|elapsed| elapsed >= LONG_STEP);
        let is_news = takes_long && !self.told;
        self.heard_at = Some(now);
        self.told = takes_long;
        is_news
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::*;

    #[test]
    fn each_silence_and_each_long_step_is_told_once() {
        let start = Instant::now();
        let mut silence = Silence::default();
        assert_eq!(silence.deadline(), None, "it has not spoken yet");
        assert!(!silence.pulse(start, None));
        assert!(!silence.is_overdue(start + SILENCE - Duration::from_millis(1)));
        assert!(silence.is_overdue(start + SILENCE));
        assert!(!silence.is_overdue(start + 2 * SILENCE), "reported already");
        assert!(
            !silence.pulse(start + 2 * SILENCE, Some(LONG_STEP)),
            "known"
        );
        assert!(!silence.pulse(start + 2 * SILENCE, None));
        assert!(silence.pulse(start + 2 * SILENCE, Some(LONG_STEP)));
        assert!(!silence.pulse(start + 2 * SILENCE, Some(LONG_STEP)));
    }
}
