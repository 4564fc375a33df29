//! Probation: evidence of a death against the requests of the child, and against the machine.
//!
//! ```text
//!              two deaths at one place in it, which it may have caused
//!   normal ────────────────────────────────────────────────────► suspect, waits for its turn
//!      ▲                                                               │ oldest first
//!      │ past that place, or deaths elsewhere                          ▼
//!      └──────────────────────────────────────────────────────── with the child, alone
//!                                                                      │ the child dies there,
//!                                                                      ▼ repeatedly
//!                                                   QUARANTINED, its fingerprint refused
//! ```
//!
//! [`Suspicion`](crate::suspicion::Suspicion) defines the number of deaths.
//!
//! A request that was in none of the child's open steps is not blamed. The exception is a panic, which may come from
//! the child's bookkeeping beside a step.

use crate::scene::Scene;
use crate::suspicion::RecentDeaths;
use std::time::{Duration, Instant};
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{Blame, DeathCause, SeatId};

/// Label of a death that may be caused by code outside a step.
const PANIC: &str = "panic";

/// Time for which a death counts against the machine.
const LATELY: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Probation {
    /// Times of recent deaths that a request may have caused.
    deaths: Vec<Instant>,
}

/// Investigation of a death.
#[derive(Debug)]
pub(super) struct Inquest<'a> {
    /// Seat of the dead child.
    pub seat: SeatId,
    pub cause: &'a DeathCause,
    pub scene: &'a Scene,
    /// The child had one request and owed no answer for any other.
    pub alone: bool,
    blame: Blame,
}

/// Verdict on a request that may have caused a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Unchanged,
    /// The request must run alone from now on.
    OnProbation,
    /// The suspect ran alone, and its child died at its place. More deaths are needed for a proof.
    AloneAtItsPlace,
    /// The request caused `deaths` deaths at one place, the last while it ran alone.
    Proven {
        deaths: u32,
    },
}

impl Probation {
    /// Opens an investigation, and counts the death against the machine if a request may have caused it.
    pub(super) fn look_into<'a>(
        &mut self,
        seat: SeatId,
        cause: &'a DeathCause,
        scene: &'a Scene,
        alone: bool,
        now: Instant,
    ) -> Inquest<'a> {
        let blame = match scene.stopped {
            true => Blame::NoRequest,
            false => cause.blame(),
        };
        self.deaths.retain(|at| now.duration_since(*at) <= LATELY);
        if blame != Blame::NoRequest {
            self.deaths.push(now);
        }
        Inquest {
            seat,
            cause,
            scene,
            alone,
            blame,
        }
    }

    pub(super) fn recent_deaths(&self, now: Instant) -> RecentDeaths {
        let in_last_minute = |at: &&Instant| now.duration_since(**at) <= MINUTE;
        RecentDeaths {
            lately: self.deaths.len() as u32,
            last_minute: self.deaths.iter().filter(in_last_minute).count() as u32,
        }
    }

    /// Removes the deaths of a convicted request from those of the machine.
    pub(super) fn forgive(&mut self, deaths: u32) {
        let left = self.deaths.len().saturating_sub(deaths as usize);
        self.deaths.truncate(left);
    }
}

impl Inquest<'_> {
    pub(super) fn suspects(&self, id: RequestId) -> bool {
        match self.blame {
            Blame::NoRequest => false,
            Blame::AnyRequest => true,
            Blame::Request(named) => named == id,
        }
    }

    /// True if code outside a step may have caused the death.
    pub(super) fn may_be_beside_a_step(&self) -> bool {
        self.cause.label() == PANIC
    }
}

#[cfg(test)]
mod departure_tests;
#[cfg(test)]
mod tests;
