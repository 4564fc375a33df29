//! Who is given to the child when, and what a death does to those who were with it.
//!
//! ```text
//!              two deaths at one place in it, which it may have caused
//!   everyone ──────────────────────────────────────────────────► suspect, waits for its turn
//!      ▲                                                               │ oldest first
//!      │ past that place, or it dies elsewhere                         ▼
//!      └──────────────────────────────────────────────────────── with the child, alone
//!                                                                      │ the child dies there,
//!                                                                      ▼ again
//!                                                   QUARANTINED, its fingerprint refused
//! ```
//!
//! How often "again" is, [`Suspicion`](crate::requests::suspicion::Suspicion) says.
//!
//! As long as there is a suspect, the child of one seat has at most one request: whatever else it still
//! has is called back (cancelled there, kept here) before the next suspect's turn, so that a death
//! then has one possible author. The other seats serve everybody else; with one seat, everybody waits. Everything that ends, moves on or is called back comes through
//! [`Requests::hand_out`], so nothing waits for a turn that is not coming.
//!
//! Who was given to the child but was in none of its open steps is not accused, whatever the device
//! did. Only a panic may be of the child's own bookkeeping, beside a step on its way.

use super::Requests;
use super::dispatch::Place;
use crate::error_code::ErrorCode;
use crate::requests::fingerprint::Fingerprint;
use crate::requests::record::{Failure, OnFault};
use crate::requests::scene::Scene;
use crate::requests::suspicion::{Sighting, Toll};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{Blame, DeathCause, SeatId};

/// The label of a death that may be the doing of code that no step runs.
const PANIC: &str = "panic";

/// How long a death counts against the machine.
const LATELY: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

impl Requests {
    /// The child is gone. What it had goes on with the next one, or ends.
    pub(crate) fn bury(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, now: Instant) {
        self.suspend(seat);
        let blame = match scene.stopped {
            true => Blame::Nobody,
            false => cause.blame(),
        };
        let bereft: Vec<_> = self.of(seat).map(|live| live.record.id).collect();
        let alone = self.seat(seat).awaits_nobody() && bereft.len() == 1;
        self.seat(seat).forget_leaving();
        self.deaths.retain(|at| now.duration_since(*at) <= LATELY);
        if blame != Blame::Nobody {
            self.deaths.push(now);
        }
        for id in bereft {
            self.interrupt(id);
            let suspected = match blame {
                Blame::Nobody => false,
                Blame::Anybody => true,
                Blame::Request(named) => named == id,
            };
            if suspected {
                self.judge(id, alone, cause, scene, now);
            }
            self.outlive(id, cause, now);
        }
    }

    /// Back to those who wait.
    fn interrupt(&mut self, id: RequestId) {
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        let place = std::mem::replace(&mut live.place, Place::Waiting);
        let mut progress = live.record.progress.lock();
        progress.interrupt();
        self.wakers.extend(progress.take_waker());
        drop(progress);
        if let Some(seat) = place.seat() {
            self.seat(seat).release();
        }
    }

    fn judge(
        &mut self,
        id: RequestId,
        alone: bool,
        cause: &DeathCause,
        scene: &Scene,
        now: Instant,
    ) {
        let was_on_probation = self.suspects.contains(&id);
        let toll = self.toll(now);
        let Some(live) = self.live.get_mut(&id) else {
            return;
        };
        let history = live.history();
        let spot = scene.spot(id, history, history > live.given_at);
        if spot.is_none() && cause.label() != PANIC {
            return;
        }
        live.suspicion.note(Sighting {
            spot,
            history,
            signature: (cause.label(), scene.within),
            alone: was_on_probation && alone,
        });
        let is_suspect = live.suspicion.is_suspect();
        let job_id = live.record.job_id.as_str();
        if live.suspicion.is_proven(toll) {
            self.convict(id, cause, now);
        } else if is_suspect && self.suspects.insert(id) {
            self.probations_total += 1;
            warn!(job_id, request = id.0, "job_on_probation");
        } else if !is_suspect && self.suspects.remove(&id) {
            info!(job_id, request = id.0, "job_off_probation");
        }
    }

    fn toll(&self, now: Instant) -> Toll {
        let in_last_minute = |at: &&Instant| now.duration_since(**at) <= MINUTE;
        Toll {
            lately: self.deaths.len() as u32,
            last_minute: self.deaths.iter().filter(in_last_minute).count() as u32,
        }
    }

    /// It killed the child when the child had nothing else ([`Suspicion::is_proven`]).
    ///
    /// [`Suspicion::is_proven`]: crate::requests::suspicion::Suspicion::is_proven
    fn convict(&mut self, id: RequestId, cause: &DeathCause, now: Instant) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        let deaths = live.suspicion.deaths();
        // What it did is no longer held against the machine.
        let left = self.deaths.len().saturating_sub(deaths as usize);
        self.deaths.truncate(left);
        let fingerprint = Fingerprint::of_record(&live.record);
        let job_id = live.record.job_id.as_str();
        error!(job_id, request = id.0, %fingerprint, deaths, %cause, "job_quarantined");
        self.registry.quarantine(fingerprint, now);
        let message = format!(
            "{deaths} children died at the same place of this job, the last when it ran alone: \
             {cause}"
        );
        let failure = Failure::new(ErrorCode::Quarantined, message);
        // The same request in other jobs would kill as many children again; one that got past
        // the fatal step has shown that it does not.
        let twins: Vec<_> = self
            .live
            .values()
            .filter(|live| self.suspects.contains(&live.record.id) || !live.has_tokens())
            .filter(|live| Fingerprint::of_record(&live.record) == fingerprint)
            .map(|live| live.record.id)
            .collect();
        for twin in twins {
            self.quarantined_total += 1;
            self.end_here(twin, now, |progress, _| progress.fail(failure.clone()));
        }
    }

    fn outlive(&mut self, id: RequestId, cause: &DeathCause, now: Instant) {
        match self.live.get(&id).map(|live| live.record.on_fault) {
            None => {}
            Some(OnFault::Resume) => self.recoveries_total += 1,
            Some(OnFault::Fail) => {
                let message = format!("the worker lost its child: {cause}");
                let failure = Failure::new(ErrorCode::of_death(cause), message);
                self.end_here(id, now, |progress, _| progress.fail(failure));
            }
        }
    }

    // === who is next ===

    /// Gives each child what it may have now. A suspect gets a seat for itself; who is no suspect goes
    /// to the other seats, and waits where there is none.
    pub(super) fn hand_out(&mut self) {
        let waiting: Vec<_> = self
            .live
            .values()
            .filter(|live| live.place == Place::Waiting)
            .map(|live| live.record.id)
            .collect();
        let turn = self.turn();
        let cell = self.cell();
        for id in waiting {
            let seat = match self.suspects.contains(&id) {
                true if turn == Some(id) => cell.filter(|cell| self.seat(*cell).is_free()),
                true => None,
                false => self.seat_for_anybody(),
            };
            if let Some(seat) = seat {
                self.hand_over(id, seat);
            }
        }
        let cell = cell.filter(|cell| self.seat(*cell).is_open());
        if let (Some(cell), Some(suspect)) = (cell, turn) {
            self.call_back_all_but(suspect, cell);
        }
    }

    /// The seat of the suspect whose turn it is: where it is, or the one with the fewest requests. As
    /// long as only one of several is open, it is everybody else's.
    fn cell(&self) -> Option<SeatId> {
        let suspect = self.live.get(&self.turn()?)?;
        let is_spare = self.seats.len() == 1 || self.open_seats().count() > 1;
        let emptiest = self.emptiest(|_| is_spare);
        suspect.place.seat().or(emptiest)
    }

    /// The suspect that is with a child, or the oldest.
    fn turn(&self) -> Option<RequestId> {
        let is_with_child = |id: &&RequestId| {
            let live = self.live.get(id);
            live.is_some_and(|live| live.place.seat().is_some())
        };
        let mut suspects = self.suspects.iter();
        suspects
            .find(is_with_child)
            .or(self.suspects.first())
            .copied()
    }

    /// Of the seats that are open and no suspect's, the one with the fewest requests.
    pub(super) fn seat_for_anybody(&self) -> Option<SeatId> {
        let cell = self.cell();
        self.emptiest(|seat| Some(seat) != cell)
    }

    fn emptiest(&self, may_be: impl Fn(SeatId) -> bool) -> Option<SeatId> {
        let seats = self.open_seats().filter(|seat| may_be(*seat));
        seats.min_by_key(|seat| self.seats[usize::from(seat.0)].given())
    }

    fn open_seats(&self) -> impl Iterator<Item = SeatId> {
        let seats = (0..).map(SeatId).zip(&self.seats);
        seats.filter(|(_, it)| it.is_open()).map(|(seat, _)| seat)
    }

    pub(super) fn hand_over(&mut self, id: RequestId, seat: SeatId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::With(seat);
            live.given_at = live.history();
            let record = Arc::clone(&live.record);
            self.seat(seat).give(record);
        }
    }

    fn call_back_all_but(&mut self, suspect: RequestId, seat: SeatId) {
        for (id, live) in &mut self.live {
            if *id != suspect && live.place == Place::With(seat) {
                live.place = Place::CalledBack(seat);
                live.record.progress.lock().pause();
                self.seats[usize::from(seat.0)].call_back(*id);
            }
        }
    }

    /// The child has let go of it.
    pub(super) fn came_back(&mut self, seat: SeatId, id: RequestId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::Waiting;
            self.seat(seat).release();
        }
        self.hand_out();
    }

    /// Called for each token of a suspect.
    pub(super) fn acquit_if_past(&mut self, id: RequestId) {
        let Some(live) = self.live.get(&id) else {
            return;
        };
        if live.suspicion.is_acquitted_at(live.history()) {
            info!(job_id = live.record.job_id, request = id.0, "job_acquitted");
            self.suspects.remove(&id);
            self.hand_out();
        }
    }
}

#[cfg(test)]
#[path = "probation_tests.rs"]
mod tests;
