//! Doubt about a child that is overdue: its streams go on with other devices before anybody knows what became of it.

use super::Driver;
use super::post_mortem::{self, Bereft};
use super::seat::Seat;
use super::silence;
use tracing::{info, warn};
use worker_orcd_lifecycle::SeatId;
use worker_orcd_requests::Requests;

/// Those who are with it are noted for its crash report, should it come to one.
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
            // What a child has said while this task did not run was not heard yet.
            let is_in_time = due.is_some_and(|due| self.now < due + silence::OWN_DELAY);
            if is_in_time {
                doubt(&mut self.seats[seat], &mut self.requests, "it is silent");
            }
        }
    }
}

/// It has spoken, or its step has ended.
pub(super) fn trust(seat: &mut Seat, requests: &mut Requests) {
    if requests.trust(seat.id) {
        seat.released = Bereft::default();
        info!(device = seat.id.device().0, "child_recovered");
    }
}
