//! Overdue children: their clients are notified, and their streams continue on other devices, long before the child is
//! given up.

use super::post_mortem::{self, InFlightAtDeath};
use super::seat::Seat;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;
use worker_orcd_requests::Requests;

/// Ten missed heartbeats. A busy machine delays one or two.
const SILENCE: Duration = Duration::from_millis(10 * HEARTBEAT_INTERVAL_MS);

/// A longer step also delays all requests of the child.
const LONG_STEP: Duration = Duration::from_secs(1);

/// A wake later than this shows that the task itself was delayed.
pub(super) const OWN_DELAY: Duration = Duration::from_millis(4 * HEARTBEAT_INTERVAL_MS);

#[derive(Debug, Default)]
pub(super) struct Silence {
    heard_at: Option<Instant>,
    /// True once the clients of the overdue child are notified.
    notified: bool,
}

impl Silence {
    /// Time at which the child becomes overdue.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let heard_at = self.heard_at.filter(|_| !self.notified)?;
        Some(heard_at + SILENCE)
    }

    /// True once, when the child becomes overdue and its clients are to be notified.
    pub(super) fn is_overdue(&mut self, now: Instant) -> bool {
        let overdue = self.deadline().is_some_and(|at| at <= now);
        self.notified |= overdue;
        overdue
    }

    /// Records a heartbeat. True once for each long step, when clients are to be notified.
    pub(super) fn pulse(&mut self, now: Instant, step_elapsed: Option<Duration>) -> bool {
        let takes_long = step_elapsed.is_some_and(|elapsed| elapsed >= LONG_STEP);
        let is_news = takes_long && !self.notified;
        self.heard_at = Some(now);
        self.notified = takes_long;
        is_news
    }
}

/// Moves the requests of an overdue child to other devices, and records them for a later crash report.
pub(super) fn set_overdue(seat: &mut Seat, requests: &mut Requests, why: &'static str) {
    if !requests.may_set_overdue(seat.id) {
        return;
    }
    seat.released = post_mortem::note(seat, requests);
    let streams = requests.set_overdue(seat.id);
    let (device, child) = (seat.id.device().0, seat.child.as_ref());
    let generation = child.map(|child| child.generation.0);
    warn!(device, generation, why, streams, "child_overdue");
}

/// Ends the doubt: the child has sent a message, or its step has ended.
pub(super) fn trust(seat: &mut Seat, requests: &mut Requests) {
    if requests.trust(seat.id) {
        seat.released = InFlightAtDeath::default();
        info!(device = seat.id.device().0, "child_recovered");
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
