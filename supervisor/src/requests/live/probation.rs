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
//! As long as there is a suspect, the child has at most one request: whatever else it still has
//! is called back (cancelled there, kept here) before the next suspect's turn, so that a death
//! then has one possible author. Everything that ends, moves on or is called back comes through
//! [`Requests::hand_out`], so nothing waits for a turn that is not coming.
//!
//! Who was given to the child but was in none of its open steps is not accused, whatever the device
//! did. Only a panic may be of the child's own bookkeeping, beside a step on its way.

use super::{Order, Place, Requests};
use crate::error_code::ErrorCode;
use crate::requests::fingerprint::Fingerprint;
use crate::requests::record::{Failure, OnFault};
use crate::requests::scene::Scene;
use crate::requests::suspicion::{Sighting, Toll};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{Blame, DeathCause};

/// The label of a death that may be the doing of code that no step runs.
const PANIC: &str = "panic";

/// How long a death counts against the machine.
const LATELY: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

impl Requests {
    /// The child is gone. What it had goes on with the next one, or ends.
    pub(crate) fn bury(&mut self, cause: &DeathCause, scene: &Scene, now: Instant) {
        self.suspend();
        let blame = match scene.stopped {
            true => Blame::Nobody,
            false => cause.blame(),
        };
        let bereft: Vec<_> = self
            .live
            .values()
            .filter(|live| live.place.is_with_child())
            .map(|live| live.record.id)
            .collect();
        let alone = self.leaving.is_empty() && bereft.len() == 1;
        self.leaving.clear();
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
        live.place = Place::Waiting;
        let mut progress = live.record.progress.lock();
        progress.interrupt();
        self.wakers.extend(progress.take_waker());
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

    /// Gives the child what it may have now: everything that waits, or one suspect.
    pub(super) fn hand_out(&mut self) {
        if !self.serving {
            return;
        }
        let Some(suspect) = self.suspects.first().copied() else {
            for live in self.live.values_mut() {
                if live.place == Place::Waiting {
                    live.hand_over(&mut self.orders);
                }
            }
            return;
        };
        let with_child = self.with_child();
        if let Some(live) = self.live.get_mut(&suspect)
            && live.place == Place::Waiting
            && with_child == 0
            && self.leaving.is_empty()
        {
            live.hand_over(&mut self.orders);
            return;
        }
        self.call_back_all_but(suspect);
    }

    fn call_back_all_but(&mut self, suspect: RequestId) {
        for (id, live) in &mut self.live {
            if *id != suspect && live.place == Place::WithChild {
                live.place = Place::CalledBack;
                live.record.progress.lock().pause();
                self.orders.push_back(Order::Cancel(*id));
            }
        }
    }

    /// The child has let go of it.
    pub(super) fn came_back(&mut self, id: RequestId) {
        if let Some(live) = self.live.get_mut(&id) {
            live.place = Place::Waiting;
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
