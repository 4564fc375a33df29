//! Consequences of a child's death for its requests: replay on another child, wait, or end.

use super::Requests;
use super::probation::{Inquest, Verdict};
use crate::error_code::ErrorCode;
use crate::fingerprint::Fingerprint;
use crate::record::{Failure, OnFault};
use crate::scene::Scene;
use std::time::Instant;
use tracing::error;
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{DeathCause, SeatId};

impl Requests {
    /// Reassigns requests of a dying child before it is reaped, except those that its death could make suspects. Later
    /// reports of the child do not count. [`bury`](Self::bury) judges the death.
    pub fn release(&mut self, seat: SeatId) {
        for id in self.assigned.depart(seat) {
            self.interrupt(id, seat);
        }
        self.assigned.hand_out();
    }

    /// Judges the requests of a dead, reaped child, then continues or ends each. Returns how many recent deaths a
    /// request caused.
    pub fn bury(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, now: Instant) -> u32 {
        self.suspend(seat);
        let bereft = self.assigned.bereft(seat);
        let dispatch = self.assigned.seat(seat);
        let alone = dispatch.awaits_nobody() && bereft.len() == 1;
        dispatch.bury();
        let inquest = self.probation.look_into(seat, cause, scene, alone, now);
        let mut ascribed = 0;
        for id in bereft {
            self.interrupt(id, seat);
            if inquest.suspects(id) {
                ascribed = ascribed.max(self.judge(id, &inquest, now));
            }
            self.outlive(id, cause, now);
        }
        self.assigned.forget_left(seat);
        self.end_hopeless(now);
        // A child that already serves takes the requests immediately.
        self.assigned.hand_out();
        ascribed
    }

    /// Interrupts a request, unless it has already left that seat.
    pub(super) fn interrupt(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.assigned.interrupt(id, seat) {
            let mut progress = live.record.progress.lock();
            progress.interrupt();
            self.wakers.extend(progress.take_waker());
        }
    }

    /// Judges a request and returns the number of deaths that it caused, which do not count as a crash loop. The number
    /// is bounded, because a proof takes few deaths.
    fn judge(&mut self, id: RequestId, inquest: &Inquest<'_>, now: Instant) -> u32 {
        let toll = self.probation.toll(now);
        match self.assigned.accuse(id, inquest, toll) {
            Verdict::Unchanged => 0,
            Verdict::OnProbation => {
                self.totals.probations += 1;
                0
            }
            Verdict::AloneAtItsPlace => 1,
            Verdict::Proven { deaths } => {
                self.convict(id, deaths, inquest.cause, now);
                deaths
            }
        }
    }

    /// Quarantines a request that was proven to kill children, and ends all requests with the same fingerprint.
    fn convict(&mut self, id: RequestId, deaths: u32, cause: &DeathCause, now: Instant) {
        let Some(live) = self.assigned.get(id) else {
            return;
        };
        self.probation.forgive(deaths);
        let fingerprint = Fingerprint::of(&live.record);
        let job_id = live.record.job_id.as_str();
        error!(job_id, request = id.0, %fingerprint, deaths, %cause, "job_quarantined");
        self.registry.quarantine(fingerprint, now);
        let message = format!(
            "{deaths} children died at the same place of this job, the last when it ran alone: \
             {cause}"
        );
        let failure = Failure::new(ErrorCode::Quarantined, message);
        for twin in self.assigned.twins(fingerprint) {
            self.totals.quarantined += 1;
            self.end_here(twin, now, |progress, _| progress.fail(failure.clone()));
        }
    }

    fn outlive(&mut self, id: RequestId, cause: &DeathCause, now: Instant) {
        match self.assigned.get(id).map(|live| live.record.on_fault) {
            None => {}
            Some(OnFault::Fail) if *cause != DeathCause::Dismissed => {
                let message = format!("the worker lost its child: {cause}");
                let failure = Failure::new(ErrorCode::of_death(cause), message);
                self.end_here(id, now, |progress, _| progress.fail(failure));
            }
            Some(_) => self.totals.recoveries += 1,
        }
    }
}
