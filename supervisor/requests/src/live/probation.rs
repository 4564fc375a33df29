//! Probation: what a death says about those who were with the child, and about the machine.
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
//! How often "again" is, [`Suspicion`](crate::suspicion::Suspicion) says.
//!
//! Who was given to the child but was in none of its open steps is not accused, whatever the device
//! did. Only a panic may be of the child's own bookkeeping, beside a step on its way.

use crate::scene::Scene;
use crate::suspicion::Toll;
use std::time::{Duration, Instant};
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{Blame, DeathCause, SeatId};

/// The label of a death that may be the doing of code that no step runs.
const PANIC: &str = "panic";

/// Time that a death counts against the machine.
const LATELY: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Probation {
    /// Moments at which children died lately of what a request may have done.
    deaths: Vec<Instant>,
}

/// A death that is looked into.
#[derive(Debug)]
pub(super) struct Inquest<'a> {
    /// The seat of the dead child.
    pub seat: SeatId,
    pub cause: &'a DeathCause,
    pub scene: &'a Scene,
    /// The child had one request, and owed no answer on any other.
    pub alone: bool,
    blame: Blame,
}

/// The verdict on a request that may have caused a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Unchanged,
    /// The request runs alone from now on.
    OnProbation,
    /// The suspect ran alone, and its child died at its place; that is no proof yet.
    AloneAtItsPlace,
    /// The request killed: so many children died at one place of it, the last when it ran alone.
    Proven {
        deaths: u32,
    },
}

impl Probation {
    /// A death that a request may have caused counts against the machine.
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

    pub(super) fn toll(&self, now: Instant) -> Toll {
        let in_last_minute = |at: &&Instant| now.duration_since(**at) <= MINUTE;
        Toll {
            lately: self.deaths.len() as u32,
            last_minute: self.deaths.iter().filter(in_last_minute).count() as u32,
        }
    }

    /// Takes a convict's deaths off the machine's account.
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

    /// The child may have died of what no step runs.
    pub(super) fn may_be_beside_a_step(&self) -> bool {
        self.cause.label() == PANIC
    }
}

#[cfg(test)]
mod departure_tests;
#[cfg(test)]
mod tests;
