//! Overdue children: their streams continue on other devices before the child's fate is known.

use super::Driver;
use super::post_mortem::{self, Bereft};
use super::seat::Seat;
use super::silence;
use tracing::{info, warn};
use worker_orcd_lifecycle::SeatId;
use worker_orcd_requests::Requests;

/// Moves the requests of an overdue child to other devices, and records them for a later crash report.
pub(super) fn doubt(seat: &mut Seat, requests: &mut Requests, why: &'static str) {
    if !requests.may_doubt(seat.id) {
        return;
    }
    seat.released = post_mortem::note(seat, requests);
    let streams = requests.doubt(seat.id);
    let (device, child) = (seat.id.device().0, seat.child.as_ref());
    let generation = child.map(|child| child.generation.0);
    warn!(device, generation, why, streams, "child_overdue");
}

impl Driver {
    pub(super) fn judge_silence(&mut self, seat: SeatId) {
        let due = self.seats[seat].silence.deadline();
        if self.seats[seat].silence.is_overdue(self.now) {
            self.requests.hesitate(seat);
            // If this task ran late, messages of the child may be unread.
            let is_in_time = due.is_some_and(|due| self.now < due + silence::OWN_DELAY);
            if is_in_time {
                doubt(&mut self.seats[seat], &mut self.requests, "it is silent");
            }
        }
    }
}

/// Ends the doubt: the child has sent a message, or its step has ended.
pub(super) fn trust(seat: &mut Seat, requests: &mut Requests) {
    if requests.trust(seat.id) {
        seat.released = Bereft::default();
        info!(device = seat.id.device().0, "child_recovered");
    }
}
