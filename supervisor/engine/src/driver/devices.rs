//! Withdrawal and readmission of devices, and the common properties of their models.

use super::Driver;
use crate::engine::LoadedModel;
use crate::engine::control::Answer;
use std::sync::Arc;
use tracing::{error, info, warn};
use worker_orcd_lifecycle::{DeviceId, Event, OutOfServiceReason};
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Failure, Kin};

/// The loaded model of each device.
pub(super) struct Models(Vec<Option<Arc<LoadedModel>>>);

impl Models {
    pub(super) fn new(devices: usize) -> Self {
        Self(vec![None; devices])
    }

    pub(super) fn put(&mut self, device: DeviceId, model: &Arc<LoadedModel>) {
        self.0[usize::from(device.0)] = Some(Arc::clone(model));
    }

    pub(super) fn of(&self, device: DeviceId) -> Option<&Arc<LoadedModel>> {
        self.0.get(usize::from(device.0))?.as_ref()
    }

    fn take(&mut self, device: DeviceId) {
        self.0[usize::from(device.0)] = None;
    }

    /// KV cache capacity in tokens of each device, in the order of the worker's list.
    pub(super) fn kv_capacities(&self) -> impl Iterator<Item = Option<u64>> {
        let tokens = |model: &Arc<LoadedModel>| model.kv_capacity_tokens;
        self.0.iter().map(move |model| model.as_ref().map(tokens))
    }

    /// Common properties of the model on all devices that have loaded it.
    pub(super) fn together(&self) -> Option<Arc<LoadedModel>> {
        let mut each = self.0.iter().flatten();
        let first = Arc::clone(each.next()?);
        Some(each.fold(first, |sum, next| Arc::new(sum.beside(next))))
    }
}

impl Driver {
    /// Answers a request to withdraw `device`. Here and below, `device` is one of the worker's.
    pub(super) fn asked_to_withdraw(&mut self, device: DeviceId, asker: Answer) {
        let answer = self.refuse_withdrawal(device);
        if answer.is_ok() {
            self.handle(Event::Withdraw(device));
        }
        drop(asker.send(answer));
    }

    pub(super) fn asked_to_readmit(&mut self, device: DeviceId, asker: Answer) {
        let answer = self.refuse_readmission(device);
        if answer.is_ok() {
            self.handle(Event::Readmit(device));
        }
        drop(asker.send(answer));
    }

    fn refuse_withdrawal(&self, device: DeviceId) -> Result<(), String> {
        self.refuse_at_the_end()?;
        if !self.worker.device_status(device).is_in_use() {
            return Err(format!("device {device} is not in use"));
        }
        if !self.worker.may_withdraw(device) {
            return Err("no other device is in use: drain the worker instead".to_owned());
        }
        if !self.has_kin(device) {
            return Err(format!(
                "no other device in use computes as {device} does: its streams could go on nowhere: drain the worker \
                 instead"
            ));
        }
        Ok(())
    }

    fn refuse_readmission(&self, device: DeviceId) -> Result<(), String> {
        self.refuse_at_the_end()?;
        if self.worker.device_status(device).is_in_use() {
            return Err(format!("device {device} is in use"));
        }
        if !self.worker.may_readmit(device) {
            return Err(format!(
                "device {device} cannot be used yet, for a process is left on it: wait until it is gone"
            ));
        }
        Ok(())
    }

    fn refuse_at_the_end(&self) -> Result<(), String> {
        match self.worker.is_draining() {
            true => Err("the worker is ending".to_owned()),
            false => Ok(()),
        }
    }

    /// True if another device in use can continue this device's streams, as far as its determinism class is known.
    fn has_kin(&self, device: DeviceId) -> bool {
        let kin = |device| self.models.of(device).map(|model| Kin::of(&model.device));
        let own = kin(device);
        let others = self.worker.devices().filter(|other| *other != device);
        let mut in_use = others.filter(|other| self.worker.device_status(*other).is_in_use());
        in_use.any(|other| own.is_none() || own == kin(other))
    }

    /// Reports the withdrawn children that have no request left.
    pub(super) fn report_vacated(&mut self) {
        for seat in self.worker.seats() {
            let is_to_go = !self.worker.device_status(seat.device()).is_in_use()
                && self.worker.seat(seat).state().takes_work();
            if is_to_go && self.requests.is_withdrawn(seat) {
                self.handle(Event::Vacated(seat));
            }
        }
    }

    /// Takes the device out of service. Its requests continue elsewhere or end.
    pub(super) fn device_out(&mut self, device: DeviceId) {
        let id = self.settings.device_name(device);
        let absence = self.worker.device_status(device).reason();
        let reason = absence.map_or_else(String::new, ToString::to_string);
        match absence {
            Some(OutOfServiceReason::Withdrawn) | None => info!(device = id, "device_drained"),
            Some(absence) => error!(device = id, what = absence.name(), reason, "device_out"),
        }
        self.models.take(device);
        self.install();
        let message =
            format!("the device {id} is out of use, and no other computes alike: {reason}");
        let failure = Failure::new(ErrorCode::WorkerUnhealthy, message);
        self.requests.strand(device, &failure, self.now);
    }

    pub(super) fn device_in(&mut self, device: DeviceId) {
        let id = self.settings.device_name(device);
        warn!(device = id, "device_readmitted");
        self.requests.readmit(device);
    }

    /// Publishes the common model properties to clients.
    pub(super) fn install(&mut self) {
        if let Some(model) = self.models.together() {
            self.handles.install(&model);
        }
    }
}
