//! What can be seen of a worker from outside.

use super::{Settings, Worker};
use crate::course::{Course, End};
use crate::effect::{DeviceId, SEATS_OF_A_DEVICE, SeatId};
use crate::ledger::Ledger;
use crate::life::Life;
use crate::restart_policy::WorkerFailure;
use crate::standing::Standing;
use crate::state::State;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

impl Worker {
    /// Generation of the child that was ordered last.
    #[must_use]
    pub fn newest(&self) -> Generation {
        self.generations.newest()
    }

    #[must_use]
    pub fn seat(&self, seat: SeatId) -> &Life {
        self.staff(seat.device()).seats.get(seat)
    }

    pub fn seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        let of_device = |device| SeatId::first_of(device).0..;
        let of_device = move |device| of_device(device).take(usize::from(SEATS_OF_A_DEVICE));
        self.devices().flat_map(of_device).map(SeatId)
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..).map(DeviceId).take(self.staffs.len())
    }

    /// Whether a device is in use, and why not.
    #[must_use]
    pub fn standing(&self, device: DeviceId) -> &Standing {
        &self.staff(device).standing
    }

    /// It can be taken out of use: it is in use, and not alone.
    #[must_use]
    pub fn may_withdraw(&self, device: DeviceId) -> bool {
        self.standing(device).is_in_use() && self.is_in_use_beside(device)
    }

    /// It can be used again: it is out of use, and no process is stuck on it.
    #[must_use]
    pub fn may_readmit(&self, device: DeviceId) -> bool {
        self.staff(device).may_return()
    }

    /// The one that speaks for all: who serves, else who is to, else who did.
    #[must_use]
    pub fn foremost(&self) -> &Life {
        let of_each = || self.staffs.iter().map(|staff| staff.seats.foremost());
        let serves = of_each().find(|life| life.state().takes_work());
        let is_to = || of_each().find(|life| life.state().is_under_way());
        let in_use = || self.staffs.iter().find(|staff| staff.standing.is_in_use());
        let any = || in_use().unwrap_or(&self.staffs[0]).seats.foremost();
        serves.or_else(is_to).unwrap_or_else(any)
    }

    /// The one that speaks for its device.
    #[must_use]
    pub fn foremost_of(&self, device: DeviceId) -> &Life {
        self.staff(device).seats.foremost()
    }

    /// The standby of a device, or its empty seat, where there is to be one.
    #[must_use]
    pub fn standby(&self, device: DeviceId) -> Option<&Life> {
        let mut standbys = self.staff(device).seats.with_role(Role::Standby);
        let seat = standbys.next().filter(|_| self.settings.standby)?;
        Some(self.seat(seat))
    }

    /// Why there is no standby, although there should be.
    #[must_use]
    pub fn standby_given_up(&self, device: DeviceId) -> Option<&str> {
        self.staff(device).standby.given_up()
    }

    #[must_use]
    pub fn ledger(&self, device: DeviceId) -> &Ledger {
        &self.staff(device).ledger
    }

    /// The device is in use, and its children die in a burst.
    #[must_use]
    pub fn is_unsteady(&self, device: DeviceId, now: Duration) -> bool {
        let until = self.ledger(device).unsteady_until();
        self.standing(device).is_in_use() && until.is_some_and(|until| now < until)
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Times that a child was ordered, or promoted, to serve in place of one before.
    #[must_use]
    pub fn successions(&self) -> u64 {
        self.staffs.iter().map(|staff| staff.successions).sum()
    }

    /// Nothing new is accepted.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        match &self.course {
            Course::Leave(End::Stop(_)) | Course::Over { .. } => true,
            course => course.drain().is_some(),
        }
    }

    /// True when no process is left, and none follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.course, Course::Over { .. })
    }

    /// Why it gave up, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&WorkerFailure> {
        match &self.course {
            Course::Leave(End::Fail(failure))
            | Course::Over {
                end: End::Fail(failure),
                ..
            } => Some(failure),
            _ => None,
        }
    }

    /// A stable word for /health, metrics and logs, and since when it is true.
    #[must_use]
    pub fn state(&self) -> (&'static str, Duration) {
        let state = self.foremost().state();
        match (&self.course, self.course.drain()) {
            (Course::Over { since, end }, _) => (end.name(), *since),
            (_, Some(drain)) if state.takes_work() => {
                (self.word_for(state), state.since().max(drain.since))
            }
            _ => (self.word_for(state), state.since()),
        }
    }

    /// A child that serves does so to the end of a drain, if there is one.
    #[must_use]
    pub fn word_for(&self, state: &State) -> &'static str {
        match self.course.drain() {
            Some(_) if state.takes_work() => "draining",
            _ => state.name(),
        }
    }

    #[must_use]
    pub fn has_served(&self) -> bool {
        self.staffs.iter().any(|staff| staff.has_served)
    }

    /// Words of the dead that were dropped.
    #[must_use]
    pub fn stale_events(&self) -> u64 {
        self.stale_events
    }
}
