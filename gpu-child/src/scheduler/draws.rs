//! The draws of a step that is on its way.
//!
//! A step may be launched before it is known how some of its rows draw: their masks are computed meanwhile.
//! Such a draw is open. Once it is decided on ([`Scheduler::settle_draws`]) each row of the step draws, or
//! draws nothing: its request has ended, its mask is late, or its next token is known without a draw.

use super::Scheduler;
use super::sequence::Sequence;
use crate::device::SampleWork;
use worker_orcd_ipc::RequestId;

/// A sequence in a step that is on its way.
#[derive(Debug)]
pub(super) struct Share {
    pub serial: u64,
    pub request: RequestId,
    /// The device has a row for a draw.
    pub may_draw: bool,
    /// The index of the token that it draws.
    pub draws: Option<u32>,
}

impl Scheduler {
    /// A draw of the step launched last waits for a mask.
    #[must_use]
    pub fn draws_wait(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|it| it.is_open() && it.constraint.expects_mask())
    }

    /// Somebody draws in the step launched last whatever masks come.
    #[must_use]
    pub fn others_draw(&self) -> bool {
        let newest = self.flights.back().into_iter().flatten();
        let mut drawing = newest.filter(|share| share.draws.is_some());
        drawing.any(|share| self.find(share.serial).is_some_and(|it| !it.is_open()))
    }

    /// The draws of the step launched last are decided on: who has no mask by now sits this one out.
    pub fn settle_draws(&mut self) {
        for sequence in self.running.iter_mut().filter(|it| it.is_open()) {
            if sequence.constraint.lacks_mask() {
                sequence.constraint.goes_without();
                sequence.undraw();
                sequence.run_again();
            }
        }
        let Self {
            flights,
            running,
            waiting,
            ..
        } = self;
        for share in flights.back_mut().into_iter().flatten() {
            let mut all = running.iter().chain(waiting.iter());
            let sequence = all.find(|it| it.serial == share.serial);
            let draws = sequence.is_some_and(|it| it.draws_at(share.draws));
            share.draws = share.draws.filter(|_| draws);
        }
    }

    /// How the rows of the step launched last draw, as the device is told.
    #[must_use]
    pub fn draws(&self) -> Vec<Option<SampleWork<'_>>> {
        let newest = self.flights.back().into_iter().flatten();
        let rows = newest.filter(|share| share.may_draw);
        rows.map(|share| {
            let index = share.draws?;
            Some(self.find(share.serial)?.sample(index as usize))
        })
        .collect()
    }

    /// The draws are on their way.
    pub fn drawn(&mut self) {
        for sequence in &mut self.running {
            sequence.close();
        }
    }

    fn find(&self, serial: u64) -> Option<&Sequence> {
        let mut all = self.running.iter().chain(&self.waiting);
        all.find(|it| it.serial == serial)
    }
}
