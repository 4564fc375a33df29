//! A device goes out of use, alone or as the last one, and comes back.

use super::{Effects, Worker};
use crate::course::Course;
use crate::effect::{DeviceId, Effect};
use crate::exit::SupervisorExit;
use crate::gpu::Testimony;
use crate::restart_policy::WorkerFailure;
use crate::standing::Standing;
use std::time::Duration;

impl Worker {
    /// No child can be kept alive on this device.
    pub(super) fn lose(
        &mut self,
        now: Duration,
        device: DeviceId,
        failure: WorkerFailure,
    ) -> Effects {
        let goes_on = matches!(self.course, Course::Serve | Course::Drain(_));
        match goes_on && self.is_in_use_beside(device) {
            true => self.in_device(now, device, |staff| staff.fail(now, failure)),
            false => self.fail(now, failure),
        }
    }

    pub(super) fn testimony(
        &mut self,
        now: Duration,
        device: DeviceId,
        testimony: &Testimony,
    ) -> Effects {
        let goes_on = matches!(self.course, Course::Serve | Course::Drain(_));
        let is_condemned = self.standing(device).is_condemned();
        match testimony.condemns() {
            Some(condemnation) if goes_on && !is_condemned => {
                self.in_device(now, device, |staff| staff.condemn(now, &condemnation))
            }
            _ => vec![],
        }
    }

    pub(super) fn withdraw(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.course {
            Course::Serve if self.may_withdraw(device) => {
                self.in_device(now, device, |staff| staff.withdraw(now))
            }
            _ => vec![],
        }
    }

    pub(super) fn readmit(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.course {
            Course::Serve => self.in_device(now, device, |staff| staff.readmit(now)),
            _ => vec![],
        }
    }

    pub(super) fn is_in_use_beside(&self, device: DeviceId) -> bool {
        let mut others = self.staffs.iter().filter(|staff| staff.device != device);
        others.any(|staff| staff.standing.is_in_use())
    }

    /// Devices whose last process is gone are out of use; without any other the worker has failed.
    pub(super) fn settle_devices(&mut self, now: Duration) -> Effects {
        let mut effects = vec![];
        for staff in &mut self.staffs {
            if staff.settle() {
                effects.push(Effect::DeviceOut(staff.device));
            }
        }
        let standings = || self.staffs.iter().map(|staff| &staff.standing);
        if effects.is_empty() || !standings().all(Standing::is_out) {
            return effects;
        }
        let absences = standings().filter_map(Standing::absence);
        match absences.filter_map(|absence| absence.failure()).next_back() {
            Some(failure) => self.fail(now, failure),
            None => self.leave(now, SupervisorExit::Clean),
        }
    }
}
