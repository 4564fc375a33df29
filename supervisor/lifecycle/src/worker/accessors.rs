//! Queries on a worker.

use super::{Settings, Worker};
use crate::device_status::DeviceStatus;
use crate::effect::{DeviceId, SEATS_OF_A_DEVICE, SeatId};
use crate::ledger::Ledger;
use crate::life::Life;
use crate::phase::{End, WorkerPhase};
use crate::restart_policy::WorkerFailure;
use crate::state::State;
use std::time::Duration;
use worker_orcd_ipc::{Generation, Role};

impl Worker {
    /// Generation of the latest spawned child.
    #[must_use]
    pub fn newest(&self) -> Generation {
        self.generations.newest()
    }

    #[must_use]
    pub fn seat(&self, seat: SeatId) -> &Life {
        self.device_supervisor(seat.device()).seats.get(seat)
    }

    pub fn seats(&self) -> impl Iterator<Item = SeatId> + use<> {
        let of_device = |device| SeatId::first_of(device).0..;
        let of_device = move |device| of_device(device).take(usize::from(SEATS_OF_A_DEVICE));
        self.devices().flat_map(of_device).map(SeatId)
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..).map(DeviceId).take(self.device_supervisors.len())
    }

    /// Status of a device.
    #[must_use]
    pub fn device_status(&self, device: DeviceId) -> &DeviceStatus {
        &self.device_supervisor(device).status
    }

    /// True if a device can be withdrawn: it is in use, and another one is too.
    #[must_use]
    pub fn may_withdraw(&self, device: DeviceId) -> bool {
        self.device_status(device).is_in_use() && self.is_in_use_beside(device)
    }

    /// True if a device can be readmitted: it is out of service, and no process is stuck on it.
    #[must_use]
    pub fn may_readmit(&self, device: DeviceId) -> bool {
        self.device_supervisor(device).can_readmit()
    }

    /// Life that represents the worker: a serving child, else a starting one, else the latest of the first device in use.
    #[must_use]
    pub fn foremost(&self) -> &Life {
        let of_each = || {
            self.device_supervisors
                .iter()
                .map(|device_supervisor| device_supervisor.seats.foremost())
        };
        let serves = of_each().find(|life| life.state().takes_work());
        let starts = || of_each().find(|life| life.state().is_under_way());
        let in_use = || {
            self.device_supervisors
                .iter()
                .find(|device_supervisor| device_supervisor.status.is_in_use())
        };
        let any = || {
            in_use()
                .unwrap_or(&self.device_supervisors[0])
                .seats
                .foremost()
        };
        serves.or_else(starts).unwrap_or_else(any)
    }

    /// Life that represents a device.
    #[must_use]
    pub fn foremost_of(&self, device: DeviceId) -> &Life {
        self.device_supervisor(device).seats.foremost()
    }

    /// Standby of a device, or its empty seat. `None` if no standby is kept.
    #[must_use]
    pub fn standby(&self, device: DeviceId) -> Option<&Life> {
        let mut standbys = self
            .device_supervisor(device)
            .seats
            .with_role(Role::Standby);
        let seat = standbys.next().filter(|_| self.settings.standby)?;
        Some(self.seat(seat))
    }

    /// Reason for which a kept standby is not started.
    #[must_use]
    pub fn standby_given_up(&self, device: DeviceId) -> Option<&str> {
        self.device_supervisor(device).standby.given_up()
    }

    /// Deaths of a device.
    #[must_use]
    pub fn ledger(&self, device: DeviceId) -> &Ledger {
        &self.device_supervisor(device).ledger
    }

    /// True if the device is in use and within the window after a burst of deaths.
    #[must_use]
    pub fn is_unsteady(&self, device: DeviceId, now: Duration) -> bool {
        let until = self.ledger(device).unsteady_until();
        self.device_status(device).is_in_use() && until.is_some_and(|until| now < until)
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of children that were spawned or promoted to replace an earlier one, over all devices.
    #[must_use]
    pub fn failovers(&self) -> u64 {
        self.device_supervisors
            .iter()
            .map(|device_supervisor| device_supervisor.failovers)
            .sum()
    }

    /// True if new requests are refused because the worker drains or stops.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        match &self.phase {
            WorkerPhase::Leave(End::Stop(_)) | WorkerPhase::Over { .. } => true,
            phase => phase.drain().is_some(),
        }
    }

    /// True if no process is left and none follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase, WorkerPhase::Over { .. })
    }

    /// Failure of the worker, if it failed.
    #[must_use]
    pub fn failure(&self) -> Option<&WorkerFailure> {
        match &self.phase {
            WorkerPhase::Leave(End::Fail(failure))
            | WorkerPhase::Over {
                end: End::Fail(failure),
                ..
            } => Some(failure),
            _ => None,
        }
    }

    /// Stable name of the worker's state for `/health`, metrics and logs, and the time at which it was entered.
    #[must_use]
    pub fn state(&self) -> (&'static str, Duration) {
        let state = self.foremost().state();
        match (&self.phase, self.phase.drain()) {
            (WorkerPhase::Over { since, end }, _) => (end.name(), *since),
            (_, Some(drain)) if state.takes_work() => {
                (self.state_name(state), state.since().max(drain.since))
            }
            _ => (self.state_name(state), state.since()),
        }
    }

    /// Stable name of a child's state; `draining` for a serving child during a drain.
    #[must_use]
    pub fn state_name(&self, state: &State) -> &'static str {
        match self.phase.drain() {
            Some(_) if state.takes_work() => "draining",
            _ => state.name(),
        }
    }

    /// True if any child has served.
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.device_supervisors
            .iter()
            .any(|device_supervisor| device_supervisor.has_served)
    }

    /// Number of events of past generations that were dropped.
    #[must_use]
    pub fn stale_events(&self) -> u64 {
        self.stale_events
    }
}
