//! Devices in use, and the requests that each may continue.
//!
//! The client of a request has received output of one determinism class, and only children of that class compute the
//! same bits. A request is therefore pinned to the class from its first token on (or from the first log probability of
//! its prompt). A request without output may go to any device.

use super::Requests;
use super::assignments::Assignments;
use super::dispatch::{Dispatch, Place};
use crate::kin::Kin;
use crate::record::{Failure, Record};
use std::num::NonZeroU8;
use std::time::Instant;
use worker_orcd_ipc::RequestId;
use worker_orcd_lifecycle::{DeviceId, SeatId};

#[derive(Debug)]
pub(super) struct Devices(Vec<Device>);

#[derive(Debug, Clone, Default)]
struct Device {
    /// Failure for requests that only this device could continue. `Some`: the device gets no further child.
    stranded: Option<Failure>,
    /// Determinism class of the newest child that served on the device.
    kin: Option<Kin>,
}

/// Children that may continue a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bond {
    /// Any child: the client has received nothing.
    Free,
    /// Children of the first device's class: an earlier supervisor began the request, and its log does not name the
    /// class.
    Unknown,
    To(Kin),
}

impl Requests {
    /// Takes a device out of use. Requests that no other device can continue end with `failure`. Requests of the
    /// device's present child end once they have left it.
    pub fn strand(&mut self, device: DeviceId, failure: &Failure, now: Instant) {
        self.assigned.devices_mut().get_mut(device).stranded = Some(failure.clone());
        let of_it = self.assigned.seats_of(device);
        of_it.for_each(Dispatch::stop);
        self.end_hopeless(now);
        self.assigned.hand_out();
    }

    /// Returns a device to use.
    pub fn readmit(&mut self, device: DeviceId) {
        self.assigned.devices_mut().get_mut(device).stranded = None;
    }

    /// Ends requests that no device in use can continue.
    pub(super) fn end_hopeless(&mut self, now: Instant) {
        for (id, failure) in self.assigned.hopeless() {
            self.end(id, now, |progress, _| progress.fail(failure));
        }
    }
}

impl Devices {
    pub(super) fn new(devices: NonZeroU8) -> Self {
        Self(vec![Device::default(); usize::from(devices.get())])
    }

    /// Notes that a child of this class serves on the device.
    pub(super) fn serves(&mut self, device: DeviceId, kin: Kin) {
        *self.get_mut(device) = Device {
            stranded: None,
            kin: Some(kin),
        };
    }

    /// Number of devices that have a child or will get one.
    pub(super) fn in_use(&self) -> usize {
        self.left().count()
    }

    /// True if a child of this class may continue a request with this pin.
    pub(super) fn allow(&self, bond: &Bond, kin: Option<&Kin>) -> bool {
        match bond {
            Bond::Free => true,
            Bond::Unknown => kin == self.first_kin(),
            Bond::To(its) => kin == Some(its),
        }
    }

    /// Failure for a request with this pin, if no present or future child can continue it.
    fn despair(&self, bond: &Bond) -> Option<&Failure> {
        let Bond::To(its) = bond else {
            return None;
        };
        let may_have = |device: &Device| device.kin.as_ref().is_none_or(|kin| kin == its);
        if self.left().any(may_have) {
            return None;
        }
        let mut stranded = self.0.iter().filter(|it| may_have(it));
        stranded.find_map(|it| it.stranded.as_ref())
    }

    fn any_stranded(&self) -> bool {
        self.in_use() < self.0.len()
    }

    /// Determinism class of the first device in use that has one.
    fn first_kin(&self) -> Option<&Kin> {
        self.left().find_map(|device| device.kin.as_ref())
    }

    fn left(&self) -> impl Iterator<Item = &Device> {
        self.0.iter().filter(|device| device.stranded.is_none())
    }

    fn get_mut(&mut self, device: DeviceId) -> &mut Device {
        &mut self.0[usize::from(device.0)]
    }
}

impl Bond {
    pub(super) fn of(record: &Record) -> Self {
        let progress = record.progress.lock();
        let scores_told = progress.scores_told().unwrap_or(0);
        match progress.tokens_out() > 0 || scores_told > 0 {
            true => Self::Unknown,
            false => Self::Free,
        }
    }
}

impl Assignments {
    fn seats_of(&mut self, device: DeviceId) -> impl Iterator<Item = &mut Dispatch> {
        let seats = (0..).map(SeatId).zip(self.seats_mut());
        let of_it = seats.filter(move |(seat, _)| seat.device() == device);
        of_it.map(|(_, dispatch)| dispatch)
    }

    /// Waiting requests that no device can continue, each with its failure.
    fn hopeless(&self) -> Vec<(RequestId, Failure)> {
        if !self.devices().any_stranded() {
            return Vec::new();
        }
        let waiting = self.iter().filter(|live| live.place == Place::Waiting);
        let hopeless = waiting.filter_map(|live| {
            let failure = self.devices().despair(&live.bond)?;
            Some((live.record.id, failure.clone()))
        });
        hopeless.collect()
    }
}

#[cfg(test)]
mod tests;
