//! Withdrawal, failure, condemnation and readmission of a device.

use super::{DeviceSupervisor, Effects};
use crate::death::DeathCause;
use crate::device_status::{DeviceStatus, OutOfServiceReason};
use crate::effect::{ChildAction, Effect, SeatId};
use crate::gpu::Condemnation;
use crate::restart_policy::WorkerFailure;
use std::time::Duration;

impl DeviceSupervisor {
    /// Takes a condemned device out of service and kills its children: they may hang in NVIDIA's driver, or compute wrong
    /// results.
    pub(crate) fn condemn(&mut self, now: Duration, condemnation: &Condemnation) -> Effects {
        if let DeviceStatus::Out { reason, .. } = &mut self.status {
            *reason = OutOfServiceReason::Condemned(condemnation.clone());
            return vec![];
        }
        self.leave(now, OutOfServiceReason::Condemned(condemnation.clone()));
        let cause = DeathCause::Condemned(condemnation.clone());
        let seats = self.seats.ids();
        seats
            .flat_map(|seat| self.kill(now, seat, &cause))
            .collect()
    }

    /// Takes the device out of service after a failure, and dismisses its children.
    pub(crate) fn fail(&mut self, now: Duration, failure: WorkerFailure) -> Effects {
        self.leave(now, OutOfServiceReason::Failed(failure));
        self.dismiss(now)
    }

    /// Takes the device out of service on the operator's order, after its requests have moved to other devices.
    pub(crate) fn withdraw(&mut self, now: Duration) -> Effects {
        if !self.status.is_in_use() {
            return vec![];
        }
        self.leave(now, OutOfServiceReason::Withdrawn);
        let seats = self.seats.ids();
        let end = |seat| match self.seats.get(seat).state().takes_work() {
            true => vec![self.effect(seat, ChildAction::Vacate)],
            false => self.dismiss_from(now, seat),
        };
        seats.flat_map(end).collect()
    }

    /// Dismisses a child of a withdrawn device that has no requests left.
    pub(crate) fn vacated(&mut self, now: Duration, seat: SeatId) -> Effects {
        match self.status.reason() {
            Some(OutOfServiceReason::Withdrawn) => self.dismiss_from(now, seat),
            _ => vec![],
        }
    }

    /// Ends a new process of a device that is leaving.
    pub(crate) fn stop_new_process(&mut self, now: Duration, seat: SeatId) -> Vec<ChildAction> {
        let life = self.seats.get_mut(seat);
        match self.status.reason() {
            Some(OutOfServiceReason::Condemned(condemnation)) => {
                life.kill(now, DeathCause::Condemned(condemnation.clone()))
            }
            Some(_) => life.dismiss(now),
            None => vec![],
        }
    }

    /// Marks a leaving device as out of service once no process is left. True if it just became so.
    pub(crate) fn settle(&mut self) -> bool {
        let DeviceStatus::Leaving { since, reason } = self.status.clone() else {
            return false;
        };
        // A failed spawn may have scheduled another one.
        self.close();
        let is_out = self.seats.are_over();
        if is_out {
            self.status = DeviceStatus::Out { since, reason };
        }
        is_out
    }

    /// True for an out-of-service device without a process that is stuck in the kernel: such a process keeps its seat and
    /// the device's memory.
    pub(crate) fn can_readmit(&self) -> bool {
        self.status.is_out() && !self.seats.has_unreapable()
    }

    /// Starts the device out of service, as the previous supervisor left it.
    pub(crate) fn start_out_of_service(
        &mut self,
        since: Duration,
        reason: OutOfServiceReason,
    ) -> Effects {
        self.close();
        self.status = DeviceStatus::Out { since, reason };
        vec![Effect::DeviceOut(self.device)]
    }

    /// Returns the device to use, without its earlier deaths.
    pub(crate) fn readmit(&mut self, now: Duration) -> Effects {
        if !self.can_readmit() {
            return vec![];
        }
        self.status = DeviceStatus::InUse;
        self.is_closed = false;
        self.ledger.reset();
        self.standby.try_again();
        self.seats.reset_roles();
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
        let actions = self.seats.get_mut(seat).dismiss(now);
        self.follow(now, seat, actions)
    }

    fn leave(&mut self, since: Duration, reason: OutOfServiceReason) {
        self.status = DeviceStatus::Leaving { since, reason };
        self.close();
    }

    fn effect(&self, seat: SeatId, action: ChildAction) -> Effect {
        let generation = self.seats.get(seat).generation();
        Effect::Child {
            seat,
            generation,
            action,
        }
    }
}
