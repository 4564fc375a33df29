//! Retained memory by device, and the model file that all devices share.

use crate::driver::retained_memory::RetainedMemory;
use std::ops::{Index, IndexMut};
use worker_orcd_lifecycle::{DeviceId, SeatId};

pub(super) struct RetainedByDevice(Vec<RetainedMemory>);

impl RetainedByDevice {
    /// Empty state for `devices` devices.
    pub(super) fn new(devices: usize) -> Self {
        Self((0..devices).map(|_| RetainedMemory::default()).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RetainedMemory> {
        self.0.iter()
    }

    pub(super) fn of(&self, device: DeviceId) -> &RetainedMemory {
        &self.0[usize::from(device.0)]
    }

    /// Shares a model file that a child has handed over. The next child of each device gets it.
    pub(super) fn share_model(&mut self) {
        let model = self.iter().find_map(|retained| retained.model.clone());
        for retained in &mut self.0 {
            retained.model = retained.model.take().or_else(|| model.clone());
        }
    }
}

impl FromIterator<RetainedMemory> for RetainedByDevice {
    fn from_iter<T: IntoIterator<Item = RetainedMemory>>(each: T) -> Self {
        Self(each.into_iter().collect())
    }
}

/// Index by a seat of the device.
impl Index<SeatId> for RetainedByDevice {
    type Output = RetainedMemory;

    fn index(&self, seat: SeatId) -> &RetainedMemory {
        &self.0[usize::from(seat.device().0)]
    }
}

impl IndexMut<SeatId> for RetainedByDevice {
    fn index_mut(&mut self, seat: SeatId) -> &mut RetainedMemory {
        &mut self.0[usize::from(seat.device().0)]
    }
}
