//! A device goes out of use, and comes back.

use super::{Effects, Staff};
use crate::death::DeathCause;
use crate::effect::{Deed, Effect, SeatId};
use crate::gpu::Condemnation;
use crate::restart_policy::WorkerFailure;
use crate::standing::{Absence, Standing};
use std::time::Duration;

impl Staff {
    /// NVIDIA's driver calls the device unfit. A child there is may hang in that driver, or compute nonsense.
    pub(crate) fn condemn(&mut self, now: Duration, condemnation: &Condemnation) -> Effects {
        if let Standing::Out { absence, .. } = &mut self.standing {
            *absence = Absence::Condemned(condemnation.clone());
            return vec![];
        }
        self.leave(now, Absence::Condemned(condemnation.clone()));
        let cause = DeathCause::Condemned(condemnation.clone());
        let seats = self.seats.ids();
        seats
            .flat_map(|seat| self.kill(now, seat, &cause))
            .collect()
    }

    /// Children cannot be kept alive on it.
    pub(crate) fn fail(&mut self, now: Duration, failure: WorkerFailure) -> Effects {
        self.leave(now, Absence::Failed(failure));
        self.dismiss(now)
    }

    /// The operator takes it out of use: whoever is on it moves first.
    pub(crate) fn withdraw(&mut self, now: Duration) -> Effects {
        if !self.standing.is_in_use() {
            return vec![];
        }
        self.leave(now, Absence::Withdrawn);
        let seats = self.seats.ids();
        let part = |seat| match self.seats.get(seat).state().takes_work() {
            true => vec![self.effect(seat, Deed::Vacate)],
            false => self.dismiss_from(now, seat),
        };
        seats.flat_map(part).collect()
    }

    /// The child of this seat has nothing any more.
    pub(crate) fn vacated(&mut self, now: Duration, seat: SeatId) -> Effects {
        match self.standing.absence() {
            Some(Absence::Withdrawn) => self.dismiss_from(now, seat),
            _ => vec![],
        }
    }

    /// A process that comes into being on a device that is leaving ends at once.
    pub(crate) fn turn_away(&mut self, now: Duration, seat: SeatId) -> Vec<Deed> {
        let life = self.seats.get_mut(seat);
        match self.standing.absence() {
            Some(Absence::Condemned(condemnation)) => {
                life.kill(now, DeathCause::Condemned(condemnation.clone()))
            }
            Some(_) => life.dismiss(now),
            None => vec![],
        }
    }

    /// The device is out of use once no process is left: true when it has just become so.
    pub(crate) fn settle(&mut self) -> bool {
        let Standing::Leaving { since, absence } = self.standing.clone() else {
            return false;
        };
        // A child that could not be begun would be tried again.
        self.close();
        let is_out = self.seats.are_over();
        if is_out {
            self.standing = Standing::Out { since, absence };
        }
        is_out
    }

    /// A process that is stuck in the kernel keeps its seat, and the device's memory.
    pub(crate) fn may_return(&self) -> bool {
        self.standing.is_out() && !self.seats.has_unreapable()
    }

    /// It was out of use already for another supervisor.
    pub(crate) fn stay_out(&mut self, since: Duration, absence: Absence) -> Effects {
        self.close();
        self.standing = Standing::Out { since, absence };
        vec![Effect::DeviceOut(self.device)]
    }

    /// Uses the device again, as if nothing had died on it.
    pub(crate) fn readmit(&mut self, now: Duration) -> Effects {
        if !self.may_return() {
            return vec![];
        }
        self.standing = Standing::InUse;
        self.is_closed = false;
        self.ledger.pardon();
        self.standby.try_again();
        self.seats.reopen();
        let mut effects = vec![Effect::DeviceIn(self.device)];
        effects.extend(self.start(now));
        effects
    }

    pub(crate) fn dismiss(&mut self, now: Duration) -> Effects {
        let seats = self.seats.ids();
        seats
            .flat_map(|seat| self.dismiss_from(now, seat))
            .collect()
    }

    fn dismiss_from(&mut self, now: Duration, seat: SeatId) -> Effects {
        let deeds = self.seats.get_mut(seat).dismiss(now);
        self.follow(now, seat, deeds)
    }

    fn leave(&mut self, since: Duration, absence: Absence) {
        self.standing = Standing::Leaving { since, absence };
        self.close();
    }

    fn effect(&self, seat: SeatId, deed: Deed) -> Effect {
        let generation = self.seats.get(seat).generation();
        Effect::Child {
            seat,
            generation,
            deed,
        }
    }
}
