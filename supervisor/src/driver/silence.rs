//! A child that is overdue is told of long before it is given up.

use crate::driver::Driver;
use crate::driver::seat::Seat;
use std::time::{Duration, Instant};
use worker_orcd_ipc::HEARTBEAT_INTERVAL_MS;
use worker_orcd_lifecycle::SeatId;

/// Ten missed heartbeats: a busy machine delays one or two, and a client may know of more.
const SILENCE: Duration = Duration::from_millis(10 * HEARTBEAT_INTERVAL_MS);

/// A step that lasts longer keeps everybody waiting as well.
const LONG_STEP: Duration = Duration::from_secs(1);

impl Driver {
    /// When a child that serves will have been silent for longer than one does that is well.
    pub(super) fn silence_at(&self, seat: &Seat) -> Option<Instant> {
        let state = self.worker.seat(seat.id).state();
        let serves = state.believes_tokens() && !seat.hesitating;
        let heard = self.news.child().filter(|_| serves)?.heartbeat_at?;
        Some(heard + SILENCE)
    }

    /// Time has passed.
    pub(super) fn note_silence(&mut self, seat: SeatId) {
        let silence = self.silence_at(&self.seats[usize::from(seat.0)]);
        if silence.is_some_and(|at| at <= self.now) {
            self.seat(seat).hesitating = true;
            self.requests.hesitate(seat);
        }
    }

    /// It has spoken. Once for each silence and each long step.
    pub(super) fn note_pulse(&mut self, seat: SeatId, step_elapsed: Option<Duration>) {
        let takes_long = step_elapsed.is_some_and(|elapsed| elapsed >= LONG_STEP);
        if takes_long && !self.seat(seat).hesitating {
            self.requests.hesitate(seat);
        }
        self.seat(seat).hesitating = takes_long;
    }
}
