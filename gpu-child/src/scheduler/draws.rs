//! Sampling of a step in flight.
//!
//! A step may be launched before the sampling of some rows is decided: their masks are computed meanwhile. Such a
//! sampling is open. After [`Scheduler::settle_draws`] each row of the step samples or not. It does not if its request
//! has ended, its mask is late, or its next token is forced.

use super::Scheduler;
use super::sequence::Sequence;
use crate::device::SampleWork;
use worker_orcd_ipc::RequestId;

/// A sequence's share of a step in flight.
#[derive(Debug)]
pub(super) struct Share {
    pub serial: u64,
    pub request: RequestId,
    /// The device has a row for the sampling.
    pub may_draw: bool,
    /// Index of the sampled token.
    pub draws: Option<u32>,
}

impl Scheduler {
    /// True if a sampling of the last launched step waits for a mask.
    #[must_use]
    pub fn draws_wait(&self) -> bool {
        let mut running = self.running.iter();
        running.any(|it| it.is_open() && it.constraint.expects_mask())
    }

    /// True if another row of the last launched step samples regardless of masks.
    #[must_use]
    pub fn others_draw(&self) -> bool {
        let newest = self.flights.back().into_iter().flatten();
        let mut drawing = newest.filter(|share| share.draws.is_some());
        drawing.any(|share| self.find(share.serial).is_some_and(|it| !it.is_open()))
    }

    /// Decides the sampling of the last launched step: a row without a mask by now does not sample.
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

    /// Sampling of the rows of the last launched step, in the device's terms.
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

    /// Records that the sampling is launched.
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
