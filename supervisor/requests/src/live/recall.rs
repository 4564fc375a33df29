//! Recall of requests: from all children before a hand-over to another driver, or from one child to the others.

use super::Requests;
use super::assignments::Assignments;
use super::dispatch::{Dispatch, Place};
use worker_orcd_lifecycle::SeatId;

impl Requests {
    /// Calls back all requests and stops submissions. Reports of children remain valid until they confirm.
    pub fn recall(&mut self) {
        self.assigned.seats_mut().for_each(Dispatch::stop);
        for seat in self.assigned.all_seats() {
            self.assigned.withdraw(seat);
        }
    }

    /// Calls back the requests of this seat's child, which continue on others. The child gets no further submissions.
    pub fn withdraw(&mut self, seat: SeatId) {
        self.assigned.withdraw(seat);
        self.assigned.hand_out();
    }

    /// True if the child of this seat has no request, and all commands were sent to it.
    pub fn is_withdrawn(&mut self, seat: SeatId) -> bool {
        let dispatch = self.assigned.seat(seat);
        dispatch.is_free() && dispatch.has_sent_all()
    }
}

impl Assignments {
    fn withdraw(&mut self, seat: SeatId) {
        self.seat(seat).stop();
        let with_it = self.of(seat).filter(|live| live.place == Place::With(seat));
        let ids: Vec<_> = with_it.map(|live| live.record.id).collect();
        for id in ids {
            self.call_back(id, seat);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Journal, SEAT, request, step};
    use worker_orcd_ipc::{Command, FinishReason};

    #[test]
    fn what_is_called_back_still_counts_and_nothing_is_given_out_any_more() {
        let mut journal = Journal::serving();
        let (id, _reader) = journal.submit(request("a"));
        journal.commands();
        journal.requests.recall();
        let commands = journal.commands();
        assert!(matches!(&commands[..], [Command::Cancel { request }] if *request == id));
        let (_, _other) = journal.submit(request("b"));
        assert!(
            !journal.requests.is_withdrawn(SEAT),
            "the child has the first request"
        );
        let last = step(&[(id, 0, 0)], &[]);
        journal.requests.step(SEAT, &last, journal.now).unwrap();
        let gone = step(&[], &[(id, FinishReason::Cancelled)]);
        journal.requests.step(SEAT, &gone, journal.now).unwrap();
        assert!(journal.commands().is_empty(), "no further submission");
        assert!(journal.requests.is_withdrawn(SEAT));
        assert_eq!(journal.requests.len(), 2, "both continue elsewhere");
    }
}
