//! A child that is overdue is told of long before it is given up.

use crate::driver::Driver;
use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;

/// Ten missed heartbeats: a busy machine delays one or two, and a client may know of more.
const SILENCE: Duration = Duration::from_millis(10 * HEARTBEAT_INTERVAL_MS);

/// A step that lasts longer keeps everybody waiting as well.
const LONG_STEP: Duration = Duration::from_secs(1);

impl Driver {
    /// When a child that serves will have been silent for longer than one does that is well.
    pub(super) fn silence_at(&self) -> Option<Instant> {
        let serves = self.life().state().believes_tokens() && !self.hesitating;
        let heard = self.news.child().filter(|_| serves)?.heartbeat_at?;
        Some(heard + SILENCE)
    }

    /// Time has passed.
    pub(super) fn note_silence(&mut self) {
        if self.silence_at().is_some_and(|at| at <= self.now) {
            self.hesitating = true;
            self.requests.hesitate();
        }
    }

    /// It has spoken. Once for each silence and each long step.
    pub(super) fn note_pulse(&mut self, step_elapsed: Option<Duration>) {
        let takes_long = step_elapsed.is_some_and(|elapsed| elapsed >= LONG_STEP);
        if takes_long && !self.hesitating {
            self.requests.hesitate();
        }
        self.hesitating = takes_long;
    }
}
