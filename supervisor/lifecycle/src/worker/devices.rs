//! Failure, condemnation, withdrawal and readmission of a device, and their consequences for the worker.

use super::{Effects, Worker};
use crate::device_status::DeviceStatus;
use crate::effect::{DeviceId, Effect};
use crate::exit::SupervisorExit;
use crate::gpu::GpuVerdict;
use crate::phase::WorkerPhase;
use crate::restart_policy::WorkerFailure;
use std::time::Duration;

impl Worker {
    /// Takes a failed device out of service. The failure of the last device in use fails the worker.
    pub(super) fn device_failed(
        &mut self,
        now: Duration,
        device: DeviceId,
        failure: WorkerFailure,
    ) -> Effects {
        let continues = matches!(self.phase, WorkerPhase::Serve | WorkerPhase::Drain(_));
        match continues && self.is_in_use_beside(device) {
            true => self.in_device(now, device, |device_supervisor| {
                device_supervisor.fail(now, failure)
            }),
            false => self.fail(now, failure),
        }
    }

    pub(super) fn gpu_verdict(
        &mut self,
        now: Duration,
        device: DeviceId,
        gpu_verdict: &GpuVerdict,
    ) -> Effects {
        let continues = matches!(self.phase, WorkerPhase::Serve | WorkerPhase::Drain(_));
        let is_condemned = self.device_status(device).is_condemned();
        match gpu_verdict.condemns() {
            Some(condemnation) if continues && !is_condemned => {
                self.in_device(now, device, |device_supervisor| {
                    device_supervisor.condemn(now, &condemnation)
                })
            }
            _ => vec![],
        }
    }

    pub(super) fn withdraw(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.phase {
            WorkerPhase::Serve if self.may_withdraw(device) => {
                self.in_device(now, device, |device_supervisor| {
                    device_supervisor.withdraw(now)
                })
            }
            _ => vec![],
        }
    }

    pub(super) fn readmit(&mut self, now: Duration, device: DeviceId) -> Effects {
        match self.phase {
            WorkerPhase::Serve => self.in_device(now, device, |device_supervisor| {
                device_supervisor.readmit(now)
            }),
            _ => vec![],
        }
    }

    pub(super) fn is_in_use_beside(&self, device: DeviceId) -> bool {
        let mut others = self
            .device_supervisors
            .iter()
            .filter(|device_supervisor| device_supervisor.device != device);
        others.any(|device_supervisor| device_supervisor.status.is_in_use())
    }

    /// Marks leaving devices without processes as out of service. If all devices are out of service, the worker fails with
    /// the reason of the last one, or ends if all were withdrawn.
    pub(super) fn settle_devices(&mut self, now: Duration) -> Effects {
        let mut effects = vec![];
        for device_supervisor in &mut self.device_supervisors {
            if device_supervisor.settle() {
                effects.push(Effect::DeviceOut(device_supervisor.device));
            }
        }
        let statuses = || {
            self.device_supervisors
                .iter()
                .map(|device_supervisor| &device_supervisor.status)
        };
        if effects.is_empty() || !statuses().all(DeviceStatus::is_out) {
            return effects;
        }
        let reasons = statuses().filter_map(DeviceStatus::reason);
        match reasons.filter_map(|reason| reason.failure()).next_back() {
            Some(failure) => self.fail(now, failure),
            None => self.leave(now, SupervisorExit::Clean),
        }
    }
}
