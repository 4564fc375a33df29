//! Devices: which of them get children, and whose requests may go on where.
//!
//! Whatever has been told of a request was computed on one kind of device, and only children of that kin
//! compute the same bits. So it is bound to them from its first token on (or from the first log probability of
//! its prompt); who has been told nothing may go anywhere.

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
    /// It gets no further child, and this is what those are told who needed one.
    stranded: Option<Failure>,
    /// Kin of its newest child that served.
    kin: Option<Kin>,
}

/// The children that may go on with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bond {
    /// Each: nothing has been told.
    Free,
    /// Another supervisor began it, and its log does not say with which child.
    Unknown,
    To(Kin),
}

impl Requests {
    /// This device gets no further child. Requests that could go on nowhere else end with this failure, those
    /// of its own child as soon as that one has none of them any more.
    pub fn strand(&mut self, device: DeviceId, failure: &Failure, now: Instant) {
        self.assigned.devices_mut().get_mut(device).stranded = Some(failure.clone());
        let of_it = self.assigned.seats_of(device);
        of_it.for_each(Dispatch::stop);
        self.end_hopeless(now);
        self.assigned.hand_out();
    }

    /// This device gets children again.
    pub fn readmit(&mut self, device: DeviceId) {
        self.assigned.devices_mut().get_mut(device).stranded = None;
    }

    /// Ends requests that no device which is left can go on with.
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

    /// A child of this kin serves on it.
    pub(super) fn serves(&mut self, device: DeviceId, kin: Kin) {
        *self.get_mut(device) = Device {
            stranded: None,
            kin: Some(kin),
        };
    }

    /// Devices that have children, or will.
    pub(super) fn in_use(&self) -> usize {
        self.left().count()
    }

    /// Whether a child of this kin may go on with it.
    pub(super) fn allow(&self, bond: &Bond, kin: Option<&Kin>) -> bool {
        match bond {
            Bond::Free => true,
            Bond::Unknown => kin == self.first_kin(),
            Bond::To(its) => kin == Some(its),
        }
    }

    /// The reason why no child that is still to come can go on with it.
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

    /// The kin of the first device that has one.
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

    /// Requests that wait for a child that will never be, and what they are told.
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
